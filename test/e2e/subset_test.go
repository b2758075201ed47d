package e2e

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/lab"
)

// C44: a proxy's subset hint is obeyed in all the ways in which it is written; one that leaves nobody is a 503.
func TestC44_Subset(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 4})
	all := l.Addresses()
	ip := func(i int) string { return all[i][:strings.LastIndexByte(all[i], ':')] }
	const header = "x-allowed"
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered, envoy.Streamed} {
		e := l.Envoy(t, envoy.Params{RequestBody: mode, SubsetHeader: header})
		for name, tt := range map[string]struct {
			hint string
			want []string // the engines that may answer; none: 503
		}{
			"two of four":       {all[1] + "," + all[2], []string{"engine-1", "engine-2"}},
			"one":               {all[3], []string{"engine-3"}},
			"blanks and commas": {" , " + all[0] + " ,, " + all[3] + " ,", []string{"engine-0", "engine-3"}},
			"an IP, any port":   {ip(2), []string{"engine-2"}},
			"one known":         {"192.0.2.1:8000," + all[1], []string{"engine-1"}},
			"unknown":           {"192.0.2.1:8000,192.0.2.2:8000", nil},
			"another port":      {ip(0) + ":1", nil},
			"nonsense":          {"everybody!", nil},
		} {
			t.Run(string(mode)+"/"+name, func(t *testing.T) {
				for range 3 {
					a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, name, 300, 2, false), header, tt.hint)
					if tt.want == nil {
						refused(t, a, http.StatusServiceUnavailable, "no_endpoint_in_subset")
						continue
					}
					if engine := a.Header.Get("x-sim-endpoint"); a.Status != http.StatusOK || !slices.Contains(tt.want, engine) {
						t.Errorf("status %d from %q, want one of %v: %s", a.Status, engine, tt.want, a.Body)
					}
				}
			})
		}
	}
	t.Run("no hint", func(t *testing.T) {
		e := l.Envoy(t, envoy.Params{SubsetHeader: header})
		if a := lab.Get(t, l.Client, e.URL("/v1/models")); a.Status != http.StatusOK {
			t.Errorf("status %d: %s", a.Status, a.Body)
		}
	})
	t.Run("an empty list", func(t *testing.T) {
		e := l.Envoy(t, envoy.Params{Subset: []string{}})
		refused(t, lab.Get(t, l.Client, e.URL("/v1/models")), http.StatusServiceUnavailable, "no_endpoint_in_subset")
	})
	t.Run("a list", func(t *testing.T) {
		e := l.Envoy(t, envoy.Params{Subset: all[1:3]})
		for range 8 {
			a := lab.Get(t, l.Client, e.URL("/v1/models"))
			if engine := a.Header.Get("x-sim-endpoint"); engine != "engine-1" && engine != "engine-2" {
				t.Errorf("status %d from %q, want engine-1 or engine-2", a.Status, engine)
			}
		}
	})
	l.Sluice.Settle(t)
}

// refused checks an error that Sluice answered: its status, its reason and its OpenAI-style body.
func refused(t *testing.T, a lab.Answer, status int, reason string) {
	t.Helper()
	if a.Status != status || a.Header.Get("x-sluice-reason") != reason {
		t.Errorf("status %d, reason %q; want %d, %q: %s", a.Status, a.Header.Get("x-sluice-reason"), status, reason, a.Body)
	}
	if got := a.Header.Get("content-type"); got != "application/json" {
		t.Errorf("content-type %q", got)
	}
	var body struct {
		Error struct {
			Message string          `json:"message"`
			Type    string          `json:"type"`
			Param   json.RawMessage `json:"param"`
			Code    string          `json:"code"`
		} `json:"error"`
	}
	if err := json.Unmarshal([]byte(a.Body), &body); err != nil {
		t.Errorf("the body %q: %v", a.Body, err)
	}
	if e := body.Error; e.Message == "" || e.Type == "" || e.Code != reason || string(e.Param) != "null" {
		t.Errorf("the error's body: %s", a.Body)
	}
	retryAfter := a.Header.Get("retry-after")
	if retryable := status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests; retryable != (retryAfter != "") {
		t.Errorf("status %d with retry-after %q", status, retryAfter)
	}
}
