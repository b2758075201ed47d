package proxy

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// Client holds the connections to one server.
type Client struct{ connections []*grpc.ClientConn }

// The windows that Envoy opens on a connection to a gRPC service.
const (
	streamWindow     = 16 << 20
	connectionWindow = 24 << 20
)

// Dial prepares n connections, as an Envoy with n workers opens them. A server that is not there shows with the first
// exchange.
func Dial(address string, n int) (*Client, error) {
	c := &Client{}
	for range n {
		conn, err := grpc.NewClient("passthrough:///"+address,
			grpc.WithTransportCredentials(insecure.NewCredentials()),
			grpc.WithInitialWindowSize(streamWindow), grpc.WithInitialConnWindowSize(connectionWindow),
			grpc.WithDisableRetry(), grpc.WithDefaultCallOptions(grpc.ForceCodecV2(codec{})))
		if err != nil {
			return nil, errors.Join(fmt.Errorf("dial %s: %w", address, err), c.Close())
		}
		c.connections = append(c.connections, conn)
	}
	return c, nil
}

// Close ends the connections.
func (c *Client) Close() error {
	var errs []error
	for _, conn := range c.connections {
		errs = append(errs, conn.Close())
	}
	return errors.Join(errs...)
}

// codec sends messages that are encoded already, and decodes answers.
type codec struct{}

type encoded []byte

// Marshal sends the bytes themselves; exchanges never change.
func (codec) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(encoded)
	if !ok {
		return nil, fmt.Errorf("%T is not an encoded message", v)
	}
	return mem.BufferSlice{mem.SliceBuffer(b)}, nil
}

// Unmarshal decodes an answer.
func (codec) Unmarshal(data mem.BufferSlice, v any) error {
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("%T is not a message", v)
	}
	b := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer b.Free()
	return proto.Unmarshal(b.ReadOnlyData(), m)
}

// Name is that of the codec on the wire.
func (codec) Name() string { return "proto" }

// Times returns a function that is true n times, whoever calls it.
func Times(n int) func() bool {
	var begun atomic.Int64
	return func() bool { return begun.Add(1) <= int64(n) }
}

// Run sends the exchanges in turn, so many at once, while more returns true. It returns how long each request waited: from
// the moment it was complete until the last of its answers. The first fault ends the run, and so does parent, with its
// error.
func (c *Client) Run(parent context.Context, exchanges []*Exchange, concurrency int, more func() bool) ([]time.Duration, error) {
	g, ctx := errgroup.WithContext(parent)
	waits := make([][]time.Duration, concurrency)
	var next atomic.Int64
	for worker := range concurrency {
		g.Go(func() error {
			for ctx.Err() == nil && more() {
				i := int(next.Add(1) - 1)
				wait, err := c.Do(ctx, worker, exchanges[i%len(exchanges)])
				if err != nil {
					return fmt.Errorf("request %d: %w", i, err)
				}
				waits[worker] = append(waits[worker], wait)
			}
			return ctx.Err()
		})
	}
	err := g.Wait()
	if parent.Err() != nil {
		err = parent.Err() // gRPC has a word of its own for it
	}
	var all []time.Duration
	for _, w := range waits {
		all = append(all, w...)
	}
	return all, err
}

var processDesc = extprocv3.ExternalProcessor_ServiceDesc.Streams[0]

// Do sends one exchange over the connection with this number (modulo their count), and checks each answer. It returns how
// long the request waited.
func (c *Client) Do(ctx context.Context, connection int, x *Exchange) (time.Duration, error) {
	// As Envoy does at the end of a response, the client resets the call instead of waiting for its end.
	ctx, reset := context.WithCancel(ctx)
	defer reset()
	call, err := c.connections[connection%len(c.connections)].NewStream(ctx, &processDesc, extprocv3.ExternalProcessor_Process_FullMethodName)
	if err != nil {
		return 0, fmt.Errorf("open a stream: %w", err)
	}
	s := stream{call: call}
	wait, err := s.request(x)
	if err != nil {
		return 0, fmt.Errorf("request: %w", err)
	}
	if err := s.response(x); err != nil {
		return 0, fmt.Errorf("response: %w", err)
	}
	return wait, nil
}
