// Package transport makes the gRPC server that Envoy talks to: its limits, windows and keepalive, in one place for
// `sluice serve` and for what it is measured against.
package transport

import (
	"crypto/tls"
	"math"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/experimental"
	"google.golang.org/grpc/keepalive"
)

// messageOverhead is what a message may hold beside a body.
const messageOverhead = 1 << 20

// minRecvMessage admits whole answers in buffered response mode, whatever the request limit.
const minRecvMessage = 64 << 20

// NewServer makes a server for request bodies of up to maxBody bytes. A nil tlsConfig means plaintext.
func NewServer(tlsConfig *tls.Config, maxBody int) *grpc.Server {
	pool := &buffers{}
	options := []grpc.ServerOption{
		experimental.BufferPool(pool),
		grpc.ForceServerCodecV2(codec{pool}),
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
