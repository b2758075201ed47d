package server

import (
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

// newHealth makes the health service: alive, not yet ready.
func newHealth() *health.Server {
	h := health.NewServer()
	h.SetServingStatus(livenessName, healthv1.HealthCheckResponse_SERVING)
	setReady(h, false)
	return h
}

func setReady(h *health.Server, ready bool) {
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
