package gatereport_test

import (
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/gatereport"
)

// learntLog is a log of a gate that broke even by 2,000 tokens a second, at its own prices.
func learntLog(t *testing.T, alpha float64) []*decisionv1.Decision {
	t.Helper()
	all := fixtureLog(t)
	for _, d := range all {
		d.Columns = append(d.Columns, &decisionv1.Column{DataType: "LearntRates", Producer: "rates"})
		for _, c := range d.GetCandidates() {
			c.LearntRates = []*decisionv1.LearntRates{{PrefillMsPerToken: 0.5, WaitMsPerToken: 0.5, Confidence: 1}}
		}
		for _, g := range d.GetGates() {
			if g.GapTokens != nil {
				g.GapMs = proto.Float64(g.GetGapTokens() / 2)
			}
			g.Alpha, g.Kappa, g.DecodePrice = &alpha, proto.Float64(0), proto.Float64(0.1)
		}
	}
	return all
}

// The throughput with which static bars are tried is the one that the log holds, and that is said.
func TestLearntThroughput(t *testing.T) {
	all := learntLog(t, 1)
	s, err := gatereport.Suggest(t.Context(), sequence(all), options())
	if err != nil || s.Peak != 2000 || len(s.BarsMs) < 3 {
		t.Fatalf("%v, %+v", err, s)
	}
	for want, set := range map[string]func(*gatereport.Options){
		"tried at 2,000 tokens per second, the median of the prefill rates": func(o *gatereport.Options) { o.Learnt = s.Peak },
		"tried at 900 tokens per second, as --peak says":                    func(o *gatereport.Options) { o.Learnt, o.Peak = s.Peak, 900 },
		"tried at 15,928 tokens per second, the default":                    func(*gatereport.Options) {},
	} {
		o := options()
		set(&o)
		r := reportOn(t, all, o)
		if notes := strings.Join(r.Notes, "\n"); !strings.Contains(notes, want) {
			t.Errorf("no %q in %s", want, notes)
		}
		if o.Learnt > 0 && o.Peak == 0 {
			n := uint64(0)
			for _, gap := range fixtureGaps() {
				if gap*fixturePeak/1000*1000/2000 > 18000 {
					n++
				}
			}
			if got := r.Gates[0].WhatIf[2].Released; got != n {
				t.Errorf("%d are released by 18 s at the learnt throughput, want %d", got, n)
			}
		}
	}
}

// A gate's prices are its record's: its comparison comes out of the columns and nothing is asked. Without them it is asked.
func TestRecordedPrices(t *testing.T) {
	all := learntLog(t, 5)
	r := reportOn(t, all, options())
	g := r.Gates[0]
	if notes := strings.Join(r.Notes, "\n"); g.Checked != 702 || g.Reconstructed != 702 || strings.Contains(notes, "are its prices") {
		t.Errorf("%d of %d, notes %s", g.Reconstructed, g.Checked, notes)
	}
	other := reportOn(t, learntLog(t, 0), options()).Gates[0]
	even := len(g.WhatIf) - 1
	if g.WhatIf[even].Released >= other.WhatIf[even].Released {
		t.Errorf("breakEven releases %d at α 5 and %d at α 0", g.WhatIf[even].Released, other.WhatIf[even].Released)
	}
	// Prices that cannot be are not taken.
	all[1].Gates[0].Alpha = proto.Float64(-3)
	all[2].Gates[0].AffinityThreshold = proto.Float64(7)
	reportOn(t, all, options())
}

// A log without a gap is looked at as any log was.
func TestSuggestWithoutGaps(t *testing.T) {
	s, err := gatereport.Suggest(t.Context(), sequence(nil), options())
	if err != nil || s.Peak != 0 || s.BehindMs != 5000 || len(s.BarsMs) != 5 {
		t.Errorf("%v, %+v", err, s)
	}
}
