package operator_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"google.golang.org/protobuf/proto"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
	"github.com/sluice-epp/sluice/server/decisions"
	"github.com/sluice-epp/sluice/server/extproc"
	"github.com/sluice-epp/sluice/server/operator"
)

// bench decides about requests to five endpoints, of which the first holds most of every prompt.
type bench struct {
	*operator.Service
	scheduler *scheduling.Scheduler
	pool      *scheduling.Pool
	ring      *decisions.Ring
	id        uint64
}

func newBench(t *testing.T) *bench { return newBenchOf(t, 5) }

// newBenchOf has so many endpoints, of which the fifth drains.
func newBenchOf(t *testing.T, endpoints int) *bench {
	t.Helper()
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, endpoints)}
	for i := range table.Endpoints {
		e := &table.Endpoints[i]
		cached := max(0, 90-40*i)
		e.Load = &scheduling.InFlightLoad{Requests: 1, Tokens: 100}
		e.Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(cached, 100, 16))
		e.Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(16 * (100 - cached)))
	}
	table.Endpoints[4].State = scheduling.EndpointDraining
	types := append(append(scorer.Types(), picker.Types()...), gate.Type())
	s := table.Build(t, types, []scheduling.Spec{{Name: "gate", Type: gate.TypeName, Decode: schedtest.YAML("{explorationProbability: 0}")}},
		"gate", "prefill-cost-scorer", "max-score-picker")
	s.SetConfigHash("abc")
	b := &bench{scheduler: s, pool: table.Pool(), ring: decisions.NewRing(decisions.Options{
		MaxBytes: 64 << 20, Now: time.Now,
	})}
	server := extproc.New(extproc.Config{
		Pool: b.pool, Scheduler: func() *scheduling.Scheduler { return s }, Now: func() time.Duration { return 0 },
	})
	t.Cleanup(server.Close)
	b.Service = operator.New(operator.Config{
		Decisions: b.ring, DryRun: server.DryRun,
	})
	t.Cleanup(b.Service.Close)
	return b
}

func (b *bench) decide(t *testing.T, requestID string, ends bool) (id uint64) {
	t.Helper()
	b.id++
	c := b.scheduler.Begin(b.pool.Snapshot(), &scheduling.Request{
		ID: b.id, Model: "m", Choices: 1, Headers: []scheduling.Header{{Name: "x-request-id", Value: []byte(requestID)}},
	}, 0)
	b.scheduler.Produce(t.Context(), c)
	f, err := b.scheduler.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	b.ring.Picked(c, nil, 0)
	b.scheduler.End(c)
	o := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 1600, CachedTokens: 1440, CompletionTokens: -1}}
	if ends {
		b.ring.Ended(f, o, 20*time.Millisecond, time.Second)
	}
	f.Done(o, 0)
	return b.id
}

func TestExplain(t *testing.T) {
	b := newBench(t)
	ended := b.decide(t, "one", true)
	b.decide(t, "two", false)
	b.decide(t, "two", false)

	a, err := b.Explain(t.Context(), &schedulerv1.ExplainRequest{Id: ended})
	if err != nil {
		t.Fatal(err)
	}
	x := a.GetExplanations()[0]
	if got := x.GetDecision(); got.GetClientRequestId() != "one" || got.GetConfigHash() != "abc" || len(got.GetCandidates()) != 5 || got.GetPicks()[0] != 0 {
		t.Errorf("%v", got)
	}
	if !strings.HasPrefix(x.GetReason(), "10.0.0.1:8000 holds 90 of 100 blocks of the prompt (90 %)") || len(x.GetFlips()) == 0 {
		t.Errorf("%q, %d flips", x.GetReason(), len(x.GetFlips()))
	}
	if len(x.GetLeft()) != 1 || len(x.GetLeft()[0].GetOrdinals()) != 1 || x.GetLeft()[0].GetOrdinals()[0] != 0 || x.GetLeft()[0].GetFilter() != "gate" {
		t.Errorf("left: %v", x.GetLeft())
	}
	o := x.GetDecision().GetOutcome()
	if o.GetReason() != "complete" || o.GetStatus() != 200 || o.GetTtftMs() != 20 || o.GetTotalMs() != 1000 || o.GetCachedTokens() != 1440 || o.CompletionTokens != nil {
		t.Errorf("outcome: %v", o)
	}

	for _, tc := range []struct {
		request *schedulerv1.ExplainRequest
		ids     []uint64
		left    uint32
	}{
		{&schedulerv1.ExplainRequest{RequestId: "two"}, []uint64{3, 2}, 0},
		{&schedulerv1.ExplainRequest{RequestId: "two", Limit: 1}, []uint64{3}, 1},
		{&schedulerv1.ExplainRequest{}, []uint64{3}, 2},
		{&schedulerv1.ExplainRequest{Limit: 1000}, []uint64{3, 2, 1}, 0},
	} {
		a, err := b.Explain(t.Context(), tc.request)
		if err != nil {
			t.Fatal(err)
		}
		if len(a.GetExplanations()) != len(tc.ids) || a.GetLeftOut() != tc.left {
			t.Errorf("%v: %d, %d left out", tc.request, len(a.GetExplanations()), a.GetLeftOut())
			continue
		}
		for i, x := range a.GetExplanations() {
			if x.GetDecision().GetId() != tc.ids[i] || x.GetDecision().GetOutcome() != nil && tc.ids[i] != ended {
				t.Errorf("%v: number %d is %d with the outcome %v", tc.request, i, x.GetDecision().GetId(), x.GetDecision().GetOutcome())
			}
		}
	}
}

