package config_test

import (
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/server/config"
)

// Files as llm-d takes them: what is said of each, and what is made of it, which passes config check.
func TestImport(t *testing.T) {
	paths, err := filepath.Glob("testdata/import_*.yaml")
	if err != nil || len(paths) < 8 {
		t.Fatalf("%d files, %v", len(paths), err)
	}
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".yaml")
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			made, err := config.Import(name+".yaml", text, environment, realTypes())
			if err != nil {
				t.Fatal(err)
			}
			if _, err := config.CheckText("made", []byte(made.File(name+".yaml")), environment, realTypes()); err != nil {
				t.Errorf("what is made of it is not valid: %v\n%s", err, made.File(name+".yaml"))
			}
			compare(t, "testdata/"+name+".txt", made.Report(name+".yaml")+"\n"+made.File(name+".yaml"))

			again, err := config.Import("again.yaml", []byte(made.Text), environment, realTypes())
			if err != nil {
				t.Fatal(err)
			}
			if again.Missing() || again.Text != made.Text {
				t.Errorf("imported again it is (-first +second)\n%s\n%s", cmp.Diff(made.Text, again.Text), again.Report("again.yaml"))
			}
		})
	}
}

// compare compares a text with a file, which -update writes.
func compare(t *testing.T, path, got string) {
	t.Helper()
	if flag.Lookup("update").Value.String() == "true" {
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

// What is no such file is an error that says where.
func TestImportRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"":                                       "f.yaml:1:1: has nothing in it",
		"plugins: [":                             "f.yaml:1:10: ",
		"a: 1\na: 2\n":                           "f.yaml:2:1: a: duplicate key",
		"kind: Deployment\n":                     `f.yaml: its kind is "Deployment", not EndpointPickerConfig`,
		"plugins: {type: x}\n":                   "f.yaml:1: plugins: must be a list",
		"plugins:\n- name: x\n":                  "f.yaml:2: plugins[0]: has no type",
		"plugins:\n- type: x\n  parameters: 5\n": "f.yaml:3: plugins[0].parameters: must be a mapping",
		"schedulingProfiles: default\n":          "f.yaml:1: schedulingProfiles: must be a list",
		"server: {listen: 5}\n":                  "what was made of f.yaml is not valid",
	} {
		made, err := config.Import("f.yaml", []byte(text), environment, realTypes())
		if err == nil {
			t.Errorf("%q: accepted:\n%s", text, made.Text)
		} else if !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: got %q, want %q", text, err, want)
		}
	}
}

// Sluice's own sections stay as they are.
func TestImportKeepsOwnSections(t *testing.T) {
	made, err := config.Import("f.yaml", []byte("endpoints: [\"10.0.0.1:8000\"]\nplugins: [{type: queue-scorer}]\n"), environment, realTypes())
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(made.Text, "10.0.0.1:8000") {
		t.Errorf("the endpoints are gone:\n%s", made.Text)
	}
}

// own matches the names of sections that are Sluice's own, which stay as they are.
var own = regexp.MustCompile(`server|endpoints|endpointsFile|dns|telemetry|shadow`)

// FuzzImport: whatever the file, what is made of it passes config check.
func FuzzImport(f *testing.F) {
	paths, err := filepath.Glob("testdata/import_*.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
	}
	types := realTypes()
	f.Fuzz(func(t *testing.T, text []byte) {
		if len(text) > 8<<10 {
			return
		}
		made, err := config.Import("f.yaml", text, environment, types)
		if err != nil {
			if own.Match(text) || !strings.Contains(err.Error(), "what was made of") {
				return
			}
			t.Fatalf("of what is not Sluice's, something could not be left out: %v", err)
		}
		if _, err := config.CheckText("made", []byte(made.File("f.yaml")), environment, types); err != nil {
			t.Errorf("not valid: %v\n%s", err, made.File("f.yaml"))
		}
		made.Report("f.yaml")
	})
}

// The report that the page for users shows is what its file gets.
func TestImportAsDocumented(t *testing.T) {
	text, err := os.ReadFile("testdata/import_documented.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../../docs/migrate-from-llm-d-router.md")
	if err != nil {
		t.Fatal(err)
	}
	made, err := config.Import("epp-config.yaml", text, environment, realTypes())
	if err != nil {
		t.Fatal(err)
	}
	if report := made.Report("epp-config.yaml"); !strings.Contains(string(page), "```\n"+report+"```\n") {
		t.Errorf("the page does not have this report:\n%s", report)
	}
}
