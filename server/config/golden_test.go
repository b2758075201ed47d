package config

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the expected texts in testdata anew; look at the diff")

// golden compares a text with testdata/NAME.txt.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".txt")
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("(-%s +got, -update accepts)\n%s", path, diff)
	}
}

// files lists the test files of a kind, by name without extension.
func files(t *testing.T, prefix string) []string {
	t.Helper()
	paths, err := filepath.Glob("testdata/" + prefix + "*.yaml")
	if err != nil || len(paths) < 5 {
		t.Fatalf("%d files testdata/%s*.yaml (%v)", len(paths), prefix, err)
	}
	names := make([]string, len(paths))
	for i, p := range paths {
		names[i] = strings.TrimSuffix(filepath.Base(p), ".yaml")
	}
	return names
}

func data(t *testing.T, name string) []byte {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Every rule has a file that breaks it, and the errors that a user then sees, all of them.
func TestBadFiles(t *testing.T) {
	for _, name := range files(t, "bad_") {
		t.Run(name, func(t *testing.T) {
			f, s, err := open(name+".yaml", data(t, name), environment, testTypes())
			if err == nil || f != nil || s != nil {
				t.Fatalf("opened: %v, %v, %v", f, s, err)
			}
			for _, line := range strings.Split(err.Error(), "\n") {
				if !strings.HasPrefix(line, name+".yaml:") {
					t.Errorf("no file name before %q", line)
				}
				if strings.Contains(line, "hunter2") {
					t.Errorf("shows a secret: %q", line)
				}
			}
			golden(t, name, err.Error()+"\n")
		})
	}
}

// The report of a good file holds its effective configuration, warnings and differences, and is a good file that means
// the same.
func TestGoodFiles(t *testing.T) {
	for _, name := range files(t, "good_") {
		t.Run(name, func(t *testing.T) {
			f, s, err := open(name+".yaml", data(t, name), environment, testTypes())
			if err != nil {
				t.Fatal(err)
			}
			report := f.Report(testTypes(), s)
			if strings.Contains(report, "hunter2") {
				t.Error("the report shows a secret")
			}
			golden(t, name, report)

			again, s2, err := open("again.yaml", []byte(report), noEnvironment, testTypes())
			if err != nil {
				t.Fatalf("the report is no good file: %v", err)
			}
			if diff := cmp.Diff(withoutSecrets(f.Effective(testTypes())), withoutSecrets(again.Effective(testTypes()))); diff != "" {
				t.Errorf("the report means something else (-file +report)\n%s", diff)
			}
			if secret := strings.Contains(report, Redacted); secret == (f.Hash(testTypes()) == again.Hash(testTypes())) {
				t.Errorf("same hash = %v, with a secret set = %v", !secret, secret)
			}
			if err := errors.Join(s.Close(), s2.Close()); err != nil {
				t.Error(err)
			}
		})
	}
}

// withoutSecrets drops the lines that say whether a secret is set: the report holds none.
func withoutSecrets(text string) string {
	return regexp.MustCompile(`(?m)^ *# hashSeed: .*\n`).ReplaceAllString(text, "")
}
