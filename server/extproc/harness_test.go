package extproc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
	"github.com/sluice-epp/sluice/server/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench is a server over bufconn with a ledger behind it.
type bench struct {
	server    *Server
	pool      *scheduling.Pool
	scheduler *scheduling.Scheduler
	ledger    *ledger.Plugin
	client    extprocv3.ExternalProcessorClient
	notes     *notes
}

// notes counts what the observer is told.
type notes struct {
	mu       sync.Mutex
	kinds    map[string]int
	picked   int
	ids      []uint64               // of the flights, in the order of their picks
	served   []*scheduling.Endpoint // that carried the charges at the ends
	outcomes []scheduling.Outcome
}

func (n *notes) Picked(_ *scheduling.Cycle, f *scheduling.Flight, _ time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if f != nil {
		n.picked++
		n.ids = append(n.ids, f.ID)
	}
}

func (n *notes) Ended(f *scheduling.Flight, o scheduling.Outcome, _, _ time.Duration) {
	n.mu.Lock()
	defer n.mu.Unlock()
	o.PromptTokens = slices.Clone(o.PromptTokens) // they are another answer's later
	n.outcomes = append(n.outcomes, o)
	n.served = append(n.served, f.Endpoint)
}

func (n *notes) Noted(kind string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.kinds[kind]++
}

func (n *notes) count(kind string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.kinds[kind]
}

func (n *notes) picks() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.picked
}

// identities are the flights' ids.
func (n *notes) identities() []uint64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.ids)
}

// servers are the endpoints that carried the charges at the ends.
func (n *notes) servers() []*scheduling.Endpoint {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.served)
}

func (n *notes) ended() []scheduling.Outcome {
	n.mu.Lock()
	defer n.mu.Unlock()
	return append([]scheduling.Outcome(nil), n.outcomes...)
}

// promptValue estimates tokens at 4 bytes each, as the simplest producer of TokenizedPrompt.
type promptValue struct {
	key     scheduling.ValueKey[scheduling.TokenizedPrompt]
	produce func(ctx context.Context)
}

