//go:build linux

package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Commands that serve nothing need no secrets; of those that are not there they say so once.
func TestOfflineCommandsNeedNoSecrets(t *testing.T) {
	folder := t.TempDir()
	file, log := filepath.Join(folder, "sluice.yaml"), filepath.Join(folder, "log.jsonl")
	prefillLog(t, log)
	text := "plugins: [{type: approx-prefix-cache-producer, parameters: {hashSeed: \"${SLUICE_TEST_NO_SEED}\"}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	const said = "environment variable SLUICE_TEST_NO_SEED is not set"
	for _, args := range [][]string{
		{"calibrate", log, "--config", file},
		{"replay", "--config", file, decidedBy(t)},
		{"simulate", "--trace", "b2b", "--b2b-requests", "20", "--endpoints", "2", "--config", file},
	} {
		if code, _, stderr := asProcess(t, args...); code != 0 || strings.Count(stderr, said) != 1 {
			t.Errorf("%s: exit %d, said %q", args, code, stderr)
		}
	}
	for _, args := range [][]string{{"config", "check", file}, {"serve", "--config", file}} {
		if code, _, stderr := asProcess(t, args...); code == 0 || !strings.Contains(stderr, said+" and has no default") {
			t.Errorf("%s: exit %d, said %q", args, code, stderr)
		}
	}
}
