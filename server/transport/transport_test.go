package transport_test

import (
	"context"
	"math"
	"net"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sluice-epp/sluice/server/transport"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// counter answers each message with an empty one.
type counter struct {
	extprocv3.UnimplementedExternalProcessorServer
}

func (counter) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	for {
		if _, err := g.Recv(); err != nil {
			return err
		}
		if err := g.Send(&extprocv3.ProcessingResponse{}); err != nil {
			return err
		}
	}
}

// A body as large as the limit comes through in one message, as Envoy's buffered modes send it; a response may be large
// whatever the limit on requests; more than that is refused by the transport.
func TestMessageLimit(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		name          string
		maxBody, body int
		want          codes.Code
	}{
		{"at the limit", 80 * mib, 80 * mib, codes.OK},
		{"small limit, large response", mib, 64 * mib, codes.OK},
		{"over the limit", 66 * mib, 68 * mib, codes.ResourceExhausted},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if got := status.Code(exchange(t, tt.maxBody, make([]byte, tt.body))); got != tt.want {
				t.Errorf("a body of %d bytes with maxBody %d: %v, want %v", tt.body, tt.maxBody, got, tt.want)
			}
		})
	}
}

func exchange(t *testing.T, maxBody int, body []byte) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	l := bufconn.Listen(1 << 20)
	s := transport.NewServer(nil, maxBody)
	extprocv3.RegisterExternalProcessorServer(s, counter{})
	served := make(chan error, 1)
	go func() { served <- s.Serve(l) }()
	defer func() {
		s.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
	}()
	conn, err := grpc.NewClient("passthrough:///bufconn", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(math.MaxInt32)),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return l.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	stream, err := extprocv3.NewExternalProcessorClient(conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	err = stream.Send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = stream.Recv()
	return err
}
