package repo

import (
	"bytes"
	"strings"
	"testing"
)

// conventions is the one file that spells the names of OpenTelemetry's semantic conventions: they change.
const conventions = "server/telemetry/span/conventions.go"

func TestConventionsAreSpelledOnce(t *testing.T) {
	genAI := []byte(`"gen_ai` + `.`) // put together, so that this file does not match itself
	seen := false
	for _, f := range goTree(t).Files {
		imports := false
		for _, imported := range f.Imports() {
			imports = imports || strings.HasPrefix(imported, "go.opentelemetry.io/otel/semconv/")
		}
		if f.Path == conventions {
			seen = imports && bytes.Contains(f.Source, genAI)
			continue
		}
		if imports {
			t.Errorf("%s imports the semantic conventions: %s alone does", f.Path, conventions)
		}
		if bytes.Contains(f.Source, genAI) {
			t.Errorf("%s spells a gen_ai name: %s has them as constants", f.Path, conventions)
		}
	}
	if !seen {
		t.Errorf("%s does not hold the names", conventions)
	}
}
