package top

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/grpc"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

// Source is what a view asks: the service of the admin port.
type Source interface {
	ListEndpoints(ctx context.Context, in *schedulerv1.ListEndpointsRequest, opts ...grpc.CallOption) (*schedulerv1.ListEndpointsResponse, error)
	GetIndexStats(ctx context.Context, in *schedulerv1.GetIndexStatsRequest, opts ...grpc.CallOption) (*schedulerv1.GetIndexStatsResponse, error)
	TailDecisions(ctx context.Context, in *schedulerv1.TailDecisionsRequest, opts ...grpc.CallOption) (grpc.ServerStreamingClient[schedulerv1.TailDecisionsResponse], error)
}

const (
	// askPatience is how long an answer is waited for.
	askPatience = 5 * time.Second
	// tailPause is between two streams of decisions.
	tailPause = time.Second
	// olderDecisions are how many a stream begins with that were made before it.
	olderDecisions = 100
)

// feed brings a state what a source says.
type feed struct {
	source Source
	state  *state
	words  func(error) error
}

// ask asks for the endpoints and the indices once.
func (f *feed) ask(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	endpoints, err := f.source.ListEndpoints(ctx, &schedulerv1.ListEndpointsRequest{})
	if err != nil {
		return f.words(err)
	}
	indices, err := f.source.GetIndexStats(ctx, &schedulerv1.GetIndexStatsRequest{})
	if err != nil {
		return f.words(err)
	}
	f.state.told(endpoints, indices.GetIndices(), time.Now())
	return nil
}

// poll asks at every interval, until the context ends.
func (f *feed) poll(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := f.ask(ctx); err != nil && ctx.Err() == nil {
			f.state.failed(err.Error())
		}
	}
}

// follow reads the decisions, from one stream after the other, until the context ends.
func (f *feed) follow(ctx context.Context) {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-pause.C:
		}
		_ = f.tail(ctx) // what the source does not answer, poll says
		pause.Reset(tailPause)
	}
}

// tail reads one stream of decisions to its end.
func (f *feed) tail(ctx context.Context) error {
	stream, err := f.source.TailDecisions(ctx, &schedulerv1.TailDecisionsRequest{Recent: olderDecisions})
	if err != nil {
		return err
	}
	f.state.tailed(olderDecisions)
	for older := olderDecisions; ; older-- {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		at := time.Now()
		if was := time.Unix(0, m.GetExplanation().GetDecision().GetTimeUnixNano()); older > 0 && was.Before(at) {
			at = was
		}
		f.state.decided(m.GetExplanation(), m.GetMissed(), at)
	}
}

// guarded runs a function, and hands its panic on as an error: the terminal has to be restored first.
func guarded(failed chan<- error, f func()) {
	defer func() {
		if cause := recover(); cause != nil {
			select {
			case failed <- fmt.Errorf("internal fault: %v", cause):
			default:
			}
		}
	}()
	f()
}
