package vllm

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tinylib/msgp/msgp"

	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/test/lab"
)

// tap listens to one life of an engine from its first event on, and keeps what the events say.
type tap struct {
	cancel    context.CancelFunc
	done      chan struct{}
	connected chan struct{}

	mu      sync.Mutex
	reading *reading
	last    time.Time // of the last message
	batches int       // messages so far
	story   []string  // the events since the last call of tell
	fault   error
}

// listen connects to an engine that has published nothing yet.
func listen(t *testing.T, e *engine) *tap {
	t.Helper()
	address, _ := e.eventSockets(t)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // it ends with the engine
	p := &tap{cancel: cancel, done: make(chan struct{}), connected: make(chan struct{}), reading: newReading()}
	s := &zmtp.Subscriber{Address: address}
	go func() {
		defer close(p.done)
		_ = s.Run(ctx, p) // ends with ctx alone
	}()
	e.owner.Cleanup(p.stop)
	select {
	case <-p.connected:
	case <-time.After(lab.Timeout):
		t.Fatalf("%s: no connection to its events on %s", e.name, address)
	}
	return p
}

func (p *tap) stop() {
	p.cancel()
	<-p.done
}

// Connected implements zmtp.Handler. A second connection within a life would have missed something.
func (p *tap) Connected(net.Addr) {
	select {
	case <-p.connected:
		p.fail(fmt.Errorf("connected again after %d messages", p.batches))
	default:
		close(p.connected)
	}
}

// Disconnected implements zmtp.Handler.
func (p *tap) Disconnected(error) {}

// Message implements zmtp.Handler.
func (p *tap) Message(frames [][]byte) {
	if err := p.take(frames); err != nil {
		p.fail(err)
	}
}

func (p *tap) fail(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault == nil {
		p.fault = err
	}
}

func (p *tap) take(frames [][]byte) error {
	if len(frames) != 3 || len(frames[1]) != 8 {
		return fmt.Errorf("a message of %d frames", len(frames))
	}
	seq := binary.BigEndian.Uint64(frames[1])
	payload, rest, err := msgp.ReadIntfBytes(frames[2])
	if err != nil || len(rest) > 0 {
		return fmt.Errorf("message %d: %w, %d bytes left", seq, err, len(rest))
	}
	batch, ok := payload.([]any)
	if !ok || len(batch) < 2 {
		return fmt.Errorf("message %d is no batch: %v", seq, payload)
	}
	events, ok := batch[1].([]any)
	if !ok {
		return fmt.Errorf("message %d has no events: %v", seq, payload)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if seq != uint64(p.batches) {
		return fmt.Errorf("message %d comes after %d others", seq, p.batches)
	}
	p.batches++
	p.last = time.Now()
	for _, raw := range events {
		event, ok := raw.(map[string]any)
		if !ok {
			return fmt.Errorf("message %d: no event: %v", seq, raw)
		}
		if err := p.reading.apply(event); err != nil {
			return fmt.Errorf("message %d: %w", seq, err)
		}
		p.story = append(p.story, fmt.Sprintf("%d %s", seq, describe(event)))
	}
	return nil
}

// describe is an event in a line, its tokens left out.
func describe(event map[string]any) string {
	s := fmt.Sprint(event["type"])
	for _, key := range []string{"block_hashes", "parent_block_hash", "block_size", "lora_name", "extra_keys", "medium", "group_idx"} {
		if v, ok := event[key]; ok && v != nil {
			s += fmt.Sprintf(" %s=%v", key, v)
		}
	}
	if tokens, ok := event["token_ids"].([]any); ok {
		s += fmt.Sprintf(" tokens=%d", len(tokens))
	}
	return s
}

// quietFor is how long nothing was published, and how many messages there were.
func (p *tap) quietFor() (time.Duration, int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return time.Since(p.last), p.batches
}

// tell is what happened since it was last called.
func (p *tap) tell() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	s := strings.Join(p.story, "\n")
	p.story = p.story[:0]
	return s
}

// expect is how many tokens of a prompt the engine will have in its cache, as its events say.
func (p *tap) expect(t *testing.T, r request, tokens []uint32) int {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.fault != nil {
		t.Fatalf("the tap of the events: %v", p.fault)
	}
	return p.reading.cached(tokens, r.adapter(), r.salt())
}

// announced has the request of the moment announce what it reuses of the engine's cache; nil: it does not.
func (p *tap) announced(r *request, tokens []uint32) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.reading.again = map[string]bool{}
	if r != nil && r.announcesAll() {
		for _, name := range p.reading.prefix(tokens, r.adapter(), r.salt()) {
			p.reading.again[name] = true
		}
	}
}
