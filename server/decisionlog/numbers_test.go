package decisionlog

import (
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// possible puts a number that a decision can have in the place of each that none has.
func possible(m protoreflect.Message) {
	tame := func(v float64) float64 {
		if math.Abs(v) <= maxNumber {
			return v
		}
		return 0.25
	}
	m.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case fd.IsMap():
		case fd.IsList() && fd.Message() != nil:
			for i := range v.List().Len() {
				possible(v.List().Get(i).Message())
			}
		case fd.IsList() && fd.Kind() == protoreflect.DoubleKind:
			for i := range v.List().Len() {
				v.List().Set(i, protoreflect.ValueOfFloat64(tame(v.List().Get(i).Float())))
			}
		case fd.Message() != nil:
			possible(v.Message())
		case fd.Kind() == protoreflect.DoubleKind:
			m.Set(fd, protoreflect.ValueOfFloat64(tame(v.Float())))
		}
		return true
	})
}

// TestImpossibleNumbers: a row with a number that no decision has is said, with its place, in all formats, and costs no other row.
func TestImpossibleNumbers(t *testing.T) {
	for _, v := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), math.MaxFloat64, -1e308, 1.01e18} {
		for path, d := range map[string]*decisionv1.Decision{
			"runner_up_margin":                             {RunnerUpMargin: proto.Float64(v)},
			"gates[1].gap_ms":                              {Gates: []*decisionv1.GateReport{{GapMs: proto.Float64(1e18)}, {GapMs: proto.Float64(v)}}},
			"gates[0].bar_ms":                              {Gates: []*decisionv1.GateReport{{BarMs: proto.Float64(v)}}},
			"outcome.ttft_ms":                              {Outcome: &decisionv1.Outcome{TtftMs: proto.Float64(v)}},
			"candidates[0].scores[2]":                      {Candidates: []*decisionv1.Candidate{{Scores: []float64{1, 0.5, v}}}},
			"candidates[0].learnt_rates[0].confidence":     {Candidates: []*decisionv1.Candidate{{LearntRates: []*decisionv1.LearntRates{{Confidence: v}}}}},
			"request.tokenized_prompts[0].bytes_per_token": {Request: &decisionv1.Request{TokenizedPrompts: []*decisionv1.TokenizedPrompt{{BytesPerToken: v}}}},
		} {
			d.Id = 2
			all := []*decisionv1.Decision{{Id: 1, RunnerUpMargin: proto.Float64(-1e18)}, d, {Id: 3}}
			folder := t.TempDir()
			for name, content := range map[string][]byte{"a.jsonl": inLines(t, all...), "a.parquet": inParquet(t, all)} {
				file := filepath.Join(folder, name)
				write(t, file, content)
				checkImpossible(t, file, path)
			}
		}
	}
}

// checkImpossible reads a file whose second of three rows has an impossible number in a field.
func checkImpossible(t *testing.T, file, field string) {
	t.Helper()
	r, err := NewReader(file)
	if err != nil {
		t.Fatal(err)
	}
	row := 0
	for d, err := range r.Decisions(t.Context()) {
		row++
		skip := new(Skip)
		switch {
		case row != 2:
			if err != nil || d.GetId() != uint64(row) {
				t.Errorf("%s: row %d is %v, %v", file, row, d, err)
			}
		case !errors.As(err, &skip) || skip.File != file || skip.Row != 2 || skip.Reason != SkippedNumber || d != nil ||
			!strings.Contains(err.Error(), ": row 2: an impossible number: "+field+": must be from -1e18 to 1e18, got "):
			t.Errorf("%s: row 2 is %v, %v", file, d, err)
		}
	}
	if row != 3 {
		t.Errorf("%s has %d rows", file, row)
	}
}
