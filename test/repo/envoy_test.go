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

// The script that finds an Envoy takes one on PATH only if it is recent, and says what to do where none can be fetched.
func TestEnvoyScript(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a Unix shell")
	}
	const elsewhere = "echo Plan9/mips"
	tests := map[string]struct {
		version string // what the envoy on PATH prints; none on PATH if empty
		named   string // SLUICE_ENVOY
		path    bool   // the envoy on PATH is printed
		code    int
		says    string
	}{
		"recent on PATH":       {version: "envoy  version: 0a1b/1.38.0/Clean/RELEASE/BoringSSL", path: true},
		"next major on PATH":   {version: "envoy  version: 0a1b/2.0.0-dev/Modified/DEBUG/BoringSSL", path: true},
		"two-digit minor":      {version: "envoy  version: 0a1b/1.100.3/Clean/RELEASE/BoringSSL", path: true},
		"old on PATH":          {version: "envoy  version: 0a1b/1.37.9/Clean/RELEASE/BoringSSL", code: 2, says: "is 1.37.9, older than 1.38"},
		"no Envoy on PATH":     {version: "another program", code: 2, says: "put an envoy of 1.38 or newer on PATH"},
		"nothing on PATH":      {code: 2, says: "no pinned Envoy for Plan9/mips"},
		"named does not run":   {version: "envoy  version: 0a1b/1.40.0/Clean/RELEASE/BoringSSL", named: "/nonexistent", code: 1, says: "SLUICE_ENVOY=/nonexistent"},
		"version is no number": {version: "envoy  version: 0a1b/1./Clean", code: 2, says: "older than 1.38"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			folder := t.TempDir()
			program(t, filepath.Join(folder, "uname"), elsewhere)
			fake := filepath.Join(folder, "envoy")
			if tc.version != "" {
				program(t, fake, "echo '"+tc.version+"'")
			}
			for _, needed := range []string{"bash", "sed", "dirname"} {
				found, err := exec.LookPath(needed)
				if err != nil {
					t.Skipf("no %s", needed)
				}
				if err := os.Symlink(found, filepath.Join(folder, needed)); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.CommandContext(t.Context(), "bash", filepath.Join(goTree(t).Root, "scripts", "envoy.sh"))
			cmd.Env = []string{"PATH=" + folder, "SLUICE_ENVOY=" + tc.named}
			var out, said bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &said
			code := 0
			if err := cmd.Run(); err != nil {
				exit := new(exec.ExitError)
				if !errors.As(err, &exit) {
					t.Fatal(err)
				}
				code = exit.ExitCode()
			}
			want := ""
			if tc.path {
				want = fake + "\n"
			}
			if code != tc.code || out.String() != want || !strings.Contains(said.String(), tc.says) {
				t.Errorf("exit %d, printed %q, said %q; want exit %d, %q, and %q", code, out.String(), said.String(), tc.code, want, tc.says)
			}
		})
	}
}

func program(t *testing.T, path, script string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
}
