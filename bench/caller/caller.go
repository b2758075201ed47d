// Package caller is an HTTP/1.1 client that keeps its connections, checks every streamed answer and measures how long its
// headers take. It is as small as that: what the client costs is taken from the same cores as what is measured.
package caller

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
)

// Client sends chat completions to some addresses in turn.
type Client struct {
	addresses []string
	requests  [][]byte
	workers   []*worker
	next      atomic.Int64
}

// timeout bounds one request.
const timeout = 2 * time.Minute

// endMark ends a streamed answer.
var endMark = []byte("data: [DONE]\n\n")

// New returns a client that posts the bodies, in turn, to the addresses, in turn, so many at once. headers are further
// lines, each with its line end.
func New(addresses []string, bodies [][]byte, concurrency int, headers string) *Client {
	c := &Client{addresses: addresses}
	for _, b := range bodies {
		request := fmt.Appendf(nil, "POST /v1/chat/completions HTTP/1.1\r\nHost: llm.example.com\r\nContent-Type: application/json\r\n"+
			"Accept: application/json\r\nUser-Agent: OpenAI/Python 1.99.0\r\n"+
			"Authorization: Bearer sk-0123456789abcdef0123456789abcdef\r\n%sContent-Length: %d\r\n\r\n", headers, len(b))
		c.requests = append(c.requests, append(request, b...))
	}
	for range concurrency {
		c.workers = append(c.workers, &worker{connections: map[string]*connection{}})
	}
	return c
}

// Close ends the connections. Run must not be under way.
func (c *Client) Close() error {
	var errs []error
	for _, w := range c.workers {
		for _, conn := range w.connections {
			errs = append(errs, conn.Close())
		}
		clear(w.connections)
	}
	return errors.Join(errs...)
}

// Run sends requests for as long as more returns true. It returns how long the headers of each answer took, from the
// request's first byte. The first fault ends the run, and so does parent, with its error.
func (c *Client) Run(parent context.Context, more func() bool) ([]time.Duration, error) {
	g, ctx := errgroup.WithContext(parent)
	waits := make([][]time.Duration, len(c.workers))
	for i, w := range c.workers {
		g.Go(func() error {
			defer context.AfterFunc(ctx, w.interrupt)()
			for ctx.Err() == nil && more() {
				n := int(c.next.Add(1) - 1)
				wait, err := w.do(ctx, c.addresses[n%len(c.addresses)], c.requests[n%len(c.requests)])
				if err != nil {
					return fmt.Errorf("request %d: %w", n, err)
				}
				waits[i] = append(waits[i], wait)
			}
			return ctx.Err()
		})
	}
	err := g.Wait()
	if parent.Err() != nil {
		err = parent.Err() // a connection that is cut has a word of its own for it
	}
	var all []time.Duration
	for _, w := range waits {
		all = append(all, w...)
	}
	return all, err
}

// worker sends one request after the other, over a connection per address.
type worker struct {
	connections map[string]*connection
	current     atomic.Pointer[connection]
	answer      bytes.Buffer
}

type connection struct {
	net.Conn
	reader *bufio.Reader
}

// interrupt cuts a request short.
func (w *worker) interrupt() {
	if c := w.current.Load(); c != nil {
		_ = c.SetDeadline(time.Unix(1, 0)) // the request fails with it
	}
}

func (w *worker) do(ctx context.Context, address string, request []byte) (time.Duration, error) {
	c := w.connections[address]
	if c == nil {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", address)
		if err != nil {
			return 0, err
		}
		c = &connection{Conn: conn, reader: bufio.NewReaderSize(conn, 32<<10)}
		w.connections[address] = c
	}
	begin := time.Now()
	if err := c.SetDeadline(begin.Add(timeout)); err != nil {
		return 0, err
	}
	w.current.Store(c)
	defer w.current.Store(nil)
	if err := ctx.Err(); err != nil {
		return 0, err // interrupt may have come before there was anything to cut
	}
	if _, err := c.Write(request); err != nil {
		return 0, err
	}
	response, err := http.ReadResponse(c.reader, nil)
	if err != nil {
		return 0, fmt.Errorf("answer of %s: %w", address, err)
	}
	wait := time.Since(begin)
	w.answer.Reset()
	_, err = w.answer.ReadFrom(response.Body)
	if closing := errors.Join(response.Body.Close(), err); closing != nil {
		return 0, fmt.Errorf("answer of %s: %w", address, closing)
	}
	if response.Close {
		delete(w.connections, address)
		if err := c.Close(); err != nil {
			return 0, err
		}
	}
	return wait, check(response.StatusCode, w.answer.Bytes())
}

// check wants a whole streamed answer.
func check(status int, body []byte) error {
	if status != http.StatusOK {
		return fmt.Errorf("status %d: %s", status, body[:min(len(body), 500)])
	}
	if !bytes.HasPrefix(body, []byte("data: ")) || !bytes.HasSuffix(body, endMark) {
		return fmt.Errorf("an answer of %d bytes that is no whole stream of events: %w", len(body), io.ErrUnexpectedEOF)
	}
	return nil
}
