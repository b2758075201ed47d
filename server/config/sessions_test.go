package config_test

import (
	"strings"
	"testing"
)

const sessions = `schedulingProfiles:
- plugins: [{pluginRef: session-affinity-scorer}, {pluginRef: max-score-picker}]
`

// What no session survives is said where the file has it.
func TestWarningsOfSessions(t *testing.T) {
	const own = "signs its tokens with a key that is drawn at each start"
	for name, test := range map[string]struct {
		text string
		want []string // in the report; what begins with ! is not
	}{
		"no key, not declared": {sessions, []string{"f.yaml:2:13: schedulingProfiles[0].plugins[0]: session-affinity-scorer " + own}},
		"no key": {"plugins:\n- {name: sticky, type: session-affinity-scorer}\n" + strings.ReplaceAll(sessions, "session-affinity-scorer", "sticky"),
			[]string{"f.yaml:2:3: plugins[0]: sticky " + own}},
		"a key of the environment": {"plugins: [{type: session-affinity-scorer, parameters: {key: 'a secret of ${MODEL_NAME}'}}]\n" + sessions,
			[]string{"# key: (redacted)", "!" + own, "!a secret of"}},
		"a key file that is elsewhere": {"plugins:\n- type: session-affinity-scorer\n  parameters: {keyFile: /nowhere/key}\n" + sessions,
			[]string{"f.yaml:3:25: plugins[0].parameters.keyFile: cannot be read here", "!" + own}},
		"calls that end before answers": {"server: {endStream: afterPick}\n" + sessions,
			[]string{"f.yaml:1:21: server.endStream: with afterPick, calls end before answers begin"}},
		"calls that end with the first token": {"server: {endStream: afterFirstToken}\n" + sessions, []string{"!server.endStream: with"}},
		"llm-d's parameters": {`plugins:
- type: session-affinity-scorer
  parameters: {headerName: x-chat, algorithm: encoded_endpoint_header, evictionTtlSeconds: 600}
` + sessions, []string{
			"parameters.algorithm: llm-d's algorithm means nothing here", "parameters.evictionTtlSeconds: llm-d's evictionTtlSeconds means nothing here",
			"headerName: x-chat",
		}},
	} {
		report := check(t, test.text)
		for _, want := range test.want {
			absent, not := strings.CutPrefix(want, "!")
			if not && strings.Contains(report, absent) {
				t.Errorf("%s: the report has %q:\n%s", name, absent, report)
			}
			if !not && !strings.Contains(report, strings.TrimPrefix(want, "f.yaml")) {
				t.Errorf("%s: the report lacks %q:\n%s", name, want, report)
			}
		}
	}
	got := faults(t, "plugins:\n- type: session-affinity-scorer\n  parameters: {algorithm: session_id_header}\n"+sessions)
	if want := "f.yaml:3:16: plugins[0].parameters.algorithm: only llm-d's encoded_endpoint_header is supported"; !strings.HasPrefix(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}
