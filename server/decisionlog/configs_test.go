package decisionlog

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestConfigsBesideTheLog: what decided is kept, once each, and found from any file of the folder.
func TestConfigsBesideTheLog(t *testing.T) {
	folder := t.TempDir()
	l, err := Open(Options{Folder: folder, Format: JSONLines, SampleRatio: 1, MaxFileBytes: 1 << 20, RotateInterval: time.Hour, MaxFiles: 2, MaxPendingBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	for range 2 {
		if err := l.KeepConfig("0123456789abcdef", "a: b\n"); err != nil {
			t.Fatal(err)
		}
	}
	for _, bad := range []string{"", "../../etc/passwd", "XYZ"} {
		if err := l.KeepConfig(bad, "a: b\n"); err == nil || !strings.Contains(err.Error(), "no name for a file") {
			t.Errorf("hash %q: %v", bad, err)
		}
	}
	file := filepath.Join(folder, "decisions-20260101T000000.000Z-00000000.jsonl")
	if err := os.WriteFile(file, []byte("{}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	path := r.Configs()["0123456789abcdef"]
	if text, err := os.ReadFile(path); err != nil || string(text) != "a: b\n" || len(r.Configs()) != 1 {
		t.Errorf("%v: %q, %v", r.Configs(), text, err)
	}
	if r, err = NewReader(folder); err != nil || len(r.Files()) != 1 {
		t.Errorf("a folder's files are %v, %v: a configuration is none", r.Files(), err)
	}
}

// TestConfigsHaveABound: the oldest go, the one in force stays.
func TestConfigsHaveABound(t *testing.T) {
	folder := t.TempDir()
	other := filepath.Join(folder, "decisions-config-mine.yaml")
	if err := os.WriteFile(other, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hash := func(i int) string { return fmt.Sprintf("%016x", i) }
	for i := range maxConfigs {
		if err := keepConfig(folder, hash(i), "x"); err != nil {
			t.Fatal(err)
		}
		at := time.Unix(int64(1000+i), 0)
		if err := os.Chtimes(filepath.Join(folder, configName(hash(i))), at, at); err != nil {
			t.Fatal(err)
		}
	}
	if err := keepConfig(folder, hash(0), "x"); err != nil { // in force again
		t.Fatal(err)
	}
	if err := keepConfig(folder, hash(maxConfigs), "x"); err != nil {
		t.Fatal(err)
	}
	for i, want := range map[int]bool{0: true, 1: false, 2: true, maxConfigs: true} {
		if _, err := os.Stat(filepath.Join(folder, configName(hash(i)))); (err == nil) != want {
			t.Errorf("configuration %d: %v", i, err)
		}
	}
	if _, err := os.Stat(other); err != nil {
		t.Error("a file that is not ours is gone")
	}
	if entries, err := os.ReadDir(folder); err != nil || len(entries) != maxConfigs+1 {
		t.Errorf("%d files, %v", len(entries), err)
	}
	if err := keepConfig(filepath.Join(folder, "gone"), hash(1), "x"); err == nil {
		t.Error("no error without a folder")
	}
}
