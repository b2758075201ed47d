//go:build linux

package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/lab"
)

// long reports whether the long cases run too.
func long() bool { return os.Getenv("SLUICE_LONG") != "" }

// step is where a stream is broken off: after the message of that name.
type step int

// The steps of a stream.
const (
	opened step = iota
	withHeaders
	withSomeBody
	withWholeBody // the pick may or may not have been made
	picked
	answering // the response's headers are there
	streaming // some of the response's body is
	ended     // all of it is
	steps
)

// TestAbortedStreams breaks streams off at every step, one after the other and hundreds at a time, by the stream and by the
// connection: a million of them leave nothing behind, nor do a few thousand.
func TestAbortedStreams(t *testing.T) {
	total := 20_000
	switch {
	case long() && raceEnabled:
		total = 50_000
	case long():
		total = 1_000_000
	case raceEnabled:
		total = 2_000
	}
	s := lab.StartSluice(t, lab.Plan{
		Endpoints: []string{"127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3", "127.0.0.1:4"},
		Override: func(c *config.Config) {
			c.Telemetry.LogLevel, c.Telemetry.MaxDecisionBytes = "error", 1<<20 // the decisions that are kept fill it in a tenth
		},
	})
	const workers = 64
	abort := func(n int, seed uint64) { abortStreams(t, s.Addr(), n, workers, seed) }
	left := func() (heap, goroutines int) {
		s.Settle(t)
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int(m.HeapAlloc), runtime.NumGoroutine()
	}
	abort(total/10, 1) // what stays is there: pools, the prefix index, connections of the admin client
	heap, goroutines := left()
	abort(total-total/10, 2)
	lab.Wait(t, "goroutines to end", func() bool { _, now := left(); return now <= goroutines })
	after, _ := left()
	t.Logf("%d streams broken off: heap %d KiB after a tenth, %d KiB at the end; %d goroutines", total, heap>>10, after>>10, goroutines)
	if limit := heap + heap/4 + 4<<20; after > limit {
		t.Errorf("%d KiB of heap after %d streams, %d KiB after a tenth of them", after>>10, total, heap>>10)
	}
	m := s.Metrics(t)
	charged, released := m.Total(t, "sluice_requests_total", `result="picked"`), m.Total(t, "sluice_ledger_releases_total")
	if charged != released || charged < float64(total)/4 {
		t.Errorf("%v picks, %v releases", charged, released)
	}
	if n := m.Total(t, "sluice_notes_total", `kind="panic"`); n > 0 {
		t.Errorf("%v panics", n)
	}
}

// abortStreams breaks n streams off, each worker on a connection that it gives up now and then with streams open.
func abortStreams(t *testing.T, address string, n, workers int, seed uint64) {
	t.Helper()
	var begun atomic.Int64
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(seed, uint64(w)))
			for begun.Load() < int64(n) {
				if err := aConnection(t.Context(), address, &begun, int64(n), random); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	group.Wait()
}

// aConnection breaks up to 500 streams off on one connection, and then the connection with the last few still open.
func aConnection(ctx context.Context, address string, begun *atomic.Int64, n int64, random *rand.Rand) error {
	conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	client := extprocv3.NewExternalProcessorClient(conn)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // streams that are still open end here, or with the connection
	for i := range 500 {
		if begun.Add(1) > n {
			return nil
		}
		end, err := aStream(ctx, client, step(random.IntN(int(steps))), random)
		if err != nil {
			return err
		}
		if i%100 < 97 {
			end()
		}
	}
	if random.IntN(2) == 0 {
		_ = conn.Close() // before the streams
	}
	return nil
}

// aStream goes as far as a step, and returns how to break the stream off.
func aStream(ctx context.Context, client extprocv3.ExternalProcessorClient, to step, random *rand.Rand) (end func(), err error) {
	ctx, cancel := context.WithTimeout(ctx, lab.Timeout)
	stream, err := client.Process(ctx)
	if err != nil {
		cancel()
		return nil, err
	}
	end = cancel
	if random.IntN(4) == 0 {
		end = func() {
			_ = stream.CloseSend() // the server may have ended it
			cancel()
		}
	}
	body := fmt.Sprintf(`{"model":"sim","stream":true,"messages":[{"role":"user","content":"%s %d"}]}`,
		strings.Repeat("so it goes ", random.IntN(300)), random.IntN(1000))
	for at := opened; at < to && err == nil; at++ {
		err = advance(stream, at+1, body)
	}
	if err != nil {
		cancel()
		return nil, fmt.Errorf("on the way to step %d: %w", to, err)
	}
	return end, nil
}

// advance takes one step, and waits for the answers that Envoy would wait for.
func advance(stream extprocv3.ExternalProcessor_ProcessClient, to step, body string) error {
	switch to {
	case withHeaders:
		return send(stream, &extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers(
				":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json",
			)},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{
				RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			},
		})
	case withSomeBody:
		return send(stream, requestBody(body[:len(body)/2], false))
	case withWholeBody:
		return send(stream, requestBody(body[len(body)/2:], true))
	case picked:
		return receive(stream, func(r *extprocv3.ProcessingResponse) bool { return r.GetRequestBody() != nil })
	case answering:
		if err := send(stream, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
			ResponseHeaders: headers(":status", "200", "content-type", "text/event-stream"),
		}}); err != nil {
			return err
		}
		return receive(stream, func(r *extprocv3.ProcessingResponse) bool { return r.GetResponseHeaders() != nil })
	case streaming:
		return exchange(stream, `data: {"choices":[{"index":0,"delta":{"content":"so"}}]}`+"\n\n", false)
	default:
		return exchange(stream, `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3}}`+"\n\ndata: [DONE]\n\n", true)
	}
}

func headers(pairs ...string) *extprocv3.HttpHeaders {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return &extprocv3.HttpHeaders{Headers: m}
}

func requestBody(piece string, last bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: []byte(piece), EndOfStream: last},
	}}
}

func exchange(stream extprocv3.ExternalProcessor_ProcessClient, piece string, last bool) error {
	if err := send(stream, &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: []byte(piece), EndOfStream: last},
	}}); err != nil {
		return err
	}
	return receive(stream, func(r *extprocv3.ProcessingResponse) bool { return r.GetResponseBody() != nil })
}

func send(stream extprocv3.ExternalProcessor_ProcessClient, m *extprocv3.ProcessingRequest) error {
	err := stream.Send(m)
	if errors.Is(err, io.EOF) {
		_, err = stream.Recv() // says why
	}
	return err
}

// receive takes answers until one is as wanted. An answer in Envoy's place is a fault here.
func receive(stream extprocv3.ExternalProcessor_ProcessClient, wanted func(*extprocv3.ProcessingResponse) bool) error {
	for {
		r, err := stream.Recv()
		switch {
		case errors.Is(err, io.EOF):
			return status.Error(codes.Aborted, "the stream ended too early")
		case err != nil:
			return err
		case r.GetImmediateResponse() != nil:
			return fmt.Errorf("answered in the engine's place: %v", r.GetImmediateResponse())
		case wanted(r):
			return nil
		}
	}
}
