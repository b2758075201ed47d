package e2e

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// nobody is a plan whose pool is empty, and known to be.
func nobody(t *testing.T) lab.Plan {
	t.Helper()
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	if err := os.WriteFile(file, []byte("endpoints: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return lab.Plan{Engines: -1, Override: func(c *config.Config) { c.EndpointsFile = file }}
}

// Modes in which Sluice reads the request's body.
var readingModes = []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered, envoy.BufferedPartial}

// What the client gets when there is nobody to send its request to.
func TestNoEndpoint(t *testing.T) {
	l := lab.New(t, nobody(t))
	for _, mode := range bodyModes() {
		e := l.Envoy(t, mode.params)
		refused(t, lab.Get(t, l.Client, e.URL("/v1/models")), http.StatusServiceUnavailable, "no_endpoint")
		a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "nobody", 50_000, 4, true))
		refused(t, a, http.StatusServiceUnavailable, "no_endpoint")
		if got := a.Header.Get("retry-after"); got != "1" {
			t.Errorf("%s: retry-after %q, want 1", mode.name, got)
		}
	}
	lab.Wait(t, "streams to end", func() bool { return l.Sluice.Metric(t, "sluice_open_streams") == 0 })
}

// C17: bytes that are no JSON are refused where Sluice reads them; what is only unusual is the engine's to judge.
func TestC17_NotJSON(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 1})
	for _, mode := range readingModes {
		e := l.Envoy(t, envoy.Params{RequestBody: mode})
		for _, body := range []string{"model=sim&prompt=x", `{"model":"sim",`, `{"model":"sim"} trailing`, "\x01\x02\x03"} {
			refused(t, lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body), http.StatusBadRequest, "not_json")
		}
		for body, status := range map[string]int{
			`{"model":"sim"}`: http.StatusBadRequest, // the engine misses the messages
			`[]`:              http.StatusBadRequest,
			`{"messages":[{"role":"user","content":null}],"unknown":{"deep":[1,{"x":null}]},"max_tokens":1}`: http.StatusOK,
			"\xef\xbb\xbf" + `{"messages":[{"role":"user","content":"a byte order mark"}],"max_tokens":1}`:   http.StatusOK,
		} {
			a := lab.Post(t, l.Client, e.URL("/v1/chat/completions?beta=1"), body)
			if a.Status != status || a.Header.Get("x-sim-endpoint") == "" {
				t.Errorf("%s: %q: status %d from engine %q, want %d", mode, body, a.Status, a.Header.Get("x-sim-endpoint"), status)
			}
		}
	}
	l.Sluice.Settle(t)
}

// C18: a body of the limit's size passes, one byte more is a 413 whether its length was announced or not, and nothing
// stays charged.
func TestC18_BodyLimit(t *testing.T) {
	const limit = 256 << 10
	l := lab.New(t, lab.Plan{Engines: 1, Override: func(c *config.Config) { c.Server.MaxRequestBodyBytes = limit }})
	fits := lab.Chat(t, "fits", 10, 1, false)
	fits += strings.Repeat(" ", limit-len(fits))
	for _, mode := range readingModes {
		e := l.Envoy(t, envoy.Params{RequestBody: mode})
		url := e.URL("/v1/chat/completions")
		a := lab.Post(t, l.Client, url, fits)
		if a.Status != http.StatusOK || a.Header.Get("x-sim-body-sha256") != lab.SHA256(fits) {
			t.Errorf("%s: at the limit: status %d %.200s", mode, a.Status, a.Body)
		}
		refused(t, lab.Post(t, l.Client, url, fits+" "), http.StatusRequestEntityTooLarge, "body_too_large")
		chunked := io.MultiReader(strings.NewReader(fits), strings.NewReader(" "))
		a = lab.Do(t, l.Client, lab.Request(t, http.MethodPost, url, chunked))
		refused(t, a, http.StatusRequestEntityTooLarge, "body_too_large")
	}
	l.Sluice.Settle(t)
}

