// Package engines stands in for a pool of engines: loopback addresses that answer what a picker or a router asks of an
// engine, publish KV events where they are told to, and stream an answer of any number of chunks. Nothing is inferred.
package engines

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Options describe a pool.
type Options struct {
	// Engines is how many there are.
	Engines int
	// Prompts are the chat bodies that are asked, to whose answers the engines know the usage. Others are answered too.
	Prompts [][]byte
	// Groups is how many prefixes the prompts share, prompt i that of group i % Groups; engine i holds the beginnings of
	// group i % Groups. It matters where Events is set.
	Groups int
	// Events makes every engine publish what it holds, and replay it.
	Events bool
	// RealPage serves a metrics page of a real vLLM's size instead of a short one.
	RealPage bool
}

// Pool is a number of engines. Close ends them.
type Pool struct {
	options   Options
	addresses []string
	server    *http.Server
	serving   sync.WaitGroup
	prompts   map[uint64]usage // by the hash of the body
	sources   []*source        // one an engine, or none
	byAddress map[string]int   // the engine of a listener's address
	pages     [2][]byte        // metrics pages, shown in turn
	stop      context.CancelFunc

	answer           atomic.Pointer[[][]byte] // all but the last chunk
	read             atomic.Int64             // metrics pages
	answered, strays atomic.Int64

	mu       sync.Mutex
	failures []error
}

// Start opens a listener per engine, each on a free port of 127.0.0.1.
func Start(o Options) (p *Pool, err error) {
	p = &Pool{options: o, byAddress: map[string]int{}, prompts: map[uint64]usage{}}
	if p.pages, err = pages(o.RealPage); err != nil {
		return nil, err
	}
	for _, b := range o.Prompts {
		p.prompts[sum(b)] = usageOf(b)
	}
	p.SetChunks(defaultChunks)
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	p.server = &http.Server{Handler: p.handler(), ReadHeaderTimeout: 10 * time.Second}
	if err := p.listen(ctx); err != nil {
		return nil, errors.Join(err, p.Close())
	}
	return p, nil
}

func (p *Pool) listen(ctx context.Context) error {
	var held []held
	if p.options.Events {
		held = holdings(p.options.Prompts, max(1, p.options.Groups))
	}
	for i := range p.options.Engines {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("engine %d of %d: %w", i+1, p.options.Engines, err)
		}
		address := l.Addr().String()
		p.addresses = append(p.addresses, address)
		p.byAddress[address] = i
		p.serving.Go(func() { p.serve(l) })
		if len(held) == 0 {
			continue
		}
		s, err := publish(ctx, held[i%len(held)])
		if err != nil {
			return fmt.Errorf("engine %d of %d: %w", i+1, p.options.Engines, err)
		}
		p.sources = append(p.sources, s)
	}
	return nil
}

func (p *Pool) serve(l net.Listener) {
	if err := p.server.Serve(l); err != nil && !errors.Is(err, http.ErrServerClosed) {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.failures = append(p.failures, fmt.Errorf("engine %v: %w", l.Addr(), err))
	}
}

// Addresses are the engines' host:port.
func (p *Pool) Addresses() []string { return p.addresses }

// HeldBlocks is how many KV blocks all engines together say that they hold.
func (p *Pool) HeldBlocks() (n int) {
	for _, s := range p.sources {
		n += s.held.blocks
	}
	return n
}

// PagesRead is how many metrics pages were asked for so far.
func (p *Pool) PagesRead() int64 { return p.read.Load() }

// PageBytes is the size of a metrics page.
func (p *Pool) PageBytes() int { return len(p.pages[0]) }

// Answered is how many chats were answered so far, and strays how many of them had a body that is none of the prompts.
func (p *Pool) Answered() (all, strays int64) { return p.answered.Load(), p.strays.Load() }

// Close ends the engines. It returns what went wrong while they served.
func (p *Pool) Close() error {
	p.stop()
	err := p.server.Close()
	for _, s := range p.sources {
		s.close()
	}
	p.serving.Wait()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(append(p.failures, err)...)
}
