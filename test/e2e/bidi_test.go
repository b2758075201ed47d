package e2e

import (
	"errors"
	"io"
	"net"
	"net/http"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// A bidirectional stream, whose client waits for an answer before it says more, is not held back for an end that comes
// only afterwards.
func TestBidirectionalGRPC(t *testing.T) {
	listener, err := net.Listen("tcp", envoytest.PodIPs(t, 1)[0]+":0")
	if err != nil {
		t.Fatal(err)
	}
	s := grpc.NewServer()
	reflection.Register(s)
	done := make(chan error, 1)
	go func() { done <- s.Serve(listener) }()
	defer func() {
		s.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	address := listener.Addr().String()
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Streamed, envoy.BodyNone} {
		p := envoy.Params{RequestBody: mode, ResponseBody: mode, HTTP2Upstream: true, Endpoints: []string{address}}
		conn, err := grpc.NewClient("passthrough:///"+l.Envoy(t, p).Addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
		if err != nil {
			t.Fatal(err)
		}
		converse(t, string(mode), conn)
		_ = conn.Close()
	}
}

func converse(t *testing.T, mode string, conn *grpc.ClientConn) {
	t.Helper()
	stream, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(lab.Context(t))
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		err := stream.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}})
		if err != nil {
			t.Fatalf("%s: %v", mode, err)
		}
		answer, err := stream.Recv()
		if err != nil || len(answer.GetListServicesResponse().GetService()) == 0 {
			t.Fatalf("%s: %v, %v", mode, answer, err)
		}
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if _, err := stream.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("%s: the stream ends with %v", mode, err)
	}
}

// An upload in which nothing is read passes as it comes, whatever its size, and is charged by its length.
func TestUploadThatIsNotReadPasses(t *testing.T) {
	pod := lab.StartPod(t, envoytest.PodIPs(t, 1)[0]+":0")
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{pod.Addr}})
	e := l.Envoy(t, envoy.Params{Endpoints: []string{pod.Addr}})
	body, rest := io.Pipe()
	r := lab.Request(t, http.MethodPost, e.URL("/v1/audio/transcriptions"), body, "content-type", "multipart/form-data; boundary=x")
	sum := make(chan string, 1)
	go func() {
		half := picture()[:10<<20]
		_, _ = io.WriteString(rest, half) // a pipe fails only when its reader has gone
		sum <- half
		_, _ = io.WriteString(rest, "the end")
		_ = rest.Close()
	}()
	echo := lab.ReadEcho(t, lab.Do(t, l.Client, r))
	if want := <-sum + "the end"; echo.SHA256 != lab.SHA256(want) {
		t.Errorf("%d of %d bytes arrived, or changed", echo.Bytes, len(want))
	}
	l.Sluice.Settle(t)
}
