package server

import (
	"testing"
	"time"

	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/sluice-epp/sluice/server/config"
)

// TestC25_WatchersDoNotHoldUpTheDrain has a client that watches health for good, as gRPC clients with health checking do:
// it is told of the drain, and the process ends without it.
func TestC25_WatchersDoNotHoldUpTheDrain(t *testing.T) {
	p := launch(t, "", func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) { before(c); c.Server.DrainTimeout = time.Hour }
	})
	watching, err := healthv1.NewHealthClient(p.conn).Watch(t.Context(), &healthv1.HealthCheckRequest{})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{healthv1.HealthCheckResponse_SERVING, healthv1.HealthCheckResponse_NOT_SERVING} {
		r, err := watching.Recv()
		if err != nil || r.GetStatus() != want {
			t.Fatalf("%v, %v; want %v", r, err, want)
		}
		if want == healthv1.HealthCheckResponse_SERVING {
			p.stop()
		}
	}
	if err := p.wait(t); err != nil {
		t.Error(err)
	}
	if _, err := watching.Recv(); err == nil {
		t.Error("the watching goes on")
	}
}