func (p *promptValue) Produce(ctx context.Context, c *scheduling.Cycle) error {
	if p.produce != nil {
		p.produce(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	n := c.Request.PromptBytes / 4
	if c.Request.TokenCount > 0 {
		n = c.Request.TokenCount
	}
	p.key.In(c).Set(scheduling.TokenizedPrompt{Count: n, BytesPerToken: 4})
	return nil
}

// options of a bench; the zero value is three endpoints and the defaults.
type options struct {
	addresses []string
	maxPicks  int
	profile   []string
	specs     []scheduling.Spec
	types     []scheduling.PluginType // beside the usual ones
	produce   func(ctx context.Context)
	configure func(*Config)
}

func newBench(t *testing.T, o options) *bench {
	t.Helper()
	if o.addresses == nil {
		o.addresses = []string{"10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"}
	}
	if o.profile == nil {
		o.profile = []string{"active-request-scorer", "max-score-picker"}
	}
	types := append([]scheduling.PluginType{ledger.Type(), {
		Type: "estimate", DefaultFor: []string{scheduling.DataTypeOf[scheduling.TokenizedPrompt]()},
		New: func(b *scheduling.Builder) (any, error) {
			return &promptValue{key: scheduling.ProduceValue[scheduling.TokenizedPrompt](b), produce: o.produce}, nil
		},
	}, {
		Type: "no-match", DefaultFor: []string{scheduling.DataTypeOf[scheduling.PrefixCacheMatchInfo]()},
		New: func(b *scheduling.Builder) (any, error) {
			return noMatch{scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)}, nil
		},
	}}, slices.Concat(scorer.Types(), picker.Types(), filter.Types(), o.types)...)
	cfg := schedtest.Config(o.specs, o.profile...)
	cfg.MaxPicks = max(1, o.maxPicks)
	s, err := scheduling.Build(types, cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{pool: scheduling.NewPool(), scheduler: s, notes: &notes{kinds: map[string]int{}}}
	b.setEndpoints(o.addresses...)
	b.ledger, _ = s.Plugin("inflight-load-producer").(*ledger.Plugin)
	if b.ledger == nil {
		t.Fatal("no ledger in the graph")
	}
	start := time.Now()
	c := Config{
		Pool: b.pool, Scheduler: func() *scheduling.Scheduler { return s },
		Now: func() time.Duration { return time.Since(start) }, Observer: b.notes,
	}
	if o.configure != nil {
		o.configure(&c)
	}
	b.server = New(c)
	b.client = serve(t, b.server)
	return b
}

// noMatch says for every endpoint that its cache holds nothing.
type noMatch struct {
	key scheduling.Key[scheduling.PrefixCacheMatchInfo]
}

func (n noMatch) Produce(_ context.Context, c *scheduling.Cycle) error {
	for e := range c.Candidates.All() {
		n.key.In(c).Set(e, scheduling.NewPrefixCacheMatchInfo(0, 0, 16))
	}
	return nil
}

func (b *bench) setEndpoints(addresses ...string) {
	specs := make([]scheduling.EndpointSpec, len(addresses))
	for i, a := range addresses {
		specs[i] = scheduling.EndpointSpec{Address: a, UID: a}
	}
	b.pool.Update(specs)
}

func serve(t *testing.T, s *Server) extprocv3.ExternalProcessorClient {
	t.Helper()
	l := bufconn.Listen(1 << 20)
	g := transport.NewServer(nil, 64<<20)
	extprocv3.RegisterExternalProcessorServer(g, s)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := g.Serve(l); err != nil {
			t.Errorf("serving: %v", err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(65<<20), grpc.MaxCallSendMsgSize(65<<20)),
		grpc.WithInitialWindowSize(64<<10), // and no more: a window that grows would hold whole bodies here
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = conn.Close()
		g.Stop()
		s.Close()
		<-done
	})
	return extprocv3.NewExternalProcessorClient(conn)
}

// load is what the ledger has in flight, over all endpoints.
func (b *bench) load() (requests, tokens int64) {
	for l := range b.ledger.Loads() {
		requests += l.Requests
		tokens += l.Tokens
	}
	return requests, tokens
}

// settles waits until the ledger holds so many requests and tokens; streams end on the server a moment after the client.
func (b *bench) settles(t *testing.T, requests, tokens int64) {
	t.Helper()
	var r, n int64
	for range 500 {
		if r, n = b.load(); r == requests && n == tokens {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("ledger holds %d requests and %d tokens, want %d and %d", r, n, requests, tokens)
}

// call is one ext_proc stream as a proxy drives it.
type call struct {
	t      *testing.T
	stream extprocv3.ExternalProcessor_ProcessClient
	cancel context.CancelFunc
	first  bool
	over   bool // all of the request's body came back
	pc     *extprocv3.ProtocolConfiguration
	md     *corev3.Metadata
}

func (b *bench) call(t *testing.T, request, response bodyMode) *call {
	t.Helper()
	c := b.rawCall(t)
	c.pc = protocolOf(request, response)
	return c
}

func protocolOf(request, response bodyMode) *extprocv3.ProtocolConfiguration {
	return &extprocv3.ProtocolConfiguration{RequestBodyMode: request, ResponseBodyMode: response}
}

func (b *bench) rawCall(t *testing.T) *call {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	s, err := b.client.Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cancel)
	return &call{t: t, stream: s, cancel: cancel, first: true}
}

func (c *call) send(m *extprocv3.ProcessingRequest) {
	c.t.Helper()
	if c.first {
		m.ProtocolConfig = c.pc
		c.first = false
	}
	if c.md != nil {
		m.MetadataContext, c.md = c.md, nil
	}
	if err := c.stream.Send(m); err != nil && !errors.Is(err, io.EOF) {
		c.t.Fatal(err)
	}
}

func (c *call) recv() *extprocv3.ProcessingResponse {
	c.t.Helper()
	m, err := c.stream.Recv()
	if err != nil {
		c.t.Fatalf("waiting for an answer: %v", err)
	}
	if c.over && (m.GetRequestHeaders() != nil || m.GetRequestBody() != nil || m.GetRequestTrailers() != nil) {
		c.t.Errorf("after the end of the request came %v", m)
	}
	return m
}

// noAnswer closes the sending side and expects the stream to end without an answer.
func (c *call) noAnswer() {
	c.t.Helper()
	if err := c.stream.CloseSend(); err != nil {
		c.t.Fatal(err)
	}
	if m, err := c.stream.Recv(); !errors.Is(err, io.EOF) {
		c.t.Fatalf("got %v, %v; want the end of the stream", m, err)
	}
}

func headerMap(kv ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(kv); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
	}
	return m
}

func (c *call) requestHeaders(end bool, kv ...string) {
	c.t.Helper()
	if len(kv) == 0 {
		kv = []string{":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json"}
	}
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
		RequestHeaders: &extprocv3.HttpHeaders{Headers: headerMap(kv...), EndOfStream: end}}})
}

