package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// build builds a scheduler with one engine-metrics-producer, or engine-info-producer, of the given parameters.
func build(t *testing.T, kind, parameters string) error {
	t.Helper()
	store := NewStore(Options{Now: func() time.Duration { return 0 }})
	cfg := config(parameters, false)
	cfg.Plugins[0].Type = kind
	cfg.Profile = cfg.Profile[1:]
	s, err := scheduling.Build(append(store.Types(), schedtest.First), cfg, nil)
	if err != nil {
		return err
	}
	return s.Close()
}

func TestC10_StalenessBelowScrapeSpacingIsRefused(t *testing.T) {
	t.Parallel()
	err := build(t, TypeName, "{stalenessThreshold: 200ms, scrapeInterval: 1s}")
	if err == nil {
		t.Fatal("accepted")
	}
	for _, part := range []string{"plugins[0]", "parameters.stalenessThreshold", "200ms", "scrapeInterval is 1s"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("%q lacks %q", err, part)
		}
	}
}

func TestParametersAreChecked(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ kind, parameters, want string }{
		{TypeName, "", ""},
		{TypeName, "{scrapeInterval: 1s, scrapeTimeout: 500ms, stalenessThreshold: 2s, path: /m, engine: triton, maxPageBytes: 65536}", ""},
		{TypeName, "{stalenessThreshold: 400ms}", ""},
		{TypeName, "{stalenessThreshold: 399ms}", "at least two scrape intervals"},
		{TypeName, "{stalenessThreshold: 1999ms, scrapeInterval: 1s}", "at least two scrape intervals"},
		{TypeName, "{stalenessThreshold: -1s}", "parameters.stalenessThreshold: must be >= 0, got -1s"},
		{TypeName, "{scrapeInterval: 1ms}", "parameters.scrapeInterval: must be 20ms to 10m0s, got 1ms"},
		{TypeName, "{scrapeInterval: -1s}", "parameters.scrapeInterval: must be 20ms to 10m0s, got -1s"},
		{TypeName, "{scrapeTimeout: 0s}", "parameters.scrapeTimeout: must be 10ms to 1m0s, got 0s"},
		{TypeName, "{path: metrics}", `parameters.path: must begin with /, got "metrics"`},
		{TypeName, "{engine: vlm}", `parameters.engine: unknown engine "vlm" (did you mean "vllm"?); engines: vllm, sglang, trtllm, triton`},
		{TypeName, "{engine: ''}", `parameters.engine: unknown engine ""`},
		{TypeName, "{maxPageBytes: 0}", "parameters.maxPageBytes: must be 4KiB to 1GiB, got 0"},
		{TypeName, "{maxPageBytes: 0, path: x}", "parameters.path"}, // all faults at once
		{InfoTypeName, "", ""},
		{InfoTypeName, "{scrapeInterval: 1s}", ""},
		{InfoTypeName, "{scrapeInterval: 1h}", "parameters.scrapeInterval"},
	} {
		err := build(t, tc.kind, tc.parameters)
		switch {
		case tc.want == "" && err != nil:
			t.Errorf("%s %s: %v", tc.kind, tc.parameters, err)
		case tc.want != "" && (err == nil || !strings.Contains(err.Error(), tc.want)):
			t.Errorf("%s %s: %v; want %q", tc.kind, tc.parameters, err, tc.want)
		}
	}
}

// TestStalenessFollowsALargePool has a limit that is right for the shortest automatic interval and too short for the one
// that a large pool gets.
func TestStalenessFollowsALargePool(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		configured time.Duration
		endpoints  int
		want       time.Duration
	}{
		{0, 1, 5 * time.Second},
		{0, 512, 20480 * time.Millisecond},
		{500 * time.Millisecond, 8, 500 * time.Millisecond},
		{500 * time.Millisecond, 512, 4096 * time.Millisecond},
	} {
		params := DefaultParameters()
		params.StalenessThreshold = tc.configured
		s, err := params.complete()
		if err != nil {
			t.Fatal(err)
		}
		p := newPoller(NewStore(Options{Now: func() time.Duration { return 0 }}), s)
		p.interval.Store(int64(s.intervalFor(tc.endpoints)))
		if got := p.staleAfter(); got != tc.want {
			t.Errorf("%v with %d endpoints: %v, want %v", tc.configured, tc.endpoints, got, tc.want)
		}
		p.close()
	}
}
