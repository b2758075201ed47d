package telemetry

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestLabelIsBounded(t *testing.T) {
	l := NewLabel(DefaultLabelValues, "configured")
	var group sync.WaitGroup
	for g := range 4 {
		group.Go(func() {
			for i := range 5000 {
				l.Value(fmt.Sprintf("made up %d", (i*7+g)%5000))
			}
		})
	}
	group.Wait()
	if got := l.Len(); got != DefaultLabelValues+1 {
		t.Errorf("%d values, want %d and the configured one", got, DefaultLabelValues)
	}
	if got := l.Value("one more"); got != OtherLabel {
		t.Errorf("past the bound: %q", got)
	}
	if got := l.Value("configured"); got != "configured" {
		t.Errorf("the configured name became %q", got)
	}
	if got := l.Known("never heard of"); got != OtherLabel {
		t.Errorf("a name that is not known became %q", got)
	}
	if got := l.Value(""); got != "unknown" {
		t.Errorf("empty became %q", got)
	}
}

func TestLabelTakesAnyBytes(t *testing.T) {
	l := NewLabel(DefaultLabelValues)
	v := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "requests"}, []string{"model"})
	for in, want := range map[string]string{
		"a\xff\xfe":                             "a\uFFFD",
		"\xed\xa0\x80":                          "\uFFFD", // a lone surrogate
		strings.Repeat("m", 1<<20):              strings.Repeat("m", MaxLabelBytes),
		strings.Repeat("m", 255) + "é" + "more": strings.Repeat("m", 255) + "\uFFFD",
	} {
		for range 2 {
			got := l.Value(in)
			if got != want {
				t.Errorf("%.20q became %q, want %q", in, got, want)
			}
			v.WithLabelValues(got).Inc() // panics at what is no label value
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := NewLogger(&out, &slog.LevelVar{}, 3, time.Second)
		for range 10 {
			log.With("a", 1).Info("again")
		}
		log.Info("another message")
		time.Sleep(time.Second)
		log.WithGroup("g").Info("again")
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if len(lines) != 5 {
			t.Fatalf("%d lines, want 3 of the first burst, the other message, and one a second later:\n%s", len(lines), &out)
		}
		var last map[string]any
		if err := json.Unmarshal([]byte(lines[4]), &last); err != nil {
			t.Fatal(err)
		}
		if g, ok := last["g"].(map[string]any); !ok || g["suppressed"] != 7.0 {
			t.Errorf("last record %v does not say that 7 were suppressed", last)
		}
	})
}

func TestLogMessagesAreBounded(t *testing.T) {
	l := &limits{burst: 1, interval: time.Hour, messages: map[string]*limit{}}
	for i := range 3 * maxMessages {
		l.allow(fmt.Sprint(i), time.Unix(0, 0))
	}
	if len(l.messages) > maxMessages+1 {
		t.Errorf("%d messages are kept", len(l.messages))
	}
}

// decided runs one request over two endpoints, of which the first is sticky and busier by gap tokens.
func decided(t *testing.T, gap int64, parameters string) (*scheduling.Cycle, *scheduling.Flight) {
	t.Helper()
	match := scheduling.NewPrefixCacheMatchInfo(10, 10, 16)
	none := scheduling.NewPrefixCacheMatchInfo(0, 10, 16)
	table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
		{Match: &match, Load: &scheduling.InFlightLoad{Requests: 1, Tokens: gap}},
		{Match: &none, Load: &scheduling.InFlightLoad{}},
	}}
	last := scheduling.PluginType{Type: "last-picker", New: func(*scheduling.Builder) (any, error) { return lastPicker{}, nil }}
	s := table.Build(t, []scheduling.PluginType{gate.Type(), last},
		[]scheduling.Spec{{Name: gate.TypeName, Type: gate.TypeName, Decode: schedtest.YAML(parameters)}}, gate.TypeName, "last-picker")
	c := s.Begin(table.Pool().Snapshot(), &scheduling.Request{ID: 1, Model: "m", Operation: scheduling.OperationChat, Choices: 1}, 0)
	s.Produce(t.Context(), c)
	f, err := s.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	return c, f
}

type lastPicker struct{}

