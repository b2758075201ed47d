package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/proxy"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// lines hands over each line that is written.
type lines chan []byte

func (l lines) Write(b []byte) (int, error) {
	l <- bytes.Clone(b)
	return len(b), nil
}

// start runs the server until the test ends, and returns its addresses as it logs them.
func start(t *testing.T) (address, admin string) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	out, done := make(lines, 10), make(chan error, 1)
	go func() {
		done <- serve(ctx, slog.New(slog.NewJSONHandler(out, nil)), "127.0.0.1:0", "127.0.0.1:0", []string{"127.0.0.1:1", "127.0.0.1:2"})
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	var record struct{ Msg, GRPC, Admin string }
	select {
	case line := <-out:
		if err := json.Unmarshal(line, &record); err != nil || record.Msg != "serving" {
			t.Fatalf("logged %q: %v", line, err)
		}
	case err := <-done:
		done <- err
		t.Fatal(err)
	}
	return record.GRPC, record.Admin
}

func TestAnswersAsAPickerMust(t *testing.T) {
	address, _ := start(t)
	client, err := proxy.Dial(address, 2)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for _, size := range []int{chat.MinSize, 62_000, 62_001, 64 << 10, 1 << 20} {
		bodies, err := chat.Set{Bodies: 4, Groups: 2, Size: size}.Make()
		if err != nil {
			t.Fatal(err)
		}
		var exchanges []*proxy.Exchange
		for _, b := range bodies {
			x, err := proxy.NewExchange(b, append(chat.Answer(3, 10), make([]byte, 100_000)))
			if err != nil {
				t.Fatal(err)
			}
			exchanges = append(exchanges, x)
		}
		waits, err := client.Run(ctx, exchanges, 4, proxy.Times(20))
		if err != nil || len(waits) != 20 {
			t.Errorf("bodies of %d bytes: %d requests done: %v", size, len(waits), err)
		}
	}
}

// Headers alone, and trailers, end a request too.
func TestOtherEnds(t *testing.T) {
	address, _ := start(t)
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	headers := func(end bool) *extprocv3.ProcessingRequest {
		return &extprocv3.ProcessingRequest{
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{EndOfStream: end}},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{
				RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
				ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			},
		}
	}
	body := func(b string, end bool) *extprocv3.ProcessingRequest {
		return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
			RequestBody: &extprocv3.HttpBody{Body: []byte(b), EndOfStream: end}}}
	}
	trailers := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestTrailers{}}
	responseTrailers := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseTrailers{}}
	for _, tt := range []struct {
		name string
		send []*extprocv3.ProcessingRequest
		want []string
	}{
		{"no body", []*extprocv3.ProcessingRequest{headers(true)}, []string{"request_headers"}},
		{"empty body", []*extprocv3.ProcessingRequest{headers(false), body("", true)}, []string{"request_headers", "request_body end"}},
		{"body that ends with its last bytes", []*extprocv3.ProcessingRequest{headers(false), body("a", false), body("b", true)},
			[]string{"request_headers", "request_body a", "request_body b end"}},
		{"trailers", []*extprocv3.ProcessingRequest{headers(false), body("a", false), trailers, responseTrailers},
			[]string{"request_headers", "request_body a", "request_trailers", "response_trailers"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range tt.send {
				if err := stream.Send(m); err != nil {
					t.Fatal(err)
				}
			}
			var got []string
			for range tt.want {
				m, err := stream.Recv()
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, describe(m))
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func describe(m *extprocv3.ProcessingResponse) string {
	switch v := m.GetResponse().(type) {
	case *extprocv3.ProcessingResponse_RequestHeaders:
		return "request_headers"
	case *extprocv3.ProcessingResponse_RequestTrailers:
		return "request_trailers"
	case *extprocv3.ProcessingResponse_ResponseTrailers:
		return "response_trailers"
	case *extprocv3.ProcessingResponse_RequestBody:
		piece := v.RequestBody.GetResponse().GetBodyMutation().GetStreamedResponse()
		words := []string{"request_body"}
		if len(piece.GetBody()) > 0 {
			words = append(words, string(piece.GetBody()))
		}
		if piece.GetEndOfStream() {
			words = append(words, "end")
		}
		return strings.Join(words, " ")
	}
	return "other"
}

func TestAdminPort(t *testing.T) {
	_, admin := start(t)
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for page, want := range map[string]string{"/readyz": "", "/metrics": "\ngo_memstats_mallocs_total ", "/debug/pprof/": "goroutine"} {
		answer, err := client.Get("http://" + admin + page)
		if err != nil {
			t.Fatal(err)
		}
		var text bytes.Buffer
		_, err = text.ReadFrom(answer.Body)
		answer.Body.Close()
		if err != nil || answer.StatusCode != http.StatusOK || !strings.Contains(text.String(), want) {
			t.Errorf("%s: %s, %v, without %q", page, answer.Status, err, want)
		}
	}
}

func TestAddressInUse(t *testing.T) {
	address, _ := start(t)
	logger := slog.New(slog.DiscardHandler)
	if err := serve(t.Context(), logger, address, "127.0.0.1:0", []string{"127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(), "-listen") {
		t.Errorf("-listen in use: %v", err)
	}
	if err := serve(t.Context(), logger, "127.0.0.1:0", address, []string{"127.0.0.1:1"}); err == nil || !strings.Contains(err.Error(), "-admin") {
		t.Errorf("-admin in use: %v", err)
	}
}
