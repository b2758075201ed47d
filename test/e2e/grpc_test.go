package e2e

import (
	"context"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// engineOverGRPC serves the health service, a unary and a streaming call, in place of an engine that speaks gRPC.
func engineOverGRPC(t *testing.T) (string, *health.Server) {
	t.Helper()
	l, err := net.Listen("tcp", envoytest.PodIPs(t, 1)[0]+":0")
	if err != nil {
		t.Fatal(err)
	}
	s, h := grpc.NewServer(), health.NewServer()
	healthv1.RegisterHealthServer(s, h)
	done := make(chan error, 1)
	go func() { done <- s.Serve(l) }()
	t.Cleanup(func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Errorf("engine over gRPC: %v", err)
		}
	})
	return l.Addr().String(), h
}

func dial(t *testing.T, address string) healthv1.HealthClient {
	t.Helper()
	c, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	return healthv1.NewHealthClient(c)
}

// A gRPC client is routed like any other, and its trailers come back.
func TestGRPCIsRouted(t *testing.T) {
	address, engine := engineOverGRPC(t)
	engine.SetServingStatus("model", healthv1.HealthCheckResponse_SERVING)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	for _, mode := range bodyModes() {
		if mode.name == "BUFFERED" || mode.name == "BUFFERED_PARTIAL" {
			// Of these gRPC allows the request direction alone: the end of a stream is not there to wait for.
			mode.params.ResponseBody = envoy.Streamed
		}
		t.Run(mode.name, func(t *testing.T) {
			p := mode.params
			p.HTTP2Upstream, p.Endpoints = true, []string{address}
			client := dial(t, l.Envoy(t, p).Addr)
			answer, err := client.Check(lab.Context(t), &healthv1.HealthCheckRequest{Service: "model"})
			if err != nil || answer.GetStatus() != healthv1.HealthCheckResponse_SERVING {
				t.Errorf("unary: %v, %v", answer, err)
			}
			if _, err = client.Check(lab.Context(t), &healthv1.HealthCheckRequest{Service: "unknown"}); status.Code(err) != codes.NotFound {
				t.Errorf("an unknown model: %v, want the engine's NotFound", err)
			}
			watch(t, client, engine)
			if !mode.unseen {
				l.Sluice.Settle(t)
			}
		})
	}
}

// watch follows a streamed answer over two messages and leaves in the middle.
func watch(t *testing.T, client healthv1.HealthClient, engine *health.Server) {
	ctx, cancel := context.WithCancel(lab.Context(t))
	defer cancel()
	engine.SetServingStatus("watched", healthv1.HealthCheckResponse_NOT_SERVING)
	stream, err := client.Watch(ctx, &healthv1.HealthCheckRequest{Service: "watched"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []healthv1.HealthCheckResponse_ServingStatus{
		healthv1.HealthCheckResponse_NOT_SERVING, healthv1.HealthCheckResponse_SERVING,
	} {
		answer, err := stream.Recv()
		if err != nil || answer.GetStatus() != want {
			t.Fatalf("streamed: %v, %v; want %v", answer, err, want)
		}
		engine.SetServingStatus("watched", healthv1.HealthCheckResponse_SERVING)
	}
}

// An error of Sluice's is a gRPC status to a gRPC client, with the reason beside it.
func TestGRPCErrors(t *testing.T) {
	const limit = 64 << 10
	address, _ := engineOverGRPC(t)
	empty := lab.New(t, nobody(t))
	small := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}, Override: func(c *config.Config) {
		c.Server.MaxRequestBodyBytes = limit
		c.Server.PickTimeout = 300 * time.Millisecond
	}})
	for name, tt := range map[string]struct {
		lab    *lab.Lab
		size   int
		code   codes.Code
		reason string
	}{
		"nobody":         {empty, 10, codes.Unavailable, "no_endpoint"},
		"a message over": {small, limit, codes.ResourceExhausted, "body_too_large"},
	} {
		for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Buffered} {
			t.Run(name+"/"+string(mode), func(t *testing.T) {
				p := envoy.Params{RequestBody: mode, HTTP2Upstream: true, Endpoints: []string{address}}
				client := dial(t, tt.lab.Envoy(t, p).Addr)
				var header, trailer metadata.MD
				_, err := client.Check(lab.Context(t), &healthv1.HealthCheckRequest{Service: strings.Repeat("x", tt.size)},
					grpc.Header(&header), grpc.Trailer(&trailer))
				if status.Code(err) != tt.code || status.Convert(err).Message() == "" {
					t.Errorf("%v, want %v with a message", err, tt.code)
				}
				reasons := append(header.Get("x-sluice-reason"), trailer.Get("x-sluice-reason")...)
				if len(reasons) != 1 || reasons[0] != tt.reason {
					t.Errorf("reasons %q, want %q", reasons, tt.reason)
				}
				if strings.Contains(status.Convert(err).Message(), "{") {
					t.Errorf("the message is JSON: %v", err)
				}
			})
		}
	}
	small.Sluice.Settle(t)
}

// The same port answers HTTP/2 clients that are no gRPC with JSON.
func TestHTTP2Client(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 1})
	e := l.Envoy(t, envoy.Params{})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: &protocols}
	defer tr.CloseIdleConnections()
	client := &http.Client{Transport: tr, Timeout: lab.Timeout}
	body := lab.Chat(t, "h2", 8000, 3, true)
	a := lab.Post(t, client, e.URL("/v1/chat/completions"), body)
	if a.Status != http.StatusOK || a.Header.Get("x-sim-body-sha256") != lab.SHA256(body) || !strings.HasSuffix(a.Body, "[DONE]\n\n") {
		t.Errorf("status %d: %.200s", a.Status, a.Body)
	}
	refused(t, lab.Post(t, client, e.URL("/v1/chat/completions"), "no"), http.StatusBadRequest, "not_json")
	l.Sluice.Settle(t)
}
