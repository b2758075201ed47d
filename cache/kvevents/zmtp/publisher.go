package zmtp

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// PublisherOptions bound a [Publisher]. A field that is not positive stands for its default.
type PublisherOptions struct {
	// Queue is the most messages that wait for one subscriber, 1000 by default, and QueueBytes the most bytes, 64 MiB
	// by default; one message is taken however large. What comes beyond is dropped for that subscriber, whole
	// messages only, and counted.
	Queue, QueueBytes int
	// MaxTopics is the most different topics of one subscriber, 1024 by default, of 256 KiB together. One that asks
	// for more is closed.
	MaxTopics int
	// MaxConnections is the most subscribers at once of each bound address; 1024 by default.
	MaxConnections int
	// Options bound each connection; MaxFrameBytes is 64 KiB by default, since subscribers send little. A subscriber
	// that takes nothing for Options.WriteTimeout while something waits for it is closed.
	Options Options
	// Backoff spaces the dials of [Publisher.Connect].
	Backoff Backoff
}

// Publisher is a PUB socket. It may be bound and connected to several addresses, and every message goes to each
// subscriber whose topics it fits. Its methods may be called by several goroutines.
type Publisher struct {
	options PublisherOptions
	ctx     context.Context
	end     context.CancelFunc
	running sync.WaitGroup
	dropped atomic.Uint64

	mu     sync.RWMutex
	closed bool
	peers  map[*subscriber]struct{}
}

// NewPublisher returns a Publisher without subscribers. [Publisher.Close] has to end it.
func NewPublisher(o PublisherOptions) *Publisher {
	o.Queue = positive(o.Queue, 1000)
	o.QueueBytes = positive(o.QueueBytes, 64<<20)
	o.MaxTopics = positive(o.MaxTopics, 1024)
	o.MaxConnections = positive(o.MaxConnections, 1024)
	o.Options.MaxFrameBytes = positive(o.Options.MaxFrameBytes, 64<<10)
	o.Options = o.Options.withDefaults()
	o.Backoff = o.Backoff.withDefaults()
	ctx, end := context.WithCancel(context.Background())
	return &Publisher{options: o, ctx: ctx, end: end, peers: map[*subscriber]struct{}{}}
}

// Listen binds the Publisher to host:port and returns the address; an empty host means every address, port 0 a free
// port.
func (p *Publisher) Listen(address string) (net.Addr, error) {
	l, err := listen(address, PUB, p.options.Options, p.options.MaxConnections)
	if err != nil {
		return nil, err
	}
	if err := p.start(func() { _ = l.run(p.ctx, func(ctx context.Context, c *Conn, _ *member) { p.serve(ctx, c) }) }); err != nil {
		l.ln.Close()
		return nil, err
	}
	return l.ln.Addr(), nil
}

// Connect keeps the Publisher connected to a bound SUB at host:port, dialling for as long as it takes.
func (p *Publisher) Connect(address string) error {
	address, err := hostPort(address)
	if err != nil {
		return err
	}
	return p.start(func() {
		keepUp(p.ctx, p.options.Backoff, func(ctx context.Context) bool {
			c, err := Dial(ctx, address, PUB, p.options.Options)
			if err != nil {
				return false
			}
			begun := time.Now()
			p.serve(ctx, c)
			return time.Since(begun) >= p.options.Backoff.Max
		})
	})
}

func (p *Publisher) start(run func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return ErrClosed
	}
	p.running.Go(run)
	return nil
}

// serve feeds one subscriber until its connection ends.
func (p *Publisher) serve(ctx context.Context, c *Conn) {
	s := newSubscriber(c, p.options)
	defer c.Close()
	defer context.AfterFunc(ctx, func() { c.Close() })()
	p.mu.Lock()
	p.peers[s] = struct{}{}
	p.mu.Unlock()
	var writing sync.WaitGroup
	writing.Go(s.write)
	s.read()
	p.mu.Lock()
	delete(p.peers, s)
	p.mu.Unlock()
	c.Close()
	s.stop()
	writing.Wait()
}

// Send publishes one message; its first frame is the topic. It waits for no subscriber, and copies the frames. A message
// that nobody subscribes to is gone.
func (p *Publisher) Send(frames ...[]byte) error {
	if len(frames) == 0 {
		return errors.New("zmtp: send: a message has at least one frame")
	}
	p.mu.RLock()
	defer p.mu.RUnlock()
	if p.closed {
		return ErrClosed
	}
	var encoded []byte // shared by the queues
	for s := range p.peers {
		if !s.wants(frames[0]) {
			continue
		}
		if encoded == nil {
			encoded = appendMessage(make([]byte, 0, messageBytes(frames)), frames)
		}
		if !s.offer(encoded) {
			p.dropped.Add(1)
		}
	}
	return nil
}

// Dropped is how many messages were dropped so far because a subscriber's queue was full, once for each subscriber.
func (p *Publisher) Dropped() uint64 { return p.dropped.Load() }

// Subscribers is how many connected peers subscribe to a topic now.
func (p *Publisher) Subscribers() int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	n := 0
	for s := range p.peers {
		if s.topicCount() > 0 {
			n++
		}
	}
	return n
}

// Close ends every connection, unbinds, and waits until nothing is left; messages in the queues are gone.
func (p *Publisher) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.end()
	p.running.Wait()
	return nil
}
