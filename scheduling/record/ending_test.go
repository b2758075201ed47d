package record_test

import (
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// TestEndingsComeBack as they were recorded.
func TestEndingsComeBack(t *testing.T) {
	for _, want := range []record.Ending{
		{Usage: scheduling.UnknownUsage, FirstToken: -1},
		{Reason: scheduling.EndDisconnect, Status: 200, Usage: scheduling.UnknownUsage, FirstToken: time.Second, Total: 2 * time.Second},
		{Reason: scheduling.EndError, Status: 503, Usage: scheduling.UnknownUsage, ServedBy: "10.0.0.2:8000", FirstToken: -1, Total: time.Millisecond},
		{Reason: scheduling.EndUnseen, Status: 200, Usage: scheduling.UnknownUsage, Total: time.Hour},
		{Status: 200, Usage: scheduling.Usage{PromptTokens: 100, CachedTokens: 0, CompletionTokens: 7}, FirstToken: 1500 * time.Microsecond, Total: time.Minute},
	} {
		if diff := cmp.Diff(want, record.EndingFrom(want.Record())); diff != "" {
			t.Errorf("-want +got:\n%s", diff)
		}
	}
}

// TestEndingsThatCannotBe: a record from outside may hold anything.
func TestEndingsThatCannotBe(t *testing.T) {
	want := record.Ending{Reason: scheduling.EndDisconnect, Usage: scheduling.UnknownUsage, FirstToken: -1}
	for _, ms := range []float64{math.NaN(), math.Inf(1), math.Inf(-1), -1, math.MaxFloat64} {
		o := &decisionv1.Outcome{Reason: "melted", TtftMs: proto.Float64(ms), TotalMs: ms, CompletionTokens: proto.Uint64(math.MaxUint64)}
		if diff := cmp.Diff(want, record.EndingFrom(o)); diff != "" {
			t.Errorf("%v (-want +got):\n%s", ms, diff)
		}
	}
}
