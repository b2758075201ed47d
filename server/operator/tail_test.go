package operator_test

import (
	"context"
	"errors"
	"io"
	"net"
	"testing"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
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
