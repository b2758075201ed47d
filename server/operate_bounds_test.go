package server

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

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
	s := httptest.NewUnstartedServer(nil)
	s.Config = newHTTPServer(withGRPC(g, http.NotFoundHandler()), nil, a.logger)
	s.Start()
	defer s.Close()
	conn, err := grpc.NewClient(s.Listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
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
