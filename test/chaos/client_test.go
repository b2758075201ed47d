//go:build linux

package chaos

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"time"
)

// ending is where a client breaks off.
type ending string

// The endings. A client that goes to the end may still get no whole answer: that is what is looked for.
const (
	wholly      ending = "whole"
	inHeaders   ending = "in-headers"   // before the request's headers have ended
	inBody      ending = "in-body"      // in the middle of the request's body
	beforeFirst ending = "before-first" // after the request, before anything of the answer was read
	inAnswer    ending = "in-answer"    // after some of the answer's body
	afterLast   ending = "after-last"   // after the last piece of the answer, before its end
	afterEnd    ending = "after-end"    // after the answer's end, with a reset instead of a farewell
)

// draft is a request as a client means to send it.
type draft struct {
	id     string
	path   string
	body   []byte
	want   int // the status that it deserves
	ending ending
	wait   time.Duration // before breaking off
	share  float64       // how far to go in what is broken off in, 0 to 1
	reset  bool          // break off with a TCP reset, or at once in HTTP/2
	http2  bool
	stream bool
}

// outcome is what came of it.
type outcome struct {
	begun, ended time.Time
	status       int    // 0: no answer
	answer       string // SHA-256 of the whole answer's body; empty unless it was read to its end
	decision     string
	reason       string // Sluice's, or the beginning of the body of an answer that is not 200
	err          error  // the answer broke off, or never came; nil where the client broke off
}

// clients are what all clients of a run share.
type clients struct {
	address string // of Envoy
	one     *http.Client
	two     *http.Client
}

// requestLimit is longer than any request of a run may take.
const requestLimit = 40 * time.Second

func newClients(address string) *clients {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &clients{
		address: address,
		one:     &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 256, DisableCompression: true}},
		two:     &http.Client{Transport: &http.Transport{Protocols: &protocols, DisableCompression: true}},
	}
}

func (c *clients) close() {
	c.one.CloseIdleConnections()
	c.two.CloseIdleConnections()
}

// send sends a request, breaks off where it is to be broken off, and says what came of it.
func (c *clients) send(ctx context.Context, d draft) outcome {
	ctx, cancel := context.WithTimeout(ctx, requestLimit)
	defer cancel()
	o := outcome{begun: time.Now()}
	if d.ending == wholly || d.http2 {
		c.sendByClient(ctx, cancel, d, &o)
	} else {
		c.sendRaw(ctx, d, &o)
	}
	o.ended = time.Now()
	return o
}

// sendByClient uses an HTTP client; it breaks off by ending the context, which in HTTP/2 resets the stream alone.
func (c *clients) sendByClient(ctx context.Context, cancel context.CancelFunc, d draft, o *outcome) {
	var body io.Reader = bytes.NewReader(d.body)
	if d.ending == inBody {
		body = io.MultiReader(bytes.NewReader(d.body[:d.cut()]), &ender{ctx, d.wait, cancel})
	}
	if d.ending == beforeFirst {
		defer time.AfterFunc(d.wait, cancel).Stop()
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+c.address+d.path, body)
	if err != nil {
		o.err = err
		return
	}
	r.ContentLength = int64(len(d.body))
	r.Header.Set(idHeader, d.id)
	r.Header.Set("content-type", "application/json")
	client := c.one
	if d.http2 {
		client = c.two
	}
	res, err := client.Do(r)
	if err != nil {
		o.fail(ctx, d, err)
		return
	}
	defer res.Body.Close()
	o.read(ctx, d, res)
}

// cut is how many bytes of the body are sent where it is broken off: at least one less than all.
func (d draft) cut() int { return int(d.share * float64(len(d.body)-1)) }

// ender is a reader that calls end instead of giving anything.
type ender struct {
	ctx  context.Context
	wait time.Duration
	end  context.CancelFunc
}

func (e *ender) Read([]byte) (int, error) {
	pause(e.ctx, e.wait)
	e.end()
	return 0, context.Canceled
}

// fail notes why there is no whole answer, unless it is the client's own doing.
func (o *outcome) fail(ctx context.Context, d draft, err error) {
	if d.ending != wholly && ctx.Err() != nil {
		return
	}
	o.err = err
}

// read takes in an answer, as far as it is to be read.
func (o *outcome) read(ctx context.Context, d draft, res *http.Response) {
	o.status, o.decision, o.reason = res.StatusCode, res.Header.Get("x-sluice-decision"), res.Header.Get("x-sluice-reason")
	sum, start := sha256.New(), make([]byte, 0, 300)
	lines := bufio.NewReader(res.Body)
	pieces := 0
	for {
		line, err := lines.ReadSlice('\n')
		if errors.Is(err, bufio.ErrBufferFull) {
			err = nil
		}
		_, _ = sum.Write(line) // it never fails
		start = append(start, line[:min(len(line), cap(start)-len(start))]...)
		if len(line) > 1 {
			pieces++
		}
		switch {
		case errors.Is(err, io.EOF):
			o.answer = hex.EncodeToString(sum.Sum(nil))
		case err != nil:
			o.fail(ctx, d, fmt.Errorf("after %d pieces of the answer: %w", pieces, err))
		case d.ending == inAnswer && pieces > int(d.share*10),
			d.ending == afterLast && bytes.Contains(line, []byte("[DONE]")):
			pause(ctx, d.wait)
			err = io.EOF // broken off
		}
		if err != nil {
			break
		}
	}
	if o.status != http.StatusOK && o.reason == "" {
		o.reason = string(start)
	}
}