// C18: a buffered body beyond gRPC's default message limit of 4 MiB, and one beyond Envoy's own buffer, whose 413 is
// Envoy's.
func TestC18_BufferedMessage(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 1})
	body := lab.Chat(t, "large", 10, 1, false) + strings.Repeat(" ", 6<<20)
	e := l.Envoy(t, envoy.Params{RequestBody: envoy.Buffered})
	a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body)
	if a.Status != http.StatusOK || a.Header.Get("x-sim-body-sha256") != lab.SHA256(body) {
		t.Errorf("6 MiB in one message: status %d %.200s", a.Status, a.Body)
	}
	e = l.Envoy(t, envoy.Params{RequestBody: envoy.Buffered, BufferLimitBytes: 1 << 20})
	a = lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body)
	if a.Status != http.StatusRequestEntityTooLarge || a.Header.Get("x-sluice-reason") != "" {
		t.Errorf("beyond Envoy's buffer: status %d, reason %q, want Envoy's 413", a.Status, a.Header.Get("x-sluice-reason"))
	}
	l.Sluice.Settle(t)
}

// An upload that never ends is answered when the time for a pick is over, and holds nothing.
func TestUploadThatStalls(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 1, Override: func(c *config.Config) { c.Server.PickTimeout = 300 * time.Millisecond }})
	e := l.Envoy(t, envoy.Params{})
	body, stalled := io.Pipe()
	defer func() { _ = stalled.Close() }()
	go func() { _, _ = io.WriteString(stalled, `{"model":"sim","messages":[`) }() // ends with the pipe
	a := lab.Do(t, l.Client, lab.Request(t, http.MethodPost, e.URL("/v1/chat/completions"), body))
	refused(t, a, http.StatusRequestTimeout, "pick_timeout")
	l.Sluice.Settle(t)
}

// The reason header says which engine was picked and why, where it is configured; without, nothing is said.
func TestDecisionHeader(t *testing.T) {
	for _, on := range []bool{true, false} {
		l := lab.New(t, lab.Plan{Override: func(c *config.Config) { c.Server.DecisionHeader = on }})
		e := l.Envoy(t, envoy.Params{})
		var last string
		for range 2 {
			a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "why", 500, 2, false))
			last = a.Header.Get("x-sluice-decision")
			address := l.Engine(t, a.Header.Get("x-sim-endpoint")).Addr().String()
			if on && !strings.HasPrefix(last, address+" gate=") || !on && last != "" {
				t.Errorf("on %t: %q from %s", on, last, address)
			}
		}
		if on && (!strings.Contains(last, " gate=held ") || strings.Contains(last, " cached=0/") || !strings.HasSuffix(last, " candidates=3")) {
			t.Errorf("the second turn's decision: %q", last)
		}
	}
}

// C44: a client's own destination is overwritten by the pick, in every mode, and never dialled where there is none.
func TestC44_ForgedDestination(t *testing.T) {
	victim := lab.StartPod(t, envoytest.PodIPs(t, 1)[0]+":0")
	l, empty := lab.New(t, lab.Plan{}), lab.New(t, nobody(t))
	for _, mode := range bodyModes() {
		for i, d := range diallings {
			if i > 0 && mode.name != "FULL_DUPLEX_STREAMED" {
				continue // how Envoy dials does not depend on the mode
			}
			p := mode.params
			p.PoolType, p.Source = d.pool, d.source
			e := l.Envoy(t, p)
			for _, forged := range []string{victim.Addr, victim.Addr + "," + l.Addresses()[0]} {
				a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "forged", 20, 1, false),
					envoy.DestinationKey, forged, envoy.ServedKey, forged, envoy.SubsetKey, forged)
				if a.Status != http.StatusOK || a.Header.Get("x-sim-endpoint") == "" {
					t.Errorf("%s, %s: status %d: %s", mode.name, d.name, a.Status, a.Body)
				}
			}
		}
	}
	p := empty.Params(envoy.Params{FailureModeAllow: true, Endpoints: []string{victim.Addr}})
	a := lab.Get(t, l.Client, envoytest.Start(t, p).URL("/v1/models"), envoy.DestinationKey, victim.Addr)
	refused(t, a, http.StatusServiceUnavailable, "no_endpoint")
	if victim.Hits() != 0 {
		t.Errorf("%d requests followed the client's header", victim.Hits())
	}
}
