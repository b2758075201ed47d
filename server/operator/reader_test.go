package operator_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/decisions"
)

// reader takes what a tail sends; take is called for each.
type reader struct {
	grpc.ServerStreamingServer[schedulerv1.TailDecisionsResponse]
	ctx  context.Context //nolint:containedctx // a stream has one
	take func(*schedulerv1.TailDecisionsResponse)
}

func (r reader) Context() context.Context { return r.ctx }

func (r reader) Send(m *schedulerv1.TailDecisionsResponse) error {
	r.take(m)
	return nil
}

// A reader that is slow learns how many decisions it was not told of.
func TestSlowReadersKnowWhatTheyMissed(t *testing.T) {
	b := newBench(t)
	const meanwhile = decisions.MaxDecisions + 1000 // more than wait for a reader, and than are kept
	b.decide(t, "", false)
	slow, stop := make(chan struct{}), make(chan struct{})
	var deciding sync.WaitGroup
	deciding.Go(func() {
		<-slow
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				b.decide(t, "", false)
			}
		}
	})
	var last, missed uint64
	err := b.TailDecisions(&schedulerv1.TailDecisionsRequest{Recent: 1, Limit: 3}, reader{ctx: t.Context(), take: func(m *schedulerv1.TailDecisionsResponse) {
		id := m.GetExplanation().GetDecision().GetId()
		if id != last+1+m.GetMissed() {
			t.Errorf("%d follows %d, and %d were missed", id, last, m.GetMissed())
		}
		last, missed = id, missed+m.GetMissed()
		if id == 1 {
			for range meanwhile {
				b.decide(t, "", false)
			}
			close(slow)
		}
	}})
	close(stop)
	deciding.Wait()
	// On a busy machine it may miss some of those that are made afterwards, too; it knows of each.
	if err != nil || missed < meanwhile || last != missed+3 {
		t.Errorf("%d missed up to the decision %d, want %d or more, and 3 that were told: %v", missed, last, meanwhile, err)
	}
}

// Decisions of before that are told of again as they are made come once.
func TestRecentDecisionsComeOnce(t *testing.T) {
	b := newBench(t)
	b.decide(t, "", false)
	stop := make(chan struct{})
	var deciding sync.WaitGroup
	deciding.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				b.decide(t, "", true)
			}
		}
	})
	for range 40 {
		told := map[uint64]bool{}
		err := b.TailDecisions(&schedulerv1.TailDecisionsRequest{Recent: 20, Limit: 40}, reader{ctx: t.Context(), take: func(m *schedulerv1.TailDecisionsResponse) {
			d := m.GetExplanation().GetDecision()
			if told[d.GetId()] {
				t.Errorf("decision %d comes twice", d.GetId())
			}
			told[d.GetId()] = true
			if d.GetOutcome() != nil {
				t.Errorf("decision %d has an outcome, which those that are told of at once have not", d.GetId())
			}
		}})
		if err != nil {
			t.Fatal(err)
		}
	}
	close(stop)
	deciding.Wait()
}
