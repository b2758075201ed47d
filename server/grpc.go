package server

import (
	"crypto/tls"
	"math"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/admin"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
)

// The names under which health is asked for: the empty one and the service's, by proxies; liveness and readiness, by
// probes; inference-extension, by the manifests of the Gateway API's inference extension.
const (
	livenessName  = "liveness"
	readinessName = "readiness"
)

var readinessNames = []string{"", readinessName, extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "inference-extension"}

// messageOverhead is what a message may hold beside a body.
const messageOverhead = 1 << 20

// minRecvMessage admits whole answers in buffered response mode, whatever the request limit.
const minRecvMessage = 64 << 20

// newGRPC makes the server that Envoy talks to. A nil tlsConfig means plaintext.
func newGRPC(tlsConfig *tls.Config, maxBody int) *grpc.Server {
	options := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(max(maxBody, minRecvMessage) + messageOverhead),
		grpc.MaxConcurrentStreams(math.MaxUint32), // one per request in flight; Envoy's circuit breaker is the limit
		// Bodies come in messages of up to a proxy's buffer; a small window would make each wait for the other side.
		grpc.InitialWindowSize(1 << 20),
		grpc.InitialConnWindowSize(16 << 20),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: 30 * time.Second, Timeout: 20 * time.Second}),
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: 5 * time.Second, PermitWithoutStream: true}),
	}
	if tlsConfig != nil {
		options = append(options, grpc.Creds(credentials.NewTLS(tlsConfig)))
	}
	return grpc.NewServer(options...)
}

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
