package e2e

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

// shortOutput bounds what the ledger expects of requests that do not say how much they want.
const shortOutput = `
plugins:
  - type: approx-prefix-cache-producer
  - type: inflight-load-producer
    parameters: {maxEstimatedOutputTokens: 4}
`

// unseen is a proxy that sends nothing of the response.
func unseen(p envoy.Params) envoy.Params {
	p.ResponseHeaders, p.ResponseBody, p.ResponseTrailers = envoy.Skip, envoy.BodyNone, envoy.Skip
	return p
}

// background sends a request and returns where its answer will be.
func background(t *testing.T, l *lab.Lab, url, body string) chan lab.Answer {
	answer := make(chan lab.Answer, 1)
	r := lab.Request(t, http.MethodPost, url, strings.NewReader(body))
	go func() {
		a, err := lab.Try(l.Client, r)
		if err != nil {
			t.Error(err)
		}
		answer <- a
	}()
	return answer
}

// Where the proxy ends its call at the pick, the charge stays for as long as the engine is predicted to work, and is
// then released as an estimate; the operator is told once.
func TestReleaseByEstimate(t *testing.T) {
	for name, p := range map[string]envoy.Params{
		"FULL_DUPLEX_STREAMED": {},
		"STREAMED early":       {RequestBody: envoy.Streamed, SendBodyEarly: true},
		"NONE":                 {RequestBody: envoy.BodyNone},
	} {
		t.Run(name, func(t *testing.T) {
			l := lab.New(t, lab.Plan{Config: shortOutput})
			e := l.Envoy(t, unseen(p))
			// 24,000 bytes are about 6,000 tokens: 0.38 s at 15,928 tokens a second, and 4 tokens of output take 80 ms.
			const least = 300 * time.Millisecond
			for i := range 2 {
				l.Fault(t, engine.Faults{Freeze: true})
				began := time.Now()
				answer := background(t, l, e.URL("/v1/chat/completions"), lab.Chat(t, "abcd"[i:]+name, 4400, 4, true))
				lab.Wait(t, "the pick", func() bool { return l.Sluice.InFlight(t).Requests == 1 })
				lab.Wait(t, "the stream to end", func() bool { return l.Sluice.Metric(t, "sluice_open_streams") == 0 })
				if held := l.Sluice.Metric(t, "sluice_held_charges"); held != 1 && time.Since(began) < least {
					t.Errorf("%v charges are held %v after the request began, want 1", held, time.Since(began))
				}
				lab.Wait(t, "the charge to be released", func() bool { return l.Sluice.InFlight(t) == lab.Load{} })
				if took := time.Since(began); took < least {
					t.Errorf("the charge was released after %v", took)
				}
				l.Fault(t, engine.Faults{})
				if a := <-answer; a.Status != http.StatusOK || !strings.HasSuffix(a.Body, "[DONE]\n\n") {
					t.Errorf("status %d: %.200s", a.Status, a.Body)
				}
			}
			estimated(t, l, 2)
		})
	}
}

func estimated(t *testing.T, l *lab.Lab, want float64) {
	t.Helper()
	if n := l.Sluice.Total(t, "sluice_ledger_releases_total", `release="estimated"`); n != want {
		t.Errorf("%v charges released by estimate, want %v", n, want)
	}
	if n := l.Sluice.Total(t, "sluice_ledger_releases_total"); n != want {
		t.Errorf("%v charges released, want %v", n, want)
	}
	if n := l.Sluice.Metric(t, `sluice_notes_total{kind="release_estimated"}`); n != want {
		t.Errorf("%v estimates noted, want %v", n, want)
	}
	if n := strings.Count(l.Sluice.Log(), "charges are released by estimate"); n != 1 {
		t.Errorf("the log says %d times that charges go by estimate, want once", n)
	}
}

// With response headers sent and no body, the call ends at the headers: the charge is held from there.
func TestReleaseByEstimateAfterHeaders(t *testing.T) {
	s := &steps{read: make(chan struct{})}
	address := stepping(t, s)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	e := l.Envoy(t, envoy.Params{ResponseBody: envoy.BodyNone, ResponseTrailers: envoy.Skip, Endpoints: []string{address}})
	r := lab.Request(t, http.MethodPost, e.URL("/v1/chat/completions"), strings.NewReader(lab.Chat(t, "headers", 4400, 4, true)))
	res, err := l.Client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	lab.Wait(t, "the stream to end at the headers", func() bool {
		return l.Sluice.Metric(t, "sluice_open_streams") == 0 && l.Sluice.Metric(t, `sluice_notes_total{kind="release_estimated"}`) == 1
	})
	lab.Wait(t, "the charge to be released while the answer still streams", func() bool { return l.Sluice.InFlight(t) == lab.Load{} })
	estimated(t, l, 1)
}

// Where the call ends at the headers of an answer that is sent in one piece, the engine has finished: nothing is held.
func TestReleaseAtTheHeadersOfAWholeAnswer(t *testing.T) {
	l := lab.New(t, lab.Plan{})
	e := l.Envoy(t, envoy.Params{ResponseBody: envoy.BodyNone, ResponseTrailers: envoy.Skip})
	for _, status := range []int{http.StatusOK, http.StatusInternalServerError} {
		if status != http.StatusOK {
			l.Fault(t, engine.Faults{FailStatus: status, FailCount: 1})
		}
		a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "whole", 10_000, 100, false))
		if a.Status != status {
			t.Errorf("status %d, want %d: %s", a.Status, status, a.Body)
		}
		lab.Wait(t, "the stream to end", func() bool { return l.Sluice.Metric(t, "sluice_open_streams") == 0 })
		if load := l.Sluice.InFlight(t); load != (lab.Load{}) {
			t.Errorf("status %d: %+v is charged after the answer", status, load)
		}
	}
	for _, reason := range []string{"complete", "error"} {
		if n := l.Sluice.Total(t, "sluice_ledger_releases_total", `release="`+reason+`"`); n != 1 {
			t.Errorf("%v charges released as %s, want 1", n, reason)
		}
	}
}

// Some request modes keep their call to the end of a response of which nothing is sent: there the charge goes with the
// answer, not by estimate.
func TestCallThatStaysIsExact(t *testing.T) {
	for _, mode := range []envoy.BodyMode{envoy.Buffered, envoy.BufferedPartial, envoy.Streamed} {
		t.Run(string(mode), func(t *testing.T) {
			l := lab.New(t, lab.Plan{Config: shortOutput})
			e := l.Envoy(t, unseen(envoy.Params{RequestBody: mode}))
			l.Fault(t, engine.Faults{Freeze: true})
			answer := background(t, l, e.URL("/v1/chat/completions"), lab.Chat(t, "exact", 100, 4, true))
			lab.Wait(t, "the pick", func() bool { return l.Sluice.InFlight(t).Requests == 1 })
			time.Sleep(250 * time.Millisecond) // the answer takes longer than the 90 ms that are predicted
			if n := l.Sluice.InFlight(t).Requests; n != 1 {
				t.Errorf("%d requests in flight while the answer is awaited, want 1", n)
			}
			l.Fault(t, engine.Faults{})
			if a := <-answer; a.Status != http.StatusOK {
				t.Errorf("status %d: %s", a.Status, a.Body)
			}
			l.Sluice.Settle(t)
			if n := l.Sluice.Total(t, "sluice_ledger_releases_total", `release="estimated"`); n != 0 {
				t.Errorf("%v charges released by estimate, want none", n)
			}
		})
	}
}
