package proxy_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server answers as told: right, but for what a fault changes.
type server struct {
	extprocv3.UnimplementedExternalProcessorServer
	fault    string
	requests atomic.Int64
	ended    atomic.Int64
}

func (s *server) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	s.requests.Add(1)
	defer s.ended.Add(1)
	var body []byte
	for {
		m, err := g.Recv()
		if err != nil {
			return nil
		}
		var answers []*extprocv3.ProcessingResponse
		switch v := m.Request.(type) {
		case *extprocv3.ProcessingRequest_RequestBody:
			if body = append(body, v.RequestBody.GetBody()...); !v.RequestBody.GetEndOfStream() {
				continue
			}
			if s.fault == "status" {
				return status.Error(codes.Internal, "the server's reason")
			}
			answers = s.request(body)
		case *extprocv3.ProcessingRequest_ResponseHeaders:
			answers = []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseHeaders{}}}
		case *extprocv3.ProcessingRequest_ResponseBody:
			b := v.ResponseBody
			if s.fault == "response changed" && len(b.Body) > 0 {
				b.Body[0]++
			}
			answers = []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseBody{
				ResponseBody: piece(b.Body, b.EndOfStream != (s.fault == "response end"))}}}
		}
		for _, a := range answers {
			if err := g.Send(a); err != nil {
				return err
			}
		}
	}
}

func piece(b []byte, end bool) *extprocv3.BodyResponse {
	return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
		Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{Body: b, EndOfStream: end}}}}}
}

func (s *server) request(body []byte) []*extprocv3.ProcessingResponse {
	const key, pick = "x-gateway-destination-endpoint", "10.0.0.1:8000"
	metadata := pick
	size := 62_000
	switch s.fault {
	case "immediate":
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ImmediateResponse{
			ImmediateResponse: &extprocv3.ImmediateResponse{Status: &typev3.HttpStatus{Code: 503}, Body: []byte("no endpoint")}}}}
	case "metadata":
		metadata = "10.0.0.2:8000"
	case "changed":
		body[len(body)-1]++
	case "short":
		body = body[:len(body)-1]
	case "chunk":
		size = 62_001
	}
	answers := []*extprocv3.ProcessingResponse{{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
				{Header: &corev3.HeaderValue{Key: key, RawValue: []byte(pick)}}}}}}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(
			&structpb.Struct{Fields: map[string]*structpb.Value{key: structpb.NewStringValue(metadata)}})}},
	}}
	if s.fault == "plain body" {
		return append(answers, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: &extprocv3.BodyResponse{}}})
	}
	for len(body) > 0 {
		n := min(size, len(body))
		answers = append(answers, &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
			RequestBody: piece(body[:n], n == len(body))}})
		body = body[n:]
	}
	return answers
}

// client serves s until the test ends.
func client(t *testing.T, s *server) *proxy.Client {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer()
	extprocv3.RegisterExternalProcessorServer(g, s)
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	c, err := proxy.Dial(l.Addr().String(), 2)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return c
}

func exchanges(t *testing.T, size, n int) []*proxy.Exchange {
	t.Helper()
	bodies, err := chat.Set{Bodies: n, Groups: n, Size: size}.Make()
	if err != nil {
		t.Fatal(err)
	}
	all := make([]*proxy.Exchange, n)
	for i, b := range bodies {
		if all[i], err = proxy.NewExchange(b, chat.Answer(3, 100)); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

func TestRunSendsEveryRequestOnce(t *testing.T) {
	s := &server{}
	c := client(t, s)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, size := range []int{1 << 10, 200_000} {
		s.requests.Store(0)
		waits, err := c.Run(ctx, exchanges(t, size, 5), 7, proxy.Times(33))
		if err != nil {
			t.Fatal(err)
		}
		if len(waits) != 33 || s.requests.Load() != 33 {
			t.Errorf("bodies of %d bytes: %d waits, %d requests served, want 33", size, len(waits), s.requests.Load())
		}
		for _, w := range waits {
			if w <= 0 || w > 30*time.Second {
				t.Errorf("bodies of %d bytes: a wait of %v", size, w)
			}
		}
	}
}

// A server that does anything that Envoy would not take is found out, whatever it costs.
func TestFaultsOfServers(t *testing.T) {
	for fault, want := range map[string]string{
		"status":           "the server's reason",
		"immediate":        "refused with 503: no endpoint",
		"metadata":         `"10.0.0.1:8000" in the header and "10.0.0.2:8000" in metadata`,
		"changed":          "not those that were sent",
		"short":            "1 bytes early",
		"chunk":            "a chunk of 62001 bytes",
		"plain body":       "without streamed_response",
		"response changed": "response: chunk 0: ",
		"response end":     "end of stream is true",
	} {
		t.Run(fault, func(t *testing.T) {
			c := client(t, &server{fault: fault})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := c.Run(ctx, exchanges(t, 128<<10, 1), 1, proxy.Times(3))
			if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "request 0: ") {
				t.Errorf("%v, want an error that says %q", err, want)
			}
		})
	}
}

func TestRunEndsWithItsContext(t *testing.T) {
	s := &server{}
	c := client(t, s)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := c.Run(ctx, exchanges(t, 1<<10, 1), 4, func() bool {
		if s.ended.Load() > 20 {
			cancel()
		}
		return true
	})
	cancel()
	if !errors.Is(err, context.Canceled) {
		t.Errorf("a cancelled run ended with %v", err)
	}
}

func TestServerThatIsNotThere(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	c, err := proxy.Dial(address, 1)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	if _, err := c.Run(ctx, exchanges(t, 1<<10, 1), 1, proxy.Times(1)); status.Code(err) != codes.Unavailable {
		t.Errorf("%v, want Unavailable", err)
	}
}
