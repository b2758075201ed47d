package e2e

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

// threePicks gives Envoy the pick and two fallbacks.
func threePicks(c *config.Config) { c.Server.MaxEndpointsInPick = 3 }

// C44: the engine that holds the conversation refuses; the retry goes to the next of the ordered picks. The proxy
// reports who served: the charge moves there at once, and the learnt prefix with it.
func TestC44_RetryMovesTheCharge(t *testing.T) {
	for _, source := range []envoy.PickSource{envoy.FromHeader, envoy.FromMetadata} {
		for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered} {
			t.Run(string(source)+"/"+string(mode), func(t *testing.T) {
				l := lab.New(t, lab.Plan{Override: threePicks})
				e := l.Envoy(t, envoy.Params{PoolType: envoy.OverrideHost, Source: source, RequestBody: mode, Retries: 2})
				retryOnce(t, l, e.URL("/v1/chat/completions"))
				if n := e.Stat(t, "cluster.inference-pool.upstream_rq_retry_success"); n != 1 {
					t.Errorf("%d retries succeeded, want 1", n)
				}
			})
		}
	}
}

func retryOnce(t *testing.T, l *lab.Lab, url string) {
	body := lab.Chat(t, "conversation", 2000, 4, false)
	home := lab.Post(t, l.Client, url, body).Header.Get("x-sim-endpoint")
	l.Sluice.Settle(t)

	// The conversation goes on, and its home refuses connections.
	body = lab.Chat(t, "conversation", 4000, 4, false)
	dead := l.Engine(t, home)
	address := dead.Addr().String()
	if err := dead.SetFaults(engine.Faults{RefuseMs: int(lab.Timeout.Milliseconds())}); err != nil {
		t.Fatal(err)
	}
	second := lab.Post(t, l.Client, url, body)
	served := second.Header.Get("x-sim-endpoint")
	if second.Status != http.StatusOK || served == home {
		t.Fatalf("status %d from %q, whose home %q refuses: %s", second.Status, served, home, second.Body)
	}
	if got := second.Header.Get("x-sim-body-sha256"); got != lab.SHA256(body) {
		t.Error("the body arrived changed at the fallback")
	}
	l.Sluice.Settle(t)
	if n := l.Sluice.Metric(t, `sluice_notes_total{kind="served_elsewhere"}`); n != 1 {
		t.Errorf("%v reports of another endpoint, want 1", n)
	}
	if n := l.Sluice.Metric(t, `sluice_picks_total{endpoint="`+address+`"}`); n != 2 {
		t.Errorf("%s was picked %v times, want 2", address, n)
	}

	// The fallback has learnt the longer prefix, the home has not: the next request goes straight to the fallback.
	third := lab.Post(t, l.Client, url, body)
	if third.Status != http.StatusOK || third.Header.Get("x-sim-endpoint") != served {
		t.Errorf("afterwards: status %d from %q, want %q", third.Status, third.Header.Get("x-sim-endpoint"), served)
	}
	if u := usageOf(t, third); u.cached == 0 {
		t.Errorf("afterwards nothing was cached: %+v", u)
	}
	l.Sluice.Settle(t)
}

// While the fallback streams its answer, the ledger holds the request there and nowhere else.
func TestServedReportMovesAnOpenStream(t *testing.T) {
	s := &steps{read: make(chan struct{})}
	fallback := stepping(t, s)
	l := lab.New(t, lab.Plan{Engines: 1, Override: threePicks, Endpoints: []string{fallback}})
	e := l.Envoy(t, envoy.Params{PoolType: envoy.OverrideHost, Retries: 1, Endpoints: append(l.Addresses(), fallback)})
	url := e.URL("/v1/chat/completions")

	// A subset of one teaches the prefix to the engine, which then refuses.
	home := l.Addresses()[0]
	teach := l.Envoy(t, envoy.Params{Subset: []string{home}})
	body := lab.Chat(t, "moved", 2000, 4, true)
	if a := lab.Post(t, l.Client, teach.URL("/v1/chat/completions"), body); a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	l.Sluice.Settle(t)
	if err := l.Engines[0].SetFaults(engine.Faults{RefuseMs: int(lab.Timeout.Milliseconds())}); err != nil {
		t.Fatal(err)
	}
	done := make(chan lab.Answer, 1)
	go func() {
		a, err := lab.Try(l.Client, lab.Request(t, http.MethodPost, url, strings.NewReader(body)))
		if err != nil {
			t.Error(err)
		}
		done <- a
	}()
	want := map[string]lab.Load{home: {}, fallback: {Requests: 1, Decoding: 1}}
	lab.Wait(t, "the charge to move to the fallback", func() bool {
		loads := l.Sluice.Loads(t)
		return loads[home] == want[home] && loads[fallback] == want[fallback]
	})
	for range stepEvents {
		s.read <- struct{}{}
	}
	if a := <-done; a.Status != http.StatusOK {
		t.Errorf("status %d: %s", a.Status, a.Body)
	}
	l.Sluice.Settle(t)
}

// A retry that finds every engine refusing ends as an error, and releases.
func TestAllPicksRefuse(t *testing.T) {
	l := lab.New(t, lab.Plan{Override: threePicks})
	e := l.Envoy(t, envoy.Params{PoolType: envoy.OverrideHost, Retries: 2})
	l.Fault(t, engine.Faults{RefuseMs: int(lab.Timeout.Milliseconds())})
	a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "nobody", 100, 4, false))
	if a.Status != http.StatusServiceUnavailable || a.Header.Get("x-sluice-reason") != "" {
		t.Errorf("status %d (%q), want Envoy's 503", a.Status, a.Header.Get("x-sluice-reason"))
	}
	l.Sluice.Settle(t)
	if n := l.Sluice.Total(t, "sluice_ledger_releases_total", `release="error"`); n != 1 {
		t.Errorf("%v charges released with an error, want 1", n)
	}
}
