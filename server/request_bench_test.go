package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisions"
	"github.com/sluice-epp/sluice/server/transport"
)

// call is an ext_proc call without a wire: it hands over messages and drops the answers.
type call struct {
	grpc.ServerStream
	ctx      context.Context
	messages []mem.Buffer
	next     int
	sent     int
}

func (c *call) Context() context.Context { return c.ctx }

func (c *call) RecvMsg(m any) error {
	if c.next == len(c.messages) {
		return io.EOF
	}
	c.next++
	r, ok := m.(*transport.Request)
	if !ok {
		return fmt.Errorf("receives into %T", m)
	}
	return r.Decode(c.messages[c.next-1])
}

func (c *call) SendMsg(m any) error {
	a, ok := m.(*transport.Answer)
	if !ok {
		return fmt.Errorf("%v is not an encoded answer", m)
	}
	data := a.Buffers()
	data.Free()
	c.sent++
	return nil
}

// Recv and Send are the generated stream's, which is not used.
func (c *call) Recv() (*extprocv3.ProcessingRequest, error) { return nil, errors.ErrUnsupported }
func (c *call) Send(*extprocv3.ProcessingResponse) error    { return errors.ErrUnsupported }

// nowhere is a pool that takes no buffer back.
type nowhere struct{}

func (nowhere) Get(n int) *[]byte { b := make([]byte, n); return &b }
func (nowhere) Put(*[]byte)       {}

func headerMap(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

// messages are a request and its response in full duplex, encoded, the body in one piece.
func messages(tb testing.TB, body []byte) (encoded []mem.Buffer) {
	tb.Helper()
	all := []*extprocv3.ProcessingRequest{
		{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(
				":authority", "llm.example.com", ":path", "/v1/chat/completions", ":method", "POST", ":scheme", "http",
				"content-type", "application/json", "content-length", fmt.Sprint(len(body)), "x-request-id", "7fb02a5c")}},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{
				RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
				ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			},
		},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: body}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: &extprocv3.HttpHeaders{
			Headers: headerMap(":status", "200", "content-type", "text/event-stream")}}},
	}
	for _, c := range chat.Answer(3, len(body)/4) {
		all = append(all, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
			ResponseBody: &extprocv3.HttpBody{Body: c}}})
	}
	all = append(all, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{EndOfStream: true}}})
	for _, m := range all {
		b, err := proto.Marshal(m)
		if err != nil {
			tb.Fatal(err)
		}
		encoded = append(encoded, mem.NewBuffer(&b, nowhere{}))
	}
	return encoded
}

// newCaller returns a function that serves one request after the other in the default configuration, gRPC left out.
func newCaller(tb testing.TB, bodyBytes, endpoints int, changes ...func(*config.Config)) func() error {
	tb.Helper()
	app, err := New(tb.Context(), Options{Registry: prometheus.NewRegistry(), Override: func(c *config.Config) {
		c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
		for _, change := range changes {
			change(c)
		}
	}})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := app.closeAll(context.Background()); err != nil {
			tb.Error(err)
		}
	})
	specs := make([]scheduling.EndpointSpec, endpoints)
	for i := range specs {
		specs[i] = scheduling.EndpointSpec{Address: fmt.Sprintf("127.1.%d.%d:1", i/250, 1+i%250)}
	}
	app.pool.Update(specs)
	bodies, err := chat.Set{Bodies: 64, Groups: 8, Size: bodyBytes}.Make()
	if err != nil {
		tb.Fatal(err)
	}
	var calls []*call
	for _, b := range bodies {
		calls = append(calls, &call{ctx: tb.Context(), messages: messages(tb, b)})
	}
	n := 0
	serve := func() error {
		c := calls[n%len(calls)]
		n++
		c.next, c.sent = 0, 0
		if err := app.extproc.Process(c); err != nil {
			return err
		}
		if want := 1 + (bodyBytes+61_999)/62_000 + 1 + 3 + 1; c.sent != want {
			return fmt.Errorf("%d answers, want %d", c.sent, want)
		}
		return nil
	}
	for range max(4*len(calls), decisions.MaxDecisions+1) { // until every prefix is known, every pool filled, and the newest decisions are all kept
		if err := serve(); err != nil {
			tb.Fatal(err)
		}
	}
	return serve
}

// What a request costs in the default configuration beside gRPC and its messages.
func BenchmarkRequest(b *testing.B) {
	for _, size := range []int{1 << 10, 16 << 10, 256 << 10} {
		for _, endpoints := range []int{8, 64, 512} {
			b.Run(fmt.Sprintf("body=%dKiB/endpoints=%d", size>>10, endpoints), func(b *testing.B) {
				serve := newCaller(b, size, endpoints)
				b.ReportAllocs()
				for b.Loop() {
					if err := serve(); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// What a shadow adds to a request, in the mean and at its 99th percentile: both are served in turns, so that what else the machine
// does meets both.
func BenchmarkRequestBesideAShadow(b *testing.B) {
	second := filepath.Join(b.TempDir(), "second.yaml")
	if err := os.WriteFile(second, []byte(config.DefaultText), 0o600); err != nil {
		b.Fatal(err)
	}
	callers := []func() error{newCaller(b, 16<<10, 64), newCaller(b, 16<<10, 64, func(c *config.Config) { c.Shadow.Config = second })}
	var took [2][]time.Duration
	for b.Loop() {
		for i, serve := range callers {
			began := time.Now()
			if err := serve(); err != nil {
				b.Fatal(err)
			}
			took[i] = append(took[i], time.Since(began))
		}
	}
	for i, name := range []string{"alone", "shadow"} {
		slices.Sort(took[i])
		b.ReportMetric(float64(took[i][len(took[i])/2].Nanoseconds()), name+"-p50-ns")
		b.ReportMetric(float64(took[i][len(took[i])*99/100].Nanoseconds()), name+"-p99-ns")
	}
}

// Once warm, a request allocates its answers, two objects each, and next to nothing else; what 512 endpoints add is the looking at their metrics meanwhile.
func TestAllocationsOfARequest(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector empties pools at random")
	}
	for _, tt := range []struct{ body, endpoints, ceiling int }{{1 << 10, 8, 16}, {16 << 10, 64, 16}, {16 << 10, 512, 32}} {
		serve := newCaller(t, tt.body, tt.endpoints)
		n := testing.AllocsPerRun(500, func() {
			if err := serve(); err != nil {
				t.Fatal(err)
			}
		})
		if n > float64(tt.ceiling) {
			t.Errorf("%d bytes of body and %d endpoints: %g allocations, want at most %d", tt.body, tt.endpoints, n, tt.ceiling)
		}
		t.Logf("%d bytes of body and %d endpoints: %g allocations", tt.body, tt.endpoints, n)
	}
}
