package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

const bySession = `
plugins:
  - type: session-affinity-scorer
    parameters: {key: one key for every replica}
schedulingProfiles:
  - plugins: [{pluginRef: session-affinity-scorer}, {pluginRef: max-score-picker}]
`

const token = "x-session-token"

// say sends one prompt through an Envoy, with the session's token where it has one.
func say(t *testing.T, l *lab.Lab, e *envoytest.Instance, prompt, session string) lab.Answer {
	t.Helper()
	var headers []string
	if session != "" {
		headers = []string{token, session}
	}
	a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, prompt, 20, 2, false), headers...)
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	return a
}

// A session stays on the engine of its first answer, whichever replica of Sluice it comes to, and tokens that are not
// signed with the replicas' key do nothing but count.
func TestSessionsStayAcrossReplicas(t *testing.T) {
	l := lab.New(t, lab.Plan{Config: bySession})
	other := &lab.Lab{Engines: l.Engines, Client: l.Client, Sluice: lab.StartSluice(t, lab.Plan{Config: bySession, Endpoints: l.Addresses()})}
	seen := map[string]bool{}
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered} {
		replicas := []*envoytest.Instance{l.Envoy(t, envoy.Params{RequestBody: mode}), other.Envoy(t, envoy.Params{RequestBody: mode})}
		for session := range 5 {
			a := say(t, l, replicas[0], fmt.Sprintf("session %d", session), "")
			home, value := a.Header.Get("x-sim-endpoint"), a.Header.Get(token)
			if value == "" || strings.Contains(value, ".") {
				t.Fatalf("%s: the answer's token is %q", mode, value)
			}
			seen[home] = true
			for turn := range 6 {
				a = say(t, l, replicas[turn%2], fmt.Sprintf("turn %d of session %d", turn, session), value)
				if got := a.Header.Get("x-sim-endpoint"); got != home {
					t.Errorf("%s: turn %d of session %d went to %s, its home is %s", mode, turn, session, got, home)
				}
				value = a.Header.Get(token)
			}
		}
	}
	if len(seen) < 2 { // ten draws out of three are all alike once in 20,000 times
		t.Errorf("all ten sessions live on %v", seen)
	}
	if got := l.Sluice.Total(t, "sluice_session_tokens_total", `result="valid"`) + other.Sluice.Total(t, "sluice_session_tokens_total", `result="valid"`); got != 60 {
		t.Errorf("%v valid tokens were counted, want 60", got)
	}
	e := l.Envoy(t, envoy.Params{})
	say(t, l, e, "forged", strings.Repeat("A", 50))
	say(t, l, e, "not one of ours", "bGxtL3ZsbG0tMA==")
	if got := l.Sluice.Total(t, "sluice_session_tokens_total", `result="malformed"`); got != 2 {
		t.Errorf("%v malformed tokens were counted, want 2", got)
	}
}

// An answer whose headers the proxy keeps to itself has no token, which is counted and said.
func TestSessionsNeedTheAnswersHeaders(t *testing.T) {
	l := lab.New(t, lab.Plan{Config: bySession})
	e := l.Envoy(t, unseen(envoy.Params{}))
	if a := say(t, l, e, "no token", ""); a.Header.Get(token) != "" {
		t.Errorf("the token is %q", a.Header.Get(token))
	}
	lab.Wait(t, "the answer to be counted as unseen", func() bool {
		return l.Sluice.Total(t, "sluice_notes_total", `kind="answer_headers_unseen"`) == 1
	})
	if !strings.Contains(l.Sluice.Log(), "response_header_mode") {
		t.Errorf("the log does not say why:\n%s", l.Sluice.Log())
	}
}

// Requests for an adapter go where the engine computes with it already.
func TestAdaptersDrawTheirRequests(t *testing.T) {
	l := lab.New(t, lab.Plan{
		Engine: engine.Config{Adapters: []string{"sql", "chat"}, Speed: 1},
		Config: `
plugins:
  - type: engine-metrics-producer
    parameters: {scrapeInterval: 50ms}
schedulingProfiles:
  - plugins: [{pluginRef: lora-affinity-scorer}, {pluginRef: max-score-picker}]
`,
	})
	e := l.Envoy(t, envoy.Params{})
	busy := l.Engines[1]
	ctx := lab.Context(t)
	r := lab.Request(t, http.MethodPost, busy.URL()+"/v1/completions",
		strings.NewReader(`{"model":"sql","prompt":"one two","max_tokens":20000,"ignore_eos":true,"stream":true}`)).WithContext(ctx)
	running, err := l.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = running.Body.Close() }()
	body := `{"model":"sql","prompt":"one two three","max_tokens":1}`
	// Before the engine's page was read, requests go anywhere, and show on the page of who served them: it is all in a row that
	// nobody else gets.
	const many = 20
	row := 0
	lab.Wait(t, "the engine that computes with the adapter to get all of its requests", func() bool {
		a := lab.Post(t, l.Client, e.URL("/v1/completions"), body)
		if a.Status != http.StatusOK {
			t.Fatalf("status %d: %s", a.Status, a.Body)
		}
		if row++; a.Header.Get("x-sim-endpoint") != "engine-1" {
			row = 0
		}
		return row == many
	})
}
