package fit_test

import (
	"bytes"
	"fmt"
	"iter"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/fit"
	"github.com/sluice-epp/sluice/server/decisionlog"
	"github.com/sluice-epp/sluice/sim"
	simfit "github.com/sluice-epp/sluice/sim/fit"
	"github.com/sluice-epp/sluice/sim/profile"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// A table is read the same from CSV as from JSON lines, whatever the order of its columns; rows of busy engines are left out.
func TestTables(t *testing.T) {
	want := fit.Samples{
		Kept: []simfit.Sample{
			{PromptTokens: 1000, CachedTokens: 160, TTFT: 0.05},
			{PromptTokens: 20, TTFT: 0.0125, TPOT: 0.02, OutputTokens: 9, Decoding: 3, ContextTokens: 7000},
		},
		Read: 3, Skipped: map[string]int{fit.SkippedBusy: 1},
	}
	for name, text := range map[string]string{
		"CSV": "\ufeffTTFT_ms, prompt_tokens,cached_tokens,when,decoding,context_tokens,in_flight,tpot_ms,output_tokens\n" +
			"50,1000,160,\"now, or so\",,,,,\n\n12.5,20,0,x,3,7000,3,20,9\n12.5,20,0,x,3,7000,4,20,9\n",
		"JSON lines": `{"prompt_tokens":1000,"cached_tokens":160,"ttft_ms":50,"other":{"a":[1]},"tpot_ms":null}` + "\n" +
			`{"prompt_tokens":20,"cached_tokens":0,"ttft_ms":12.5,"tpot_ms":20,"output_tokens":9,"decoding":3,"context_tokens":7000,"in_flight":3}` + "\n\n" +
			`{"prompt_tokens":20,"cached_tokens":0,"ttft_ms":12.5,"decoding":3,"in_flight":4}`,
	} {
		var got fit.Samples
		if err := got.Table(strings.NewReader(text)); err != nil {
			t.Errorf("%s: %v", name, err)
		} else if diff := cmp.Diff(want, got, cmpopts.IgnoreUnexported(fit.Samples{})); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestFaultsOfTables(t *testing.T) {
	const head = "prompt_tokens,cached_tokens,ttft_ms\n"
	for text, want := range map[string]string{
		"":                                "is empty",
		"\n\n":                            "is empty",
		"a,b\n1,2":                        "line 1: prompt_tokens is missing; the columns are prompt_tokens, cached_tokens, ttft_ms",
		"prompt_tokens,cached_tokens\n":   "both ttft_ms and tpot_ms are missing",
		"prompt_tokens,prompt_tokens\n":   "column prompt_tokens comes twice",
		head + "1,2":                      "line 2: 2 fields, the first line has 3",
		head + "10,x,5":                   `line 2: cached_tokens: want a number, got "x"`,
		head + "10,0.5,5":                 "line 2: cached_tokens: want a whole number, got 0.5",
		head + "10,0,5\n10,10,5":          "line 3: cached_tokens: must be from 0 to below prompt_tokens 10, got 10",
		head + "10,0,NaN":                 "line 2: ttft_ms, tpot_ms: must be times above 0",
		head + "10,0,\"5":                 "line 2: ",
		`{"prompt_tokens":1}`:             "line 1: cached_tokens is missing",
		`{"prompt_tokens":"x"}`:           `line 1: prompt_tokens: want a number, got "x"`,
		"{":                               "line 1: ",
		head + strings.Repeat("1", 1<<21): "line 2: bufio.Scanner: token too long",
	} {
		var s fit.Samples
		if err := s.Table(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.60q: %v, want %q", text, err, want)
		}
	}
}

// Of more samples than are kept, those that are kept are drawn evenly.
func TestSamplesAreBounded(t *testing.T) {
	var text strings.Builder
	text.WriteString("prompt_tokens,cached_tokens,ttft_ms\n")
	const all = fit.MaxSamples + fit.MaxSamples/2
	for i := range all {
		fmt.Fprintf(&text, "%d,0,1\n", i+1)
	}
	var s fit.Samples
	if err := s.Table(strings.NewReader(text.String())); err != nil {
		t.Fatal(err)
	}
	late := 0
	for _, k := range s.Kept {
		if k.PromptTokens > all/2 {
			late++
		}
	}
	if len(s.Kept) != fit.MaxSamples || s.Read != all || late < fit.MaxSamples*48/100 || late > fit.MaxSamples*52/100 {
		t.Errorf("%d of %d kept, %d of them of the later half", len(s.Kept), s.Read, late)
	}
}

// decision is one of a log, of a request alone at the first of two endpoints.
func decision(prompt, cached, output uint64, ttft, total float64) *decisionv1.Decision {
	return &decisionv1.Decision{
		Request: &decisionv1.Request{Model: "m", Stream: true, Choices: 1},
		Candidates: []*decisionv1.Candidate{
			{Ordinal: 7, Address: "10.0.0.7:8000", Name: "other", InFlightLoads: []*decisionv1.InFlightLoad{{Requests: 4}}},
			{Ordinal: 9, Address: "10.0.0.9:8000", Name: "one", InFlightLoads: []*decisionv1.InFlightLoad{{}}},
		},
		Picks: []uint32{9},
		Outcome: &decisionv1.Outcome{
			Reason: "complete", Status: 200, TtftMs: &ttft, TotalMs: total, PromptTokens: &prompt, CachedTokens: &cached, CompletionTokens: &output,
		},
	}
}

func sequence(all ...*decisionv1.Decision) iter.Seq2[*decisionv1.Decision, error] {
	return func(yield func(*decisionv1.Decision, error) bool) {
		for _, d := range all {
			if !yield(d, nil) {
				return
			}
		}
		yield(nil, &decisionlog.Skip{File: "f", Reason: decisionlog.SkippedTail})
	}
}

func TestLog(t *testing.T) {
	change := func(f func(*decisionv1.Decision)) *decisionv1.Decision {
		d := decision(1000, 160, 11, 50, 150)
		f(d)
		return d
	}
	log := sequence(
		decision(1000, 160, 11, 50, 150),
		change(func(d *decisionv1.Decision) { d.Picks[0] = 7 }),
		change(func(d *decisionv1.Decision) { d.Picks[0] = 8 }),
		change(func(d *decisionv1.Decision) { d.Picks = nil }),
		change(func(d *decisionv1.Decision) { d.Outcome = nil }),
		change(func(d *decisionv1.Decision) { d.Outcome.Reason = "disconnect" }),
		change(func(d *decisionv1.Decision) { d.Outcome.ServedBy = "10.0.0.7:8000" }),
		change(func(d *decisionv1.Decision) { d.Request.Stream = false }),
		change(func(d *decisionv1.Decision) { d.Request.Model = "another" }),
		change(func(d *decisionv1.Decision) { *d.Outcome.CachedTokens = 1 << 63 }),
		change(func(d *decisionv1.Decision) { *d.Outcome.CompletionTokens = 1 }),
	)
	var s fit.Samples
	if err := s.Log(t.Context(), log, fit.Log{Model: "m", Endpoint: "one"}); err != nil {
		t.Fatal(err)
	}
	want := fit.Samples{
		Kept: []simfit.Sample{
			{PromptTokens: 1000, CachedTokens: 160, TTFT: 0.05, OutputTokens: 11, TPOT: 0.01},
			{PromptTokens: 1000, CachedTokens: 160, TTFT: 0.05, OutputTokens: 1},
		},
		Read:    12,
		Skipped: map[string]int{fit.SkippedElse: 2, fit.SkippedKind: 6, fit.SkippedOdd: 1, decisionlog.SkippedTail: 1},
	}
	if diff := cmp.Diff(want, s, cmpopts.IgnoreUnexported(fit.Samples{}), cmpopts.EquateApprox(0, 1e-12)); diff != "" {
		t.Error(diff)
	}
	for _, known := range []string{"one", "10.0.0.9:8000", "other"} {
		if err := s.CheckEndpoint(known); err != nil {
			t.Error(err)
		}
	}
	if err := s.CheckEndpoint("e9"); err == nil || err.Error() != `the log has no endpoint "e9"; it has 10.0.0.7:8000 (other), 10.0.0.9:8000 (one)` {
		t.Error(err)
	}
	busy := fit.Samples{}
	if err := busy.Log(t.Context(), sequence(change(func(d *decisionv1.Decision) { d.Picks[0] = 7 })), fit.Log{}); err != nil || busy.Skipped[fit.SkippedBusy] != 1 {
		t.Errorf("%v, %v", err, busy.Skipped)
	}
}

// samples are those of the model itself, without TPOT and with some that waited.
func samples(t *testing.T, n int) *fit.Samples {
	t.Helper()
	random := rand.New(rand.NewPCG(1, 1))
	c := sim.DefaultParams().Cost
	var s fit.Samples
	for i := range n {
		p := 100 + random.Float64()*8000
		ttft := 2 * (c.Base + c.PrefillToken*p + c.Attention*p*p/2) * (1 + 0.02*random.NormFloat64())
		if i%10 == 0 {
			ttft *= 4
		}
		s.Kept = append(s.Kept, simfit.Sample{PromptTokens: int(p), TTFT: ttft})
	}
	s.Read, s.Skipped = n+4, map[string]int{fit.SkippedBusy: 3, fit.SkippedOdd: 1}
	return &s
}

func report(t *testing.T, s *fit.Samples) *fit.Report {
	t.Helper()
	result, err := simfit.Fit(s.Kept, simfit.Options{Budget: 8192, Default: sim.DefaultParams().Cost, Resamples: 100})
	if err != nil {
		t.Fatal(err)
	}
	return &fit.Report{Samples: s, Result: result, Budget: 8192}
}

// What is printed as a profile makes an engine of the fitted costs.
func TestProfileIsOfTheFit(t *testing.T) {
	r := report(t, samples(t, 300))
	p, err := profile.Read(strings.NewReader(r.Profile()))
	if err != nil {
		t.Fatalf("%v in\n%s", err, r.Profile())
	}
	params := sim.DefaultParams()
	p.Apply(&params)
	if diff := cmp.Diff(r.Result.Cost, params.Cost, cmpopts.EquateApprox(1e-3, 0)); diff != "" {
		t.Error(diff)
	}
	if got, want := params.Cost.PrefillToken, 2*sim.DefaultParams().Cost.PrefillToken; got < 0.97*want || got > 1.03*want {
		t.Errorf("%v per token, want %v", got, want)
	}
	if !strings.Contains(r.Profile(), "default: no sample has any") {
		t.Errorf("it does not say that costs are the default's:\n%s", r.Profile())
	}
}

func TestReports(t *testing.T) {
	r := report(t, samples(t, 300))
	var text, page, figures bytes.Buffer
	for _, err := range []error{r.WriteText(&text, 100), r.WriteHTML(&page), r.WriteJSON(&figures)} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := strings.Count(text.String(), "…"); n > 0 {
		t.Errorf("%d cells are cut:\n%s", n, text.String())
	}
	for _, want := range []string{"304 rows", "300 samples", "3 rows were left out: came while", "1 row was left out: with numbers", "prefillToken", "µs", "maxBatchedTokens: 8192", "30 outliers", "\ndecodeSeq keeps its default: no sample has any"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, text.String())
		}
	}
	if n := strings.Count(page.String(), "<circle"); n < 290 || n > 310 || !strings.Contains(page.String(), "prefers-color-scheme") {
		t.Errorf("%d points in the page", n)
	}
	var read struct {
		Outliers int
		R2       float64
		Cost     []struct {
			Name             string
			Value, Low, High float64
		}
	}
	if err := json.Unmarshal(figures.Bytes(), &read, json.MatchCaseInsensitiveNames(true)); err != nil || read.Outliers != 30 || len(read.Cost) != 5 || read.R2 < 0.99 ||
		read.Cost[1].Name != "prefillToken" || read.Cost[1].Low > read.Cost[1].Value || read.Cost[1].High < read.Cost[1].Value {
		t.Errorf("%v: %+v", err, read)
	}
}

// A report says so where requests waited, or where nothing fits.
func TestWarnings(t *testing.T) {
	s := samples(t, 300)
	random := rand.New(rand.NewPCG(2, 2))
	for i := range s.Kept {
		if i%3 == 0 {
			s.Kept[i].TTFT *= 2 + 10*random.Float64()
		}
	}
	var text bytes.Buffer
	if err := report(t, s).WriteText(&text, 120); err != nil || !strings.Contains(text.String(), "requests waited for others, or that times are noisy") {
		t.Errorf("%v\n%s", err, text.String())
	}
	for i := range s.Kept {
		s.Kept[i].TTFT = 0.1 + random.Float64()
	}
	text.Reset()
	if err := report(t, s).WriteText(&text, 120); err != nil || !strings.Contains(text.String(), "do not describe these times well") {
		t.Errorf("%v\n%s", err, text.String())
	}
}

func FuzzTable(f *testing.F) {
	f.Add([]byte("prompt_tokens,cached_tokens,ttft_ms,tpot_ms,output_tokens\n100,0,20,10,5\n2000,16,120,,\n"))
	f.Add([]byte(`{"prompt_tokens":1000,"cached_tokens":160,"ttft_ms":50,"decoding":3,"context_tokens":70,"in_flight":3}` + "\n{}"))
	f.Add([]byte("\ufeffttft_ms,\"prompt_tokens\",cached_tokens\n1e3,1,0\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		var s fit.Samples
		_ = s.Table(bytes.NewReader(text)) // what came before a fault is there
		for i := range s.Kept {
			if err := s.Kept[i].Validate(); err != nil {
				t.Fatal(err)
			}
		}
		if len(s.Kept) > 500 {
			return
		}
		r, err := simfit.Fit(s.Kept, simfit.Options{Budget: 8192, Default: sim.DefaultParams().Cost, Resamples: 10})
		if err != nil {
			return
		}
		p := sim.DefaultParams()
		if p.Cost = r.Cost; p.Validate() != nil {
			t.Fatal(p.Validate())
		}
		if _, err := profile.Read(strings.NewReader((&fit.Report{Samples: &s, Result: r, Budget: 8192}).Profile())); err != nil {
			t.Fatal(err)
		}
	})
}

// FuzzLog: no record makes it fail, whatever is in it.
func FuzzLog(f *testing.F) {
	b, err := proto.Marshal(decision(1000, 160, 11, 50, 150))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		d := &decisionv1.Decision{}
		if proto.Unmarshal(b, d) != nil {
			t.Skip()
		}
		var s fit.Samples
		if err := s.Log(t.Context(), sequence(d), fit.Log{}); err != nil {
			t.Fatal(err)
		}
		for i := range s.Kept {
			if err := s.Kept[i].Validate(); err != nil {
				t.Fatal(err)
			}
		}
	})
}