// sendRaw writes HTTP/1.1 by hand and leaves the connection where it is to be broken off.
func (c *clients) sendRaw(ctx context.Context, d draft, o *outcome) {
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", c.address)
	if err != nil {
		o.err = err
		return
	}
	defer conn.Close()
	if tcp, ok := conn.(*net.TCPConn); ok && d.reset {
		_ = tcp.SetLinger(0) // a refusal leaves the reset out
	}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nhost: chaos\r\n%s: %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n",
		d.path, idHeader, d.id, len(d.body))
	text := []byte(head)
	switch d.ending {
	case inHeaders:
		text = text[:1+int(d.share*float64(len(text)-4))]
	case inBody:
		text = append(text, d.body[:d.cut()]...)
	default:
		text = append(text, d.body...)
	}
	if _, err := conn.Write(text); err != nil {
		o.err = err
		return
	}
	switch d.ending {
	case inHeaders, inBody, beforeFirst:
		pause(ctx, d.wait)
		return
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		o.err = fmt.Errorf("no answer: %w", err)
		return
	}
	o.read(ctx, d, res)
}

func pause(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// drawing draws what clients send.
type drawing struct {
	random *rand.Rand
	name   string
	n      int
}

// endings are drawn from, as often as they stand here.
var endings = []ending{
	wholly, wholly, wholly, wholly, wholly, wholly, inHeaders, inBody, inBody, beforeFirst, beforeFirst, inAnswer, inAnswer, afterLast, afterEnd,
}

// next draws a request.
func (g *drawing) next() draft {
	r := g.random
	g.n++
	d := draft{
		id: fmt.Sprintf("%s.%d", g.name, g.n), want: http.StatusOK, path: "/v1/completions",
		ending: endings[r.IntN(len(endings))], share: r.Float64(), reset: r.IntN(2) == 0, http2: r.IntN(3) == 0,
		stream: r.IntN(3) > 0, wait: time.Duration(r.Int64N(int64(300 * time.Millisecond))),
	}
	switch d.ending {
	case inHeaders:
		d.http2 = false
	case afterLast, inAnswer:
		d.stream = true
	case afterEnd:
		d.http2, d.reset = false, true
	}
	if r.IntN(3) == 0 {
		d.wait = 0
	}
	d.body = g.body(&d)
	return d
}

// conversations is how many different ones there are; each request continues one of them from some turn.
const conversations = 60

// body is mostly a conversation in token ids, else a chat, sometimes large, sometimes cut off in the middle of a string.
func (g *drawing) body(d *draft) []byte {
	r := g.random
	more := fmt.Sprintf(`"model":"sim","max_tokens":%d,"stream":%t,"stream_options":{"include_usage":true}`, 3+r.IntN(10), d.stream)
	if r.IntN(20) == 0 {
		more += fmt.Sprintf(`,"metadata":{"note":%q}`, strings.Repeat("and so on ", 1000+r.IntN(20_000)))
	}
	n, turn := r.IntN(conversations), r.IntN(8)
	switch r.IntN(12) {
	case 0, 1:
		d.path = "/v1/chat/completions"
		return fmt.Appendf(nil, `{%s,"messages":[{"role":"system","content":"You are number %d."},{"role":"user","content":%q}]}`,
			more, n%4, strings.Repeat(fmt.Sprintf("conversation %d goes on; ", n), 3+6*turn))
	case 2:
		return fmt.Appendf(nil, `{%s,"prompt":%q}`, more, strings.Repeat(fmt.Sprintf("text %d goes on; ", n), 5+8*turn))
	case 3:
		if r.IntN(3) == 0 {
			d.want = http.StatusBadRequest
			return fmt.Appendf(nil, `{%s,"prompt":"breaks off`, more)
		}
	}
	return fmt.Appendf(nil, `{%s,"prompt":%s}`, more, conversation(n, turn))
}

// conversation is the prompt of a conversation's turn in token ids: one of four beginnings, then what is its own.
func conversation(n, turn int) string {
	tokens := make([]string, 0, 1000)
	add := func(seed uint64, count int) {
		r := rand.New(rand.NewPCG(seed, 7))
		for range count {
			tokens = append(tokens, fmt.Sprint(300+r.IntN(900)))
		}
	}
	add(uint64(n%4), 320)
	add(1000+uint64(n), 70*(turn+1))
	return "[" + strings.Join(tokens, ",") + "]"
}
