package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestReferenceIsFresh(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	want, err := reference(root)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(root, output))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("%s is stale (go generate ./server/config/gen)\n%s", output, diff)
	}
}

func TestReferenceHoldsEveryType(t *testing.T) {
	root, err := moduleRoot()
	if err != nil {
		t.Fatal(err)
	}
	text, err := reference(root)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range types() {
		if !strings.Contains(text, "\n#### "+typ.Type+"\n") {
			t.Errorf("%s is not in the reference: its name ends in no known kind", typ.Type)
		}
	}
}

func TestInWords(t *testing.T) {
	keys := map[string]string{"MaxPageBytes": "maxPageBytes", "Engine": "engine", "TLS": "tls"}
	for _, tc := range []struct{ name, comment, want string }{
		{"MaxPageBytes", "MaxPageBytes bounds a page.", "Bounds a page."},
		{"Engine", "Engine is what Engine says.", "What Engine says."},
		{"Engine", "Engine are the engines.", "The engines."},
		{"Engine", "0 means MaxPageBytes.", "0 means `maxPageBytes`."},
		{"Engine", "Engine speaks TLS, a|b; Other stays Other.", "Speaks TLS, a\\|b; Other stays Other."},
	} {
		if got := inWords(tc.name, tc.comment, keys); got != tc.want {
			t.Errorf("inWords(%q) = %q, want %q", tc.comment, got, tc.want)
		}
	}
}