func (c *call) requestBody(body string, end bool) {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end}}})
}

func (c *call) requestTrailers() {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{
		RequestTrailers: &extprocv3.HttpTrailers{Trailers: headerMap("x-t", "1")}}})
}

func (c *call) responseHeaders(end bool, kv ...string) {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headerMap(kv...), EndOfStream: end}}})
}

func (c *call) responseBody(body string, end bool) {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(body), EndOfStream: end}}})
}

func (c *call) responseTrailers() {
	c.t.Helper()
	c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{
		ResponseTrailers: &extprocv3.HttpTrailers{}}})
}

// metadata goes with the next message.
func (c *call) metadata(namespace, key string, value any) {
	c.t.Helper()
	v, err := structpb.NewValue(value)
	if err != nil {
		c.t.Fatal(err)
	}
	c.md = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{
		namespace: {Fields: map[string]*structpb.Value{key: v}}}}
}

// pickOf returns the pick in an answer, after checking that header and metadata agree, only raw_value is filled
// and the route stays.
func (c *call) pickOf(m *extprocv3.ProcessingResponse) string {
	c.t.Helper()
	var common *extprocv3.CommonResponse
	switch v := m.Response.(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		common = v.RequestHeaders.GetResponse()
	case *extprocv3.ProcessingResponse_RequestBody:
		common = v.RequestBody.GetResponse()
	default:
		c.t.Fatalf("answer %v carries no pick", m)
	}
	if common.GetClearRouteCache() {
		c.t.Error("the route is looked up anew, although it does not depend on the pick")
	}
	header := ""
	for _, h := range common.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetValue() != "" {
			c.t.Errorf("header %s fills value", h.GetHeader().GetKey())
		}
		if h.GetHeader().GetKey() == DestinationHeader {
			header = string(h.GetHeader().GetRawValue())
		}
	}
	metadata := m.GetDynamicMetadata().GetFields()[MetadataNamespace].GetStructValue().GetFields()[DestinationHeader].GetStringValue()
	if header == "" || header != metadata {
		c.t.Errorf("header says %q, metadata %q", header, metadata)
	}
	return header
}

// refused returns the status, the reason and the message of an immediate response.
func (c *call) refused(m *extprocv3.ProcessingResponse) (status int, reason, message string) {
	c.t.Helper()
	im := m.GetImmediateResponse()
	if im == nil {
		c.t.Fatalf("got %v, want an immediate response", m)
	}
	for _, h := range im.GetHeaders().GetSetHeaders() {
		if h.GetHeader().GetKey() == ReasonHeader {
			reason = string(h.GetHeader().GetRawValue())
		}
	}
	var body struct {
		Error struct{ Message, Type, Code string }
	}
	if err := json.Unmarshal(im.GetBody(), &body); err != nil {
		c.t.Fatalf("error body %q: %v", im.GetBody(), err)
	}
	if body.Error.Code != reason || body.Error.Type == "" {
		c.t.Errorf("error body %q does not carry the reason %q and a type", im.GetBody(), reason)
	}
	return int(im.GetStatus().GetCode()), reason, body.Error.Message
}

// chat is a chat request whose prompt has about n bytes.
func chat(n int) string {
	return fmt.Sprintf(`{"model":"m","stream":true,"messages":[{"role":"user","content":"%s"}]}`, strings.Repeat("word ", n/5))
}

// messageLimit is the most that a proxy takes in one message; the protocol's documents advise 64 KiB.
const messageLimit = 64 << 10

// echoed collects full duplex body answers of the request up to the end of the stream, or, with trailers, up to them.
func (c *call) echoed(trailers bool) string {
	c.t.Helper()
	var all strings.Builder
	for {
		m := c.recv()
		if m.GetRequestTrailers() != nil {
			if !trailers {
				c.t.Fatal("trailers answer without trailers")
			}
			c.over = true
			return all.String()
		}
		chunk := m.GetRequestBody().GetResponse().GetBodyMutation().GetStreamedResponse()
		if chunk == nil {
			c.t.Fatalf("got %v, want a streamed body answer", m)
		}
		if len(chunk.GetBody()) > messageLimit {
			c.t.Errorf("chunk of %d bytes", len(chunk.GetBody()))
		}
		all.Write(chunk.GetBody())
		if chunk.GetEndOfStream() {
			if trailers {
				c.t.Error("end of stream before trailers")
			}
			c.over = true
			return all.String()
		}
	}
}
