package server

import (
	"context"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/admin"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"
)

// The names under which health is asked for: the empty one and the service's, by proxies; liveness and readiness, by
// probes; inference-extension, by the manifests of the Gateway API's inference extension.
const (
	livenessName  = "liveness"
	readinessName = "readiness"
)

var readinessNames = []string{"", readinessName, extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "inference-extension"}

// healthServer tells who asks, and who watches until endWatches is called: whoever watches for good would keep a drain
// from its end.
type healthServer struct {
	*health.Server
	over       context.Context //nolint:containedctx // it is the service's, not a call's
	endWatches context.CancelFunc
}

// Watch tells of every change until the caller goes or the watching ends.
func (h *healthServer) Watch(r *healthv1.HealthCheckRequest, s grpc.ServerStreamingServer[healthv1.HealthCheckResponse]) error {
	ctx, cancel := context.WithCancel(s.Context())
	defer cancel()
	defer context.AfterFunc(h.over, cancel)()
	return h.Server.Watch(r, watch{s, ctx})
}

// watch is a stream that ends with a context of its own.
type watch struct {
	grpc.ServerStreamingServer[healthv1.HealthCheckResponse]
	ctx context.Context //nolint:containedctx // a stream's context comes with it
}

// Context is what the stream ends with.
func (w watch) Context() context.Context { return w.ctx }

// newHealth makes the health service: alive, not yet ready.
func newHealth() *healthServer {
	h := &healthServer{Server: health.NewServer()}
	h.over, h.endWatches = context.WithCancel(context.Background())
	h.SetServingStatus(livenessName, healthv1.HealthCheckResponse_SERVING)
	setReady(h, false)
	return h
}

func setReady(h *healthServer, ready bool) {
	status := healthv1.HealthCheckResponse_NOT_SERVING
	if ready {
		status = healthv1.HealthCheckResponse_SERVING
	}
	for _, name := range readinessNames {
		h.SetServingStatus(name, status)
	}
}

// registerDebugging lets grpcurl list, describe and drive the server, and look at its connections. The returned function
// frees what channelz keeps.
func registerDebugging(s *grpc.Server) (cleanup func(), err error) {
	reflection.Register(s)
	return admin.Register(s)
}
