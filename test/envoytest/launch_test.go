package envoytest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A bootstrap that Envoy refuses is an error at once, with Envoy's own words in the log, and no process is left.
func TestLaunchReportsAnExit(t *testing.T) {
	e, err := launch(t.Context(), Binary(t), write(t, []byte("static_resources: {nonsense: 1}")), filepath.Join(t.TempDir(), "admin"))
	if err == nil || !strings.Contains(err.Error(), "it exited") {
		t.Fatalf("error %v, want one that says it exited", err)
	}
	e.Stop()
	if !strings.Contains(e.Log(), "nonsense") {
		t.Errorf("the log does not name the fault: %s", e.Log())
	}
}

func TestLaunchWithoutBinary(t *testing.T) {
	e, err := launch(t.Context(), filepath.Join(t.TempDir(), "none"), "x", "y")
	if err == nil || e != nil {
		t.Fatalf("got %v, %v; want no instance and an error", e, err)
	}
}

func TestRecentRefuses(t *testing.T) {
	tests := map[string]string{
		"echo 'envoy  version: abc/1.37.9/Clean/RELEASE/BoringSSL'": "need 1.38",
		"echo hello": "no version",
		"exit 3":     "exit status 3",
	}
	for script, want := range tests {
		path := filepath.Join(t.TempDir(), "envoy")
		if err := os.WriteFile(path, []byte("#!/bin/sh\n"+script+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := recent(path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q", script, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "envoy")
	script := "#!/bin/sh\necho 'envoy  version: abc/2.0.1-dev/Clean/RELEASE/BoringSSL'\n"
	if err := os.WriteFile(path, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := recent(path); err != nil {
		t.Errorf("2.0.1: %v", err)
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var w tail
	for i := range 10 {
		if n, err := w.Write(bytes.Repeat([]byte{byte('0' + i)}, tailBytes/4)); n != tailBytes/4 || err != nil {
			t.Fatal(n, err)
		}
	}
	got := w.String()
	if want := "…" + strings.Repeat("6", tailBytes/4); !strings.HasPrefix(got, want) || !strings.HasSuffix(got, "9") || len(got) != tailBytes+len("…") {
		t.Errorf("kept %d bytes, from %q to %q", len(got), got[:8], got[len(got)-1:])
	}
}
