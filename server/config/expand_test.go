package config

import (
	"slices"
	"strings"
	"testing"
)

func TestExpand(t *testing.T) {
	env := map[string]string{"A": "one", "EMPTY": "", "_x9": "nine", "REF": "${A}"}
	lookup := func(name string) (string, bool) { v, ok := env[name]; return v, ok }
	for _, tc := range []struct{ in, want, err string }{
		{in: "plain $A $ {A} $$", want: "plain $A $ {A} $$"},
		{in: "${A}", want: "one"},
		{in: "<${A}${A}>", want: "<oneone>"},
		{in: "${_x9}", want: "nine"},
		{in: "${EMPTY}", want: ""},
		{in: "${EMPTY:-d}", want: "d"},
		{in: "${A:-d}", want: "one"},
		{in: "${NONE:-}", want: ""},
		{in: "${NONE:-a:-b c}", want: "a:-b c"},
		{in: "$${A}", want: "${A}"},
		{in: "$$${A}", want: "$${A}"}, // the escape is the last dollar and what follows it
		{in: "${REF}", want: "${A}"},  // a value is not expanded again
		{in: "${NONE}", err: "environment variable NONE is not set and has no default (${NONE:-default})"},
		{in: "${NONE} ${ALSO}", err: "NONE is not set"},
		{in: "${NONE} ${ALSO}", err: "ALSO is not set"},
		{in: "${", err: "is not closed"},
		{in: "x${A", err: "is not closed"},
		{in: "${}", err: `"${}" is no reference`},
		{in: "${9}", err: `"${9}" is no reference`},
		{in: "${A-b}", err: `"${A-b}" is no reference`},
		{in: "${A:?must}", err: "is no reference"},
		{in: "${A:-${B}}", err: "references do not nest"},
	} {
		got, _, err := expand(tc.in, lookup)
		switch {
		case tc.err == "" && (err != nil || got != tc.want):
			t.Errorf("expand(%q) = %q, %v; want %q", tc.in, got, err, tc.want)
		case tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)):
			t.Errorf("expand(%q) = %q, %v; want an error with %q", tc.in, got, err, tc.err)
		}
	}
}

// What a variable or a default holds never becomes structure, in whatever context the reference stands.
func TestExpansionInjectsNothing(t *testing.T) {
	const evil = "x, b: 1}\n]\"'\nserver: {decisionHeader: true} # *a &b !c |"
	lookup := func(string) (string, bool) { return evil, true }
	for name, text := range map[string]string{
		"plain":         "endpointsFile: ${V}\n",
		"flow":          "{endpointsFile: ${V}}\n",
		"double quotes": "endpointsFile: \"${V}\"\n",
		"single quotes": "endpointsFile: '${V}'\n",
		"folded":        "endpointsFile: >-\n  ${V}\n",
		"literal":       "endpointsFile: |-\n  ${V}\n",
	} {
		f, err := Parse("f", []byte(text), lookup)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if f.Config.EndpointsFile != evil || f.Config.Server.DecisionHeader {
			t.Errorf("%s: endpointsFile = %q, decisionHeader %v", name, f.Config.EndpointsFile, f.Config.Server.DecisionHeader)
		}
	}
	for name, text := range map[string]string{
		"default in flow":   "{endpointsFile: ${V:-a, b: ]}, endpoints: []}\n",
		"default in quotes": "endpointsFile: \"${V:-a, b: ]}\"\n",
		"default plain":     "endpointsFile: ${V:-a, b: ]} # comment\n",
	} {
		f, err := Parse("f", []byte(text), noEnvironment)
		if err != nil || f.Config.EndpointsFile != "a, b: ]" {
			t.Errorf("%s: %+v, %v", name, f, err)
		}
	}
}

func TestShieldKeepsColumns(t *testing.T) {
	for _, text := range []string{"", "a", "${", "${A}", "é${Aé}x${", "${A\n}", "$${A} ${B:-{}} }"} {
		s := shieldReferences(text)
		if len([]rune(s)) != len([]rune(text)) {
			t.Errorf("shieldReferences(%q) has %d characters, want %d", text, len([]rune(s)), len([]rune(text)))
		}
		if back := unshield(s); back != text {
			t.Errorf("unshield gives %q for %q", back, text)
		}
	}
	if s := shieldReferences("{a: ${B: ]}}"); strings.Count(s, "{")+strings.Count(s, "}")+strings.Count(s, "]") != 2 {
		t.Errorf("structure is left in %q", s)
	}
}

// Where only secrets are unset, a configuration can be read all the same; where anything else is, it cannot.
func TestOffline(t *testing.T) {
	var told []string
	lookup := Offline(func(name string) (string, bool) { return "x", name == "SET" }, func(name string) { told = append(told, name) })
	const seeds = "telemetry: {decisionLog: {hashSeed: \"${SEED}\"}}\nplugins: [{type: approx-prefix-cache-producer, parameters: {hashSeed: \"a ${SEED} ${SET}\"}}]\n"
	for range 2 {
		f, err := Parse("a.yaml", []byte(seeds), lookup)
		if err != nil {
			t.Fatal(err)
		}
		if seed := f.Config.Telemetry.DecisionLog.HashSeed; seed != placeholder {
			t.Errorf("the seed is %q", seed)
		}
	}
	if !slices.Equal(told, []string{"SEED"}) {
		t.Errorf("told of %q", told)
	}
	if _, err := Parse("a.yaml", []byte(seeds), func(string) (string, bool) { return "", false }); err == nil || !strings.Contains(err.Error(), "SEED is not set") {
		t.Errorf("a server's lookup: %v", err)
	}
	if _, err := Parse("a.yaml", []byte("telemetry: {decisionLog: {hashSeed: s}}\nendpointsFile: \"${FILE}\"\n"), lookup); err == nil || !strings.Contains(err.Error(), "FILE is not set") {
		t.Errorf("a file's name: %v", err)
	}
}