// Pick picks the candidate with the highest ordinal.
func (lastPicker) Pick(_ *scheduling.Cycle, candidates scheduling.Set, _ []float64, picks []int) []int {
	last := -1
	for e := range candidates.All() {
		last = e
	}
	return append(picks, last)
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	m := NewMetrics(reg, 0, "m")
	c, f := decided(t, 100, "explorationProbability: 0")
	c.Faults = append(c.Faults, scheduling.Fault{Producer: "token-producer", Err: errors.New("x")})
	m.Picked(c, f, 20*time.Microsecond)
	m.Ended(f, scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 160, CachedTokens: 144, CompletionTokens: 5}},
		30*time.Millisecond, 90*time.Millisecond)
	c, f = decided(t, 4000, "{explorationProbability: 0, penaltyMode: matchedTokens}")
	m.Picked(c, f, 20*time.Microsecond)
	m.Ended(f, scheduling.Outcome{Reason: scheduling.EndDisconnect, Usage: scheduling.UnknownUsage}, -1, time.Second)
	m.Picked(c, nil, time.Microsecond)
	m.Noted("not_json")

	want := `
# HELP sluice_cached_tokens_total Input tokens that the engines reported as cached.
# TYPE sluice_cached_tokens_total counter
sluice_cached_tokens_total{model="m"} 144
# HELP sluice_ended_total Ends of picked requests, by reason: complete, error, disconnect, or estimated where the end is not seen.
# TYPE sluice_ended_total counter
sluice_ended_total{reason="complete"} 1
sluice_ended_total{reason="disconnect"} 1
# HELP sluice_gate_released_picks_total Picks after a gate released its pin, by whether the pick then left the sticky endpoints.
# TYPE sluice_gate_released_picks_total counter
sluice_gate_released_picks_total{filter="prefix-cache-affinity-filter",moved="true"} 1
# HELP sluice_gate_verdicts_total Verdicts of the load gates.
# TYPE sluice_gate_verdicts_total counter
sluice_gate_verdicts_total{filter="prefix-cache-affinity-filter",verdict="held"} 1
sluice_gate_verdicts_total{filter="prefix-cache-affinity-filter",verdict="released_matched"} 2
# HELP sluice_matched_tokens_total Input tokens that Sluice knew to be cached on the picked endpoint.
# TYPE sluice_matched_tokens_total counter
sluice_matched_tokens_total{model="m"} 160
# HELP sluice_requests_total Requests that a pick was asked for, by API, model and result (picked, or no_endpoint).
# TYPE sluice_requests_total counter
sluice_requests_total{model="m",operation="chat",result="no_endpoint"} 1
sluice_requests_total{model="m",operation="chat",result="picked"} 2
`
	if err := testutil.GatherAndCompare(reg, strings.NewReader(want), "sluice_cached_tokens_total", "sluice_ended_total",
		"sluice_gate_released_picks_total", "sluice_gate_verdicts_total", "sluice_matched_tokens_total", "sluice_requests_total"); err != nil {
		t.Error(err)
	}
	problems, err := testutil.GatherAndLint(reg)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestEndpointsThatLeftTakeTheirSeriesAlong(t *testing.T) {
	m := NewMetrics(prometheus.NewRegistry(), 0)
	m.picks.WithLabelValues("a").Inc()
	m.picks.WithLabelValues("b").Inc()
	m.EndpointsChanged([]string{"a"})
	if n := testutil.CollectAndCount(m.picks); n != 1 {
		t.Errorf("%d series, want 1", n)
	}
}

func TestTracingIsOffUnlessAsked(t *testing.T) {
	for name, test := range map[string]struct {
		set map[string]string
		on  bool
	}{
		"nothing set":   {nil, false},
		"exporter none": {map[string]string{"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}, false},
		"disabled":      {map[string]string{"OTEL_TRACES_EXPORTER": "console", "OTEL_SDK_DISABLED": "true"}, false},
		"always off":    {map[string]string{"OTEL_TRACES_EXPORTER": "console", "OTEL_TRACES_SAMPLER": " Always_Off"}, false},
		"console":       {map[string]string{"OTEL_TRACES_EXPORTER": "console"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			for k, v := range test.set {
				t.Setenv(k, v)
			}
			tracing, err := NewTracing(t.Context(), "sluice", slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if on := tracing.Tracer() != nil; on != test.on {
				t.Errorf("on = %v, want %v", on, test.on)
			}
			if err := tracing.Close(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
	t.Run("an unknown exporter is an error", func(t *testing.T) {
		t.Setenv("OTEL_TRACES_EXPORTER", "nonsense")
		if _, err := NewTracing(t.Context(), "sluice", slog.New(slog.DiscardHandler)); err == nil {
			t.Error("no error")
		}
	})
}

// So many model names get a label of their own as are configured, beside those that are named; the metric says how many.
func TestModelLabelsAreBoundedAsConfigured(t *testing.T) {
	reg := prometheus.NewRegistry()
	m := NewMetrics(reg, 2, "configured")
	for i, want := range []string{"a", "b", OtherLabel, OtherLabel} {
		if got := m.models.Value(string(rune('a' + i))); got != want {
			t.Errorf("name %d has the label %q, want %q", i, got, want)
		}
	}
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == "sluice_model_labels" {
			if got := f.GetMetric()[0].GetGauge().GetValue(); got != 3 {
				t.Errorf("%v labels are counted, want 3", got)
			}
			return
		}
	}
	t.Error("no sluice_model_labels")
}
