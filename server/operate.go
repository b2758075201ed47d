package server

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"runtime/debug"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/decisions"
	"github.com/sluice-epp/sluice/server/extproc"
	"github.com/sluice-epp/sluice/server/operator"
	adminpage "github.com/sluice-epp/sluice/server/page"
)

// observer is told of picks and ends.
func (a *App) observer() extproc.Observer {
	a.decisions = decisions.NewRing(decisions.Options{MaxBytes: int(a.config().Telemetry.MaxDecisionBytes), Now: time.Now})
	all := observers{a.metrics, a.decisions, a.shadow}
	if a.decisionLog != nil {
		all = append(all, a.decisionLog)
	}
	return all
}

// newOperator makes the service of the admin port and the gRPC server that it is reached by.
func (a *App) newOperator() {
	a.operator = operator.New(operator.Config{
		Decisions: a.decisions, DryRun: a.extproc.DryRun, Streams: a.extproc.ListStreams,
		Pool: a.pool, Engines: a.engines, Now: a.now, Logger: a.logger,
		Scheduler: func() *scheduling.Scheduler { return a.current.Load().scheduler },
		Running:   a.describe, Level: a.options.Level, Drain: a.askToDrain, State: a.state,
	})
	a.adminGRPC = a.newAdminGRPC()
	a.page = adminpage.New(adminpage.Config{
		Explainer: a.operator, Knowledge: a.operator, Decisions: a.decisions, Process: a.process, Registerer: a.options.Registry,
	})
	schedulerv1.RegisterSchedulerServiceServer(a.adminGRPC, a.operator)
	reflection.Register(a.adminGRPC)
}

// grpcOverhead is how much larger a message may be than the request body in it, in bytes.
const grpcOverhead = 1 << 20

// describe says what is in force.
func (a *App) describe() operator.Running {
	r := a.current.Load()
	return operator.Running{
		YAML: r.effective, Hash: r.hash, File: a.options.ConfigPath, Since: r.since, Graph: r.scheduler.Describe(), Version: a.options.Version,
	}
}

// process is what the page says of the process.
func (a *App) process() adminpage.Process {
	return adminpage.Process{State: stateWords[a.state()], Uptime: a.now(), OpenStreams: a.extproc.OpenStreams()}
}

var stateWords = map[schedulerv1.ProcessState]string{
	schedulerv1.ProcessState_PROCESS_STATE_STARTING: "starting",
	schedulerv1.ProcessState_PROCESS_STATE_READY:    "ready",
	schedulerv1.ProcessState_PROCESS_STATE_DRAINING: "draining",
}

// state is whether the process wants requests.
func (a *App) state() schedulerv1.ProcessState {
	a.turning.Lock()
	defer a.turning.Unlock()
	switch {
	case a.draining:
		return schedulerv1.ProcessState_PROCESS_STATE_DRAINING
	case a.Ready():
		return schedulerv1.ProcessState_PROCESS_STATE_READY
	}
	return schedulerv1.ProcessState_PROCESS_STATE_STARTING
}

// askToDrain makes Run drain, as SIGTERM does.
func (a *App) askToDrain() (openStreams int64, gracePeriod time.Duration) {
	a.asking.Do(func() { close(a.asked) })
	s := a.config().Server
	return a.extproc.OpenStreams(), s.DrainDelay + s.DrainTimeout
}

func (a *App) newAdminGRPC() *grpc.Server {
	return grpc.NewServer(grpc.MaxRecvMsgSize(a.limits.body+grpcOverhead),
		grpc.ChainUnaryInterceptor(a.survive, guard), grpc.StreamInterceptor(a.surviveStream))
}

// survive makes an error of a panic. Explaining runs plugins on inputs that no request had; a fault that shows only there must
// not end the requests that are being served.
func (a *App) survive(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (answer any, err error) {
	defer func() {
		if p := recover(); p != nil {
			err = a.survived(info.FullMethod, p)
		}
	}()
	return handle(ctx, r)
}

// surviveStream is survive for streams.
func (a *App) surviveStream(service any, stream grpc.ServerStream, info *grpc.StreamServerInfo, handle grpc.StreamHandler) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = a.survived(info.FullMethod, p)
		}
	}()
	return handle(service, stream)
}

func (a *App) survived(method string, panicked any) error {
	a.logger.Error("panic while answering an operator", "method", method, "panic", fmt.Sprint(panicked), "stack", string(debug.Stack()))
	return status.Error(codes.Internal, "the endpoint picker failed on this call; its log says where")
}

// The bounds of what is received over the admin port.
const (
	// trials is how many requests are tried at a time: each takes the memory of its body.
	trials = 4
	// trialTimeout is how long one that is tried may take to come and its answer to go, so that nobody keeps others waiting.
	trialTimeout = 30 * time.Second
	// maxAsked is what the messages of any other call may have together, in bytes.
	maxAsked = 1 << 20
)

// withGRPC serves gRPC calls with a gRPC server and all else with a handler, on one port. patience is for what is tried.
func withGRPC(g *grpc.Server, other http.Handler, patience time.Duration) http.Handler {
	trying := make(chan struct{}, trials)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ProtoMajor != 2 || !strings.HasPrefix(r.Header.Get("content-type"), "application/grpc") {
			other.ServeHTTP(w, r)
			return
		}
		switch r.URL.Path {
		case schedulerv1.SchedulerService_DryRun_FullMethodName, schedulerv1.SchedulerService_LookupPrefix_FullMethodName:
			select {
			case trying <- struct{}{}:
				defer func() { <-trying }()
			case <-r.Context().Done():
				return
			}
			control, over := http.NewResponseController(w), time.Now().Add(patience)
			_ = errors.Join(control.SetReadDeadline(over), control.SetWriteDeadline(over)) // a writer without deadlines is a test's
		default:
			r.Body = http.MaxBytesReader(w, r.Body, maxAsked)
		}
		g.ServeHTTP(w, r)
	})
}

// guard lets only those change the process who are on the same machine or have shown a certificate: the port may be open to
// a whole cluster for its metrics.
func guard(ctx context.Context, r any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
	switch info.FullMethod {
	case schedulerv1.SchedulerService_SetLogLevel_FullMethodName, schedulerv1.SchedulerService_Drain_FullMethodName:
		if !mayChange(ctx) {
			return nil, status.Error(codes.PermissionDenied,
				"this changes the process: call it from the same machine, or with a client certificate that server.adminTLS.clientCAFile has signed")
		}
	}
	return handle(ctx, r)
}

func mayChange(ctx context.Context) bool {
	p, ok := peer.FromContext(ctx)
	if !ok {
		return false
	}
	if t, ok := p.AuthInfo.(credentials.TLSInfo); ok && len(t.State.VerifiedChains) > 0 {
		return true
	}
	host, _, err := net.SplitHostPort(p.Addr.String())
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}
