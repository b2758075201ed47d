package kvevents

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// network carries connections in memory, so that engines and feeds run in the virtual time of a synctest bubble.
type network struct {
	t *testing.T

	mu      sync.Mutex
	servers map[string]func(net.Conn)
	holes   map[string]bool // addresses that swallow what is sent there
	dials   map[string]int
	ctx     context.Context // ends with the test
	work    sync.WaitGroup
}

func newNetwork(t *testing.T) *network {
	n := &network{t: t, servers: map[string]func(net.Conn){}, holes: map[string]bool{}, dials: map[string]int{}, ctx: t.Context()}
	t.Cleanup(n.work.Wait)
	return n
}

func (n *network) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	n.dials[address]++
	serve, hole := n.servers[address], n.holes[address]
	n.mu.Unlock()
	if hole {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	if serve == nil {
		return nil, errors.New("connection refused")
	}
	here, there := pipe()
	n.work.Go(func() { serve(there) })
	return here, nil
}

func (n *network) dialled(address string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.dials[address]
}

func (n *network) listen(address string, serve func(net.Conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.servers[address] = serve
}

func (n *network) hang(address string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.holes[address] = true
}

// speak serves ZMTP on an address; each connection is handled by handle, which ends with it.
func (n *network) speak(address string, socket zmtp.Socket, handle func(c *zmtp.Conn)) {
	n.listen(address, func(nc net.Conn) {
		c, err := zmtp.Handshake(n.ctx, nc, socket, zmtp.Options{})
		if err != nil {
			return
		}
		defer c.Close()
		defer context.AfterFunc(n.ctx, func() { c.Close() })()
		handle(c)
	})
}

// process is the life of one engine process, as far as its KV events go.
type process struct {
	n           *network
	id, rank    int
	noRank      bool
	pub, replay string // addresses
	topic       string
	shortReply  bool // replies without a topic
	first       uint64
	buffer      int // messages that it replays

	// answer replaces how a replay is answered; nil answers as engines do.
	answer func(start uint64, log []published, reply func(seq uint64, payload []byte))

	mu       sync.Mutex
	log      []published
	subs     map[*zmtp.Conn]bool
	dealers  map[*zmtp.Conn]bool
	requests []uint64
}

type published struct {
	seq     uint64
	payload []byte
}

// newProcess starts a process of rank 0 on the addresses that endpoint() of the tests has.
func (n *network) newProcess(id int) *process {
	return &process{
		n: n, id: id, pub: "10.0.0.5:5557", replay: "10.0.0.5:5657", topic: "kv", buffer: 10_000,
		subs: map[*zmtp.Conn]bool{}, dealers: map[*zmtp.Conn]bool{},
	}
}

// start opens the sockets.
func (p *process) start() *process {
	p.n.speak(p.pub, zmtp.PUB, func(c *zmtp.Conn) {
		for {
			frames, err := c.Receive()
			p.mu.Lock()
			if err != nil {
				delete(p.subs, c)
				p.mu.Unlock()
				return
			}
			p.subs[c] = frames[0][0] == 1
			p.mu.Unlock()
		}
	})
	if p.replay != "" {
		p.n.speak(p.replay, zmtp.ROUTER, p.serveReplay)
	}
	return p
}

func (p *process) serveReplay(c *zmtp.Conn) {
	p.mu.Lock()
	p.dealers[c] = true
	p.mu.Unlock()
	for {
		frames, err := c.Receive()
		if err != nil {
			return
		}
		start := binary.BigEndian.Uint64(frames[1])
		p.mu.Lock()
		p.requests = append(p.requests, start)
		log := p.log[max(0, len(p.log)-p.buffer):]
		answer := p.answer
		p.mu.Unlock()
		reply := func(seq uint64, payload []byte) {
			number := binary.BigEndian.AppendUint64(nil, seq)
			if p.shortReply {
				_ = c.Send(nil, number, payload)
			} else {
				_ = c.Send(nil, []byte(p.topic), number, payload)
			}
		}
		if answer == nil {
			answer = replayAll
		}
		answer(start, log, reply)
	}
}

// replayAll answers as vLLM does.
func replayAll(start uint64, log []published, reply func(seq uint64, payload []byte)) {
	for _, m := range log {
		if m.seq >= start {
			reply(m.seq, m.payload)
		}
	}
	reply(wire.ReplayEnd, nil)
}

// asked are the start numbers of the replays asked for so far.
func (p *process) asked() []uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]uint64(nil), p.requests...)
}

// publish publishes a batch; lost ones go to nobody.
func (p *process) publish(events ...wire.Event) { p.send(true, events...) }
func (p *process) lose(events ...wire.Event)    { p.send(false, events...) }

func (p *process) send(deliver bool, events ...wire.Event) {
	p.mu.Lock()
	seq := p.first + uint64(len(p.log))
	p.mu.Unlock()
	// The time names the process and the number: what the recorder writes down.
	b := &wire.Batch{Time: float64(p.id*100_000) + float64(seq), Rank: p.rank, HasRank: !p.noRank, Events: events}
	p.sendRaw(deliver, wire.AppendBatch(nil, b))
}

func (p *process) sendRaw(deliver bool, payload []byte) {
	p.mu.Lock()
	m := published{p.first + uint64(len(p.log)), payload}
	p.log = append(p.log, m)
	p.mu.Unlock()
	if deliver {
		p.frames([]byte(p.topic), binary.BigEndian.AppendUint64(nil, m.seq), payload)
	}
}

// frames sends a message as it is.
func (p *process) frames(frames ...[]byte) {
	p.mu.Lock()
	var to []*zmtp.Conn
	for c, subscribed := range p.subs {
		if subscribed {
			to = append(to, c)
		}
	}
	p.mu.Unlock()
	for _, c := range to {
		_ = c.Send(frames...)
	}
	synctest.Wait()
}

// cut breaks all connections.
func (p *process) cut() {
	p.mu.Lock()
	for c := range p.subs {
		c.Close()
	}
	for c := range p.dealers {
		c.Close()
	}
	p.mu.Unlock()
	synctest.Wait()
}

// kill ends the process: its sockets refuse from now on.
func (p *process) kill() {
	p.n.listen(p.pub, nil)
	p.n.listen(p.replay, nil)
	p.cut()
}

// pages answers HTTP in memory: by path, a body, or none for 404. hang makes every request wait, refuse fail.
type pages struct {
	mu           sync.Mutex
	bodies       map[string]string
	status       int
	hang, refuse bool
	asked        []string
}

func (p *pages) RoundTrip(r *http.Request) (*http.Response, error) {
	p.mu.Lock()
	p.asked = append(p.asked, r.URL.Path)
	hang, refuse, status := p.hang, p.refuse, p.status
	body, ok := p.bodies[r.URL.Path]
	p.mu.Unlock()
	if hang {
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	if refuse {
		return nil, errors.New("connection refused")
	}
	res := &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(strings.NewReader(body)), Request: r}
	if status != 0 {
		res.StatusCode = status
	} else if !ok {
		res.StatusCode = http.StatusNotFound
	}
	return res, nil
}

func (p *pages) set(f func(p *pages)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(p)
}

func (p *pages) count() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.asked)
}

// mute serves a connection by taking what comes and never answering.
func (n *network) mute(nc net.Conn) {
	defer nc.Close()
	defer context.AfterFunc(n.ctx, func() { nc.Close() })()
	_, _ = io.Copy(io.Discard, nc)
}

func clientOf(p *pages) *http.Client { return &http.Client{Transport: p} }
