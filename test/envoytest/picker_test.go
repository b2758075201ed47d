package envoytest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-epp/sluice/deploy/envoy"
)

// picker is the smallest ext_proc server that can pick: it answers every stream with the same endpoints and echoes bodies.
type picker struct {
	extprocv3.UnimplementedExternalProcessorServer
	Addr string

	checks *checks

	mu      sync.Mutex
	pick    string
	streams int
	subset  *structpb.Value // the last subset hint
	served  string          // the last report of who served
}

func startPicker(t testing.TB, pick string, options ...grpc.ServerOption) *picker {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &picker{Addr: l.Addr().String(), pick: pick, checks: &checks{Server: health.NewServer()}}
	server := grpc.NewServer(options...)
	extprocv3.RegisterExternalProcessorServer(server, p)
	p.checks.SetServingStatus(extprocv3.ExternalProcessor_ServiceDesc.ServiceName, healthv1.HealthCheckResponse_SERVING)
	healthv1.RegisterHealthServer(server, p.checks)
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("picker: %v", err)
		}
	})
	return p
}

// checks answer health checks but for the next silent ones.
type checks struct {
	*health.Server
	silent atomic.Int32
}

func (c *checks) Check(ctx context.Context, r *healthv1.HealthCheckRequest) (*healthv1.HealthCheckResponse, error) {
	if c.silent.Add(-1) >= 0 {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return c.Server.Check(ctx, r)
}

func (p *picker) Streams() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.streams
}

func (p *picker) Subset() *structpb.Value {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.subset
}

func (p *picker) Served() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.served
}

// Process answers one stream.
func (p *picker) Process(stream extprocv3.ExternalProcessor_ProcessServer) error {
	p.mu.Lock()
	p.streams++
	p.mu.Unlock()
	var s exchange
	for {
		request, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err // Envoy's cancel at the end of an exchange included
		}
		p.note(request)
		for _, response := range s.answers(request, p.pick) {
			if err := stream.Send(response); err != nil {
				return err
			}
		}
	}
}

func (p *picker) note(request *extprocv3.ProcessingRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	metadata := request.GetMetadataContext().GetFilterMetadata()
	if request.GetRequestHeaders() != nil {
		p.subset = metadata["envoy.lb.subset_hint"].GetFields()[envoy.SubsetKey]
	}
	if request.GetResponseHeaders() != nil {
		p.served = metadata["envoy.lb"].GetFields()[envoy.ServedKey].GetStringValue()
	}
}

// exchange is the state of one stream: the modes Envoy announced, and the answer to the headers if it is held back.
type exchange struct {
	config *extprocv3.ProtocolConfiguration
	held   *extprocv3.ProcessingResponse
}

func (s *exchange) answers(request *extprocv3.ProcessingRequest, pick string) []*extprocv3.ProcessingResponse {
	if c := request.GetProtocolConfig(); c != nil {
		s.config = c
	}
	switch r := request.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		mode := s.config.GetRequestBodyMode()
		if r.RequestHeaders.GetEndOfStream() || mode == filterv3.ProcessingMode_NONE || mode == filterv3.ProcessingMode_STREAMED {
			return []*extprocv3.ProcessingResponse{onHeaders(pick)}
		}
		if mode == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
			s.held = onHeaders(pick)
			return nil
		}
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_RequestHeaders{}}}
	case *extprocv3.ProcessingRequest_RequestBody:
		return s.requestBody(r.RequestBody, pick)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_RequestTrailers{}}}
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseHeaders{}}}
	case *extprocv3.ProcessingRequest_ResponseBody:
		var common *extprocv3.CommonResponse
		if s.config.GetResponseBodyMode() == filterv3.ProcessingMode_FULL_DUPLEX_STREAMED {
			common = echo(r.ResponseBody)
		}
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseBody{
			ResponseBody: &extprocv3.BodyResponse{Response: common}}}}
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return []*extprocv3.ProcessingResponse{{Response: &extprocv3.ProcessingResponse_ResponseTrailers{}}}
	}
	return nil
}

func (s *exchange) requestBody(body *extprocv3.HttpBody, pick string) []*extprocv3.ProcessingResponse {
	var out []*extprocv3.ProcessingResponse
	answer := &extprocv3.ProcessingResponse{}
	common := mutation(pick)
	switch s.config.GetRequestBodyMode() {
	case filterv3.ProcessingMode_FULL_DUPLEX_STREAMED:
		if s.held != nil {
			out, s.held = append(out, s.held), nil
		}
		common = echo(body)
	case filterv3.ProcessingMode_STREAMED:
		common = nil
	default:
		answer.DynamicMetadata = metadata(pick)
	}
	answer.Response = &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}}
	return append(out, answer)
}

func onHeaders(pick string) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{
			RequestHeaders: &extprocv3.HeadersResponse{Response: mutation(pick)}},
		DynamicMetadata: metadata(pick),
	}
}

func mutation(pick string) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
		{Header: &corev3.HeaderValue{Key: envoy.DestinationKey, RawValue: []byte(pick)}},
	}}}
}

func metadata(pick string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{"envoy.lb": structpb.NewStructValue(&structpb.Struct{
		Fields: map[string]*structpb.Value{envoy.DestinationKey: structpb.NewStringValue(pick)},
	})}}
}

func echo(body *extprocv3.HttpBody) *extprocv3.CommonResponse {
	return &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_StreamedResponse{
		StreamedResponse: &extprocv3.StreamedBodyResponse{Body: body.GetBody(), EndOfStream: body.GetEndOfStream()},
	}}}
}

// upstream is an HTTP server that says who it is and what it got.
type upstream struct {
	Addr string
	name string

	mu   sync.Mutex
	hits int
	seen http.Header
}

func startUpstream(t testing.TB, ip, name string) *upstream {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(ip, "0"))
	if err != nil {
		t.Fatal(err)
	}
	u := &upstream{Addr: l.Addr().String(), name: name}
	server := &http.Server{Handler: u}
	done := make(chan error, 1)
	go func() { done <- server.Serve(l) }()
	t.Cleanup(func() {
		_ = server.Close()
		if err := <-done; !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("upstream %s: %v", name, err)
		}
	})
	return u
}

// ServeHTTP answers with the server's name and the length of the body.
func (u *upstream) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	n, err := io.Copy(io.Discard, r.Body)
	u.mu.Lock()
	u.hits++
	u.seen = r.Header.Clone()
	u.mu.Unlock()
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	fmt.Fprintf(w, "%s %s %d", u.name, r.URL.Path, n)
}

func (u *upstream) Hits() int {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.hits
}

func (u *upstream) Seen() http.Header {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.seen
}

// send does one request and returns the status and the body.
func send(t testing.TB, method, url string, body io.Reader, headers ...string) (int, string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clientTimeout)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		request.Header.Set(headers[i], headers[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(page)
}
