package repo

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// scripts/kube.sh takes the folder that is named, where it holds both programs, then what was built before, and builds what
// is missing.
func TestKubeScriptFindsTheAPIServer(t *testing.T) {
	both := []string{"etcd", "kube-apiserver"}
	for name, tc := range map[string]struct {
		named, built []string // the programs there; nil: no such folder
		builds       bool
		want         string
		code         int
		says         string
	}{
		"named":                  {named: both, built: both, want: "named"},
		"named, and half of it":  {named: both[:1], built: both, code: 1, says: "holds no kube-apiserver"},
		"built already":          {built: both, want: "built"},
		"half built":             {built: both[1:], builds: true, want: "built", says: "building etcd"},
		"none, and it is built":  {builds: true, want: "built", says: "building kube-apiserver"},
		"none, and no way to it": {code: 1, says: "building etcd"},
	} {
		t.Run(name, func(t *testing.T) {
			root, folder := t.TempDir(), t.TempDir()
			script, err := os.ReadFile(filepath.Join(goTree(t).Root, "scripts", "kube.sh"))
			if err != nil {
				t.Fatal(err)
			}
			own := filepath.Join(root, "scripts", "kube.sh")
			places := map[string]string{"named": filepath.Join(folder, "named"), "built": filepath.Join(root, ".tools", "kube")}
			for _, made := range []string{filepath.Dir(own), filepath.Join(root, "test", "kube", "binaries"), places["named"], places["built"]} {
				if err := os.MkdirAll(made, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			if err := os.WriteFile(own, script, 0o700); err != nil {
				t.Fatal(err)
			}
			for place, programs := range map[string][]string{"named": tc.named, "built": tc.built} {
				for _, p := range programs {
					program(t, filepath.Join(places[place], p), "")
				}
			}
			if tc.builds {
				program(t, filepath.Join(folder, "go"), "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo > \"$2\"; shift; done")
			} else {
				program(t, filepath.Join(folder, "go"), "exit 1")
			}
			cmd := exec.CommandContext(t.Context(), "bash", own)
			cmd.Env = []string{"PATH=" + folder + ":/usr/bin:/bin"}
			if tc.named != nil {
				cmd.Env = append(cmd.Env, "SLUICE_KUBE="+places["named"])
			}
			code, out, said := outcome(t, cmd)
			want := ""
			if tc.want != "" {
				want = places[tc.want] + "\n"
			}
			if code != tc.code || out != want || !strings.Contains(said, tc.says) {
				t.Errorf("exit %d, printed %q, said %q; want %d, %q, %q", code, out, said, tc.code, want, tc.says)
			}
		})
	}
}