func TestExplainLeavesCandidatesOut(t *testing.T) {
	b := newBench(t)
	id := b.decide(t, "", false)
	a, err := b.Explain(t.Context(), &schedulerv1.ExplainRequest{Id: id, MaxCandidates: 2})
	if err != nil {
		t.Fatal(err)
	}
	x := a.GetExplanations()[0]
	c := x.GetDecision().GetCandidates()
	if len(c) != 2 || x.GetCandidatesLeftOut() != 3 || c[0].GetOrdinal() != 0 || c[1].GetOrdinal() != x.GetDecision().GetGates()[0].GetOther() {
		t.Errorf("%d are left out, left are %v", x.GetCandidatesLeftOut(), c)
	}
}

func TestExplainWithoutDecision(t *testing.T) {
	b := newBench(t)
	for _, tc := range []struct {
		request *schedulerv1.ExplainRequest
		code    codes.Code
		text    string
	}{
		{&schedulerv1.ExplainRequest{}, codes.NotFound, "there was no decision yet"},
		{&schedulerv1.ExplainRequest{RequestId: "abcdef"}, codes.NotFound, "1 are kept, 1 to 1; at most 4096 (telemetry.maxDecisionBytes); near it: abc"},
		{&schedulerv1.ExplainRequest{Id: 99}, codes.NotFound, "decision 99 is not there: the newest is 1; 1 are kept, 1 to 1; at most 4096"},
		{&schedulerv1.ExplainRequest{Id: 1, RequestId: "a"}, codes.InvalidArgument, "give one of them"},
	} {
		_, err := b.Explain(t.Context(), tc.request)
		if status.Code(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%v: %v", tc.request, err)
		}
		if tc.request.GetId() == 0 && tc.request.GetRequestId() == "" {
			b.decide(t, "abc", false)
		}
	}
}

// An answer stays within what a client takes, and says what it leaves out.
func TestExplainIsBounded(t *testing.T) {
	b := newBenchOf(t, 600)
	const n = 100
	for range n {
		b.decide(t, "same", false)
	}
	a, err := b.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: "same"})
	if err != nil {
		t.Fatal(err)
	}
	got := len(a.GetExplanations())
	if size := proto.Size(a); size > 3<<20 || got == 0 || got == n || got+int(a.GetLeftOut()) != n {
		t.Errorf("%d bytes for %d decisions, %d left out", size, got, a.GetLeftOut())
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := b.Explain(gone, &schedulerv1.ExplainRequest{RequestId: "same"}); status.Code(err) != codes.Canceled {
		t.Errorf("for somebody who has gone: %v", err)
	}
	if a, err = b.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: "same", MaxCandidates: 3}); err != nil || len(a.GetExplanations()) != n {
		t.Errorf("shortened there are %d: %v", len(a.GetExplanations()), err)
	}
}
