package kube

import (
	"net"
	"sync"
	"testing"
)

// proxy passes connections to the API server on, and can be cut.
type proxy struct {
	Addr string

	target string
	mu     sync.Mutex // guards what follows
	listen net.Listener
	open   map[net.Conn]bool
	frozen map[net.Conn]chan struct{} // what they bring is held until the channel is closed
	ended  sync.WaitGroup
}

func startProxy(t *testing.T, target string) *proxy {
	t.Helper()
	p := &proxy{target: target, open: map[net.Conn]bool{}, frozen: map[net.Conn]chan struct{}{}, Addr: "127.0.0.1:0"}
	p.Mend(t)
	t.Cleanup(func() { p.Cut(); p.ended.Wait() })
	return p
}

// Cut breaks all connections off and refuses new ones.
func (p *proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.listen != nil {
		_ = p.listen.Close()
	}
	p.listen = nil
	p.breakOff()
}

// Break breaks all connections off; new ones pass.
func (p *proxy) Break() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.breakOff()
}

// Freeze has the connections that are open pass nothing more, without an end, as a network that lost its state does. New
// ones pass.
func (p *proxy) Freeze() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.open {
		p.frozen[c] = make(chan struct{})
	}
}

// held waits for as long as a connection is frozen.
func (p *proxy) held(c net.Conn) {
	p.mu.Lock()
	thawed := p.frozen[c]
	p.mu.Unlock()
	if thawed != nil {
		<-thawed
	}
}

func (p *proxy) breakOff() {
	for c, thawed := range p.frozen {
		close(thawed)
		delete(p.frozen, c)
	}
	for c := range p.open {
		_ = c.Close()
	}
	clear(p.open)
}

// Mend passes connections again, at the address that they came to before.
func (p *proxy) Mend(t *testing.T) {
	t.Helper()
	l, err := net.Listen("tcp", p.Addr)
	if err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listen, p.Addr = l, l.Addr().String()
	p.ended.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			p.ended.Go(func() { p.pass(c) })
		}
	})
}

func (p *proxy) pass(c net.Conn) {
	up, err := net.Dial("tcp", p.target)
	if err != nil {
		_ = c.Close()
		return
	}
	p.mu.Lock()
	p.open[c], p.open[up] = true, true
	if p.listen == nil { // cut meanwhile
		p.breakOff()
	}
	p.mu.Unlock()
	var both sync.WaitGroup
	copyTo := func(to, from net.Conn) {
		defer func() { _ = to.Close() }()
		buffer := make([]byte, 32<<10)
		for {
			n, err := from.Read(buffer)
			p.held(from)
			if err != nil {
				return
			}
			if _, err := to.Write(buffer[:n]); err != nil {
				return
			}
		}
	}
	both.Go(func() { copyTo(up, c) })
	copyTo(c, up)
	both.Wait()
	p.mu.Lock()
	delete(p.open, c)
	delete(p.open, up)
	p.mu.Unlock()
}
