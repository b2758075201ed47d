package repo

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The script that finds a Jaeger takes one that is named or on PATH if it is configured by a file, else the one that was
// built, and builds it where there is none.
func TestJaegerScript(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a Unix shell")
	}
	const modern, older = "echo '  --config file'", "echo '  --collector.zipkin.host-port'"
	tests := map[string]struct {
		onPath, named, built string // what each prints as its help; there is none if empty
		builds               bool   // go works
		want                 string // which is printed
		code                 int
		says                 string
	}{
		"named":                  {onPath: modern, named: modern, want: "named"},
		"named is an older one":  {onPath: modern, named: older, code: 1, says: "takes --config"},
		"on PATH":                {onPath: modern, built: modern, want: "jaeger"},
		"older on PATH":          {onPath: older, built: modern, want: "built", says: "left out"},
		"built already":          {built: modern, want: "built"},
		"none, and it is built":  {builds: true, want: "built", says: "about 5 minutes"},
		"none, and no way to it": {code: 1, says: "about 5 minutes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			root, folder := t.TempDir(), t.TempDir()
			script, err := os.ReadFile(filepath.Join(goTree(t).Root, "scripts", "jaeger.sh"))
			if err != nil {
				t.Fatal(err)
			}
			for _, made := range []string{"scripts", "tools/jaeger", ".tools/bin"} {
				if err := os.MkdirAll(filepath.Join(root, made), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			own := filepath.Join(root, "scripts", "jaeger.sh")
			if err := os.WriteFile(own, script, 0o700); err != nil {
				t.Fatal(err)
			}
			places := map[string]string{
				"named": filepath.Join(folder, "named"), "jaeger": filepath.Join(folder, "jaeger"), "built": filepath.Join(root, ".tools", "bin", "jaeger"),
			}
			for place, help := range map[string]string{"named": tc.named, "jaeger": tc.onPath, "built": tc.built} {
				if help != "" {
					program(t, places[place], help)
				}
			}
			if tc.builds {
				program(t, filepath.Join(folder, "go"), "while [ $# -gt 0 ]; do [ \"$1\" = -o ] && echo > \"$2\"; shift; done")
			} else {
				program(t, filepath.Join(folder, "go"), "exit 1")
			}
			cmd := exec.CommandContext(t.Context(), "bash", own)
			cmd.Env = []string{"PATH=" + folder + ":/usr/bin:/bin"}
			if tc.named != "" {
				cmd.Env = append(cmd.Env, "SLUICE_JAEGER="+places["named"])
			}
			code, out, said := outcome(t, cmd)
			want := ""
			if tc.want != "" {
				want = places[tc.want] + "\n"
			}
			if code != tc.code || out != want || !strings.Contains(said, tc.says) {
				t.Errorf("exit %d, printed %q, said %q; want exit %d, %q, and %q", code, out, said, tc.code, want, tc.says)
			}
		})
	}
}

// outcome runs a script: its exit code, what it printed, and what it said beside that.
func outcome(t *testing.T, cmd *exec.Cmd) (code int, out, said string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil {
		exit := new(exec.ExitError)
		if !errors.As(err, &exit) {
			t.Fatal(err)
		}
		code = exit.ExitCode()
	}
	return code, stdout.String(), stderr.String()
}
