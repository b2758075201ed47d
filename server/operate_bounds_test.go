package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

// Only a try has a body: what else is asked is small, or it is not taken into memory.
func TestWhatIsAskedIsBounded(t *testing.T) {
	p := launch(t, "", nil)
	p.ask(t, "mine")
	o := p.operator(t, insecure.NewCredentials())
	if _, err := o.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: strings.Repeat("x", maxAsked/2)}); status.Code(err) != codes.NotFound {
		t.Errorf("half of what is taken: %v", err)
	}
	large := strings.Repeat("x", 2*maxAsked)
	if _, err := o.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: large}); err == nil || status.Code(err) == codes.NotFound {
		t.Errorf("twice as much: %v", err)
	}
	body := `{"model":"m","messages":[{"role":"user","content":"` + large + `"}]}`
	if _, err := o.DryRun(t.Context(), &schedulerv1.DryRunRequest{BodyText: body, MaxCandidates: 1}); err != nil {
		t.Errorf("a try of as much: %v", err)
	}
	if _, err := o.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: "mine"}); err != nil {
		t.Errorf("after that: %v", err)
	}
}

// faulty is a service of faults.
type faulty struct {
	schedulerv1.UnimplementedSchedulerServiceServer
}

func (faulty) DryRun(context.Context, *schedulerv1.DryRunRequest) (*schedulerv1.DryRunResponse, error) {
	panic("fault")
}

func (faulty) TailDecisions(*schedulerv1.TailDecisionsRequest, grpc.ServerStreamingServer[schedulerv1.TailDecisionsResponse]) error {
	panic("fault")
}

// A fault while answering an operator is told to the operator and the log, and ends nothing else.
func TestAdminPortSurvivesAPanic(t *testing.T) {
	var log strings.Builder
	a := &App{logger: slog.New(slog.NewTextHandler(&log, nil))}
	g := a.newAdminGRPC()
	schedulerv1.RegisterSchedulerServiceServer(g, faulty{})
	conn := a.dialAdmin(t, withGRPC(g, http.NotFoundHandler(), trialTimeout))
	client := schedulerv1.NewSchedulerServiceClient(conn)
	if _, err := client.DryRun(t.Context(), &schedulerv1.DryRunRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("a call: %v", err)
	}
	tail, err := client.TailDecisions(t.Context(), &schedulerv1.TailDecisionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tail.Recv(); status.Code(err) != codes.Internal {
		t.Errorf("a stream: %v", err)
	}
	for _, want := range []string{schedulerv1.SchedulerService_DryRun_FullMethodName, schedulerv1.SchedulerService_TailDecisions_FullMethodName, "panic=fault"} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("%s is not logged: %s", want, log.String())
		}
	}
}

// Who begins to try something and sends nothing keeps the others waiting for a while only.
func TestSlowTriesAreCutOff(t *testing.T) {
	a := &App{logger: slog.New(slog.DiscardHandler)}
	g := a.newAdminGRPC()
	schedulerv1.RegisterSchedulerServiceServer(g, schedulerv1.UnimplementedSchedulerServiceServer{})
	conn := a.dialAdmin(t, withGRPC(g, http.NotFoundHandler(), 100*time.Millisecond))
	var slow []grpc.ClientStream
	for range trials {
		s, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, schedulerv1.SchedulerService_DryRun_FullMethodName)
		if err != nil {
			t.Fatal(err)
		}
		slow = append(slow, s)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := schedulerv1.NewSchedulerServiceClient(conn).LookupPrefix(ctx, &schedulerv1.LookupPrefixRequest{}); status.Code(err) != codes.Unimplemented {
		t.Errorf("behind those who send nothing: %v", err)
	}
	for _, s := range slow {
		if err := s.RecvMsg(&schedulerv1.DryRunResponse{}); err == nil || ctx.Err() != nil {
			t.Errorf("who sends nothing gets %v", err)
		}
	}
}

// dialAdmin serves a handler as the admin port does, and connects to it.
func (a *App) dialAdmin(t *testing.T, h http.Handler) *grpc.ClientConn {
	t.Helper()
	s := httptest.NewUnstartedServer(nil)
	s.Config = newHTTPServer(h, nil, a.logger)
	s.Start()
	t.Cleanup(s.Close)
	conn, err := grpc.NewClient(s.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}
