package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// FuzzParse: no text makes the reader panic or hang; errors are Faults that say where; what is accepted survives being
// written out and read again.
func FuzzParse(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.yaml")
	if err != nil || len(paths) < 50 {
		f.Fatalf("%d seeds (%v)", len(paths), err)
	}
	for _, p := range paths {
		text, err := os.ReadFile(filepath.Clean(p))
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Add(DefaultText)
	f.Add("a: &a [*a, *a]\n")
	f.Add("a: &a [x]\nb: &b [*a, *a, *a]\nendpoints: [*b, *b]\n")
	f.Add(strings.Repeat("? ", 100))
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 8<<10 {
			return
		}
		began := time.Now()
		file, scheduler, err := open("f.yaml", []byte(text), environment, testTypes())
		if took := time.Since(began); took > 5*time.Second {
			t.Errorf("took %v", took)
		}
		if err != nil {
			checkFaults(t, err)
			return
		}
		written := file.Effective(testTypes())
		again, s2, err := open("again.yaml", []byte(written), noEnvironment, testTypes())
		if err != nil {
			t.Fatalf("what is accepted is written as\n%s\nwhich is refused: %v", written, err)
		}
		if got := again.Effective(testTypes()); withoutSecrets(got) != withoutSecrets(written) {
			t.Errorf("written\n%s\nand again\n%s", written, got)
		}
		if err := errors.Join(scheduler.Close(), s2.Close()); err != nil {
			t.Error(err)
		}
	})
}

func checkFaults(t *testing.T, err error) {
	t.Helper()
	var faults Faults
	if !errors.As(err, &faults) || len(faults) == 0 {
		t.Fatalf("a %T: %v", err, err)
	}
	for _, fault := range faults {
		if fault.File != "f.yaml" || fault.Line < 1 || fault.Column < 1 || fault.Message == "" {
			t.Errorf("no place or no message in %+v", fault)
		}
		if strings.ContainsFunc(fault.Error(), func(r rune) bool { return r >= shield && r < shield+128 }) {
			t.Errorf("shielded characters in %q", fault.Error())
		}
	}
}
