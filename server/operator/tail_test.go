package operator_test

import (
	"context"
	"errors"
	"io"
	"net"
	"runtime"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/operator"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// dial serves the bench's service and returns a client.
func (b *bench) dial(t *testing.T) schedulerv1.SchedulerServiceClient {
	t.Helper()
	l := bufconn.Listen(1 << 16)
	g := grpc.NewServer()
	schedulerv1.RegisterSchedulerServiceServer(g, b.Service)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	conn, err := grpc.NewClient("passthrough:///", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return schedulerv1.NewSchedulerServiceClient(conn)
}

// next is the id of the decision that comes next, and how many were missed before it.
func next(t *testing.T, s grpc.ServerStreamingClient[schedulerv1.TailDecisionsResponse]) (id, missed uint64) {
	t.Helper()
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	return m.GetExplanation().GetDecision().GetId(), m.GetMissed()
}

func TestTailDecisions(t *testing.T) {
	b := newBench(t)
	client := b.dial(t)
	for range 3 {
		b.decide(t, "", true)
	}
	s, err := client.TailDecisions(t.Context(), &schedulerv1.TailDecisionsRequest{Recent: 2, Limit: 4})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []uint64{2, 3, 4, 5} {
		if want > 3 {
			b.decide(t, "", false)
		}
		if id, missed := next(t, s); id != want || missed != 0 {
			t.Errorf("told of %d with %d missed, want %d", id, missed, want)
		}
	}
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after as many as were asked for: %v", err)
	}
}

func TestTailDecisionsLeavesCandidatesOut(t *testing.T) {
	b := newBench(t)
	client := b.dial(t)
	b.decide(t, "", false)
	s, err := client.TailDecisions(t.Context(), &schedulerv1.TailDecisionsRequest{Recent: 1, Model: "m", Endpoint: "10.0.0.1:8000"})
	if err != nil {
		t.Fatal(err)
	}
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	if n := len(m.GetExplanation().GetDecision().GetCandidates()); n != 3 || m.GetExplanation().GetCandidatesLeftOut() != 2 {
		t.Errorf("%d candidates", n)
	}
}

func TestTailDecisionsEndsWithTheService(t *testing.T) {
	b := newBench(t)
	client := b.dial(t)
	b.decide(t, "", false)
	s, err := client.TailDecisions(t.Context(), &schedulerv1.TailDecisionsRequest{Recent: 1, Full: true})
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := next(t, s); id != 1 {
		t.Errorf("told of %d", id)
	}
	b.Close()
	if _, err := s.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("after the end: %v", err)
	}
}

// A request's id is from its beginning: one whose body takes long is decided after later ones, and is told of all the same.
func TestTailDecisionsInTheOrderInWhichTheyAreMade(t *testing.T) {
	b := newBench(t)
	client := b.dial(t)
	b.id = 100
	b.decide(t, "", false)
	s, err := client.TailDecisions(t.Context(), &schedulerv1.TailDecisionsRequest{Recent: 1})
	if err != nil {
		t.Fatal(err)
	}
	if id, _ := next(t, s); id != 101 {
		t.Fatalf("told of %d first", id)
	}
	for _, want := range []uint64{50, 110, 109} {
		b.id = want - 1
		b.decide(t, "", false)
		if id, missed := next(t, s); id != want || missed != 0 {
			t.Errorf("told of %d with %d missed, want %d", id, missed, want)
		}
	}
}

func TestTailDecisionsAreBounded(t *testing.T) {
	b := newBench(t)
	client := b.dial(t)
	b.decide(t, "", false)
	follow := func(ctx context.Context) grpc.ServerStreamingClient[schedulerv1.TailDecisionsResponse] {
		s, err := client.TailDecisions(ctx, &schedulerv1.TailDecisionsRequest{Recent: 1})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	first, leave := context.WithCancel(t.Context())
	for i := range operator.MaxTails {
		ctx := t.Context()
		if i == 0 {
			ctx = first
		}
		next(t, follow(ctx))
	}
	if _, err := follow(t.Context()).Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("one too many: %v", err)
	}
	if open, refused := b.Tails(); open != operator.MaxTails || refused != 1 {
		t.Errorf("%d are open, %d were refused", open, refused)
	}
	leave()
	for { // once the server has seen it
		if open, _ := b.Tails(); open < operator.MaxTails {
			break
		}
		if err := t.Context().Err(); err != nil {
			t.Fatal(err)
		}
		runtime.Gosched()
	}
	next(t, follow(t.Context()))
}
