package engine

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/sim"
)

// emission is one published message.
type emission struct {
	topic   string
	seq     uint64
	payload []byte
}

// mirror keeps what the events of one stream say is cached.
type mirror struct {
	decoder wire.Decoder
	counts  map[string]map[uint64]int // by medium
	texts   map[uint64]string         // by hash, all that a block's key covers
	orphans int                       // stores whose parent is not known
	stray   int                       // removals of what is not there
	kinds   map[wire.Kind]int
	extra   []string // of GPU stores, "adapter/items of each block"
	bare    int      // stores without tokens
}

func newMirror() *mirror {
	return &mirror{
		counts: map[string]map[uint64]int{"gpu": {}, "cpu": {}}, texts: map[uint64]string{}, kinds: map[wire.Kind]int{},
	}
}

func (m *mirror) apply(t testing.TB, payload []byte, rank int) {
	t.Helper()
	b, err := m.decoder.Decode(payload)
	if err != nil {
		t.Fatal(err)
	}
	if age := time.Since(time.UnixMicro(int64(b.Time * 1e6))); age < -time.Second || age > time.Minute {
		t.Errorf("batch is %v old", age)
	}
	if b.Rank != rank || !b.HasRank || b.Bad+b.Unknown > 0 || len(b.Events) == 0 {
		t.Errorf("batch of rank %d with %d events, %d bad, %d unknown", b.Rank, len(b.Events), b.Bad, b.Unknown)
	}
	for i := range b.Events {
		e := &b.Events[i]
		m.kinds[e.Kind]++
		switch e.Kind {
		case wire.Stored:
			m.stored(t, e)
		case wire.Removed:
			for _, h := range e.Hashes {
				if m.counts[e.Medium][h]--; m.counts[e.Medium][h] < 0 {
					m.stray++
				}
				if m.counts[e.Medium][h] <= 0 {
					delete(m.counts[e.Medium], h)
				}
			}
		case wire.Cleared:
			clear(m.counts["gpu"]) // no reset in these tests empties the tier
		}
	}
}

func (m *mirror) stored(t testing.TB, e *wire.Event) {
	t.Helper()
	for _, h := range e.Hashes {
		m.counts[e.Medium][h]++
	}
	if len(e.Tokens) == 0 {
		m.bare++
		return
	}
	if len(e.Tokens) != len(e.Hashes)*e.BlockSize || e.Spec != "full_attention" || !e.HasGroup || e.Group != 0 {
		t.Fatalf("event %+v", e)
	}
	text := string(e.LoRA)
	if e.HasParent {
		var known bool
		if text, known = m.texts[e.Parent]; !known {
			m.orphans++
			return
		}
	}
	for i, h := range e.Hashes {
		var keys []string
		for _, item := range e.Keys(i) {
			keys = append(keys, string(item.Value))
		}
		text += fmt.Sprint(keys, e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize])
		if old, ok := m.texts[h]; ok && old != text && e.Medium == "gpu" {
			t.Fatalf("hash %x stands for %q and %q", h, old, text)
		}
		if e.Medium == "gpu" { // the tier's events lack extra keys
			m.texts[h] = text
			m.extra = append(m.extra, string(e.LoRA)+"/"+strings.Join(keys, ","))
		}
	}
}

// equals compares what the events say with what the model holds.
func (m *mirror) equals(t testing.TB, s *Server) {
	t.Helper()
	for medium, of := range map[string]sim.Medium{"gpu": sim.GPU, "cpu": sim.CPU} {
		if want := s.Cached(of); !maps.Equal(want, m.counts[medium]) {
			t.Errorf("%s: %d hashes cached, events say %d: %s", medium, len(want), len(m.counts[medium]),
				cmp.Diff(want, m.counts[medium]))
		}
	}
	if m.orphans+m.stray > 0 {
		t.Errorf("%d stores with an unknown parent, %d removals of nothing", m.orphans, m.stray)
	}
}

// listener collects the messages of a publisher.
type listener struct {
	mu       sync.Mutex
	messages []emission
	connects int
	cuts     int
	changed  chan struct{}
}

func (l *listener) note(f func()) {
	l.mu.Lock()
	f()
	l.mu.Unlock()
	select {
	case l.changed <- struct{}{}:
	default:
	}
}

func (l *listener) Connected(net.Addr)     { l.note(func() { l.connects++ }) }
func (l *listener) Disconnected(err error) { l.note(func() { l.cuts++ }) }

func (l *listener) Message(frames [][]byte) {
	topic, seq, payload, err := wire.ParseFrames(frames)
	if err != nil {
		topic, payload = []byte("not a message: "+err.Error()), nil
	}
	m := emission{string(topic), seq, slices.Clone(payload)}
	l.note(func() { l.messages = append(l.messages, m) })
}

// wait returns the messages when there are n of them.
func (l *listener) wait(t testing.TB, what string, ok func() bool) []emission {
	t.Helper()
	timeout := time.After(15 * time.Second)
	for {
		l.mu.Lock()
		done, out := ok(), slices.Clone(l.messages)
		l.mu.Unlock()
		if done {
			return out
		}
		select {
		case <-l.changed:
		case <-timeout:
			t.Fatalf("never happened: %s; %d messages, %d connections, %d cuts", what, len(out), l.connects, l.cuts)
		}
	}
}

func (l *listener) until(t testing.TB, n int) []emission {
	t.Helper()
	return l.wait(t, fmt.Sprint(n, " messages"), func() bool { return len(l.messages) >= n })
}

// address is host:port of an endpoint of /kv_event_sources, seen from the server's host.
func address(t testing.TB, s *Server, endpoint string) string {
	t.Helper()
	rest, ok := strings.CutPrefix(endpoint, "tcp://*:")
	if !ok {
		t.Fatalf("endpoint %q is not bound", endpoint)
	}
	host, _, err := net.SplitHostPort(s.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return net.JoinHostPort(host, rest)
}

func sources(t testing.TB, s *Server) map[string]source {
	t.Helper()
	var m map[string]source
	get(t, s, "/kv_event_sources").json(t, &m)
	return m
}

// listen subscribes to a server's events and returns once it is subscribed.
func listen(t testing.TB, s *Server) *listener {
	t.Helper()
	l := &listener{changed: make(chan struct{}, 1)}
	sub := zmtp.Subscriber{
		Address: address(t, s, sources(t, s)["0"].Endpoint),
		Backoff: zmtp.Backoff{Min: 5 * time.Millisecond, Max: 50 * time.Millisecond},
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- sub.Run(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("subscriber ended with %v", err)
		}
	})
	eventually(t, "subscribed", func() bool { return s.present().events.publisher.Subscribers() == 1 })
	return l
}

// ask requests a replay with the given frames and returns what comes before the end marker.
func ask(t testing.TB, s *Server, frames ...[]byte) []emission {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := zmtp.Dial(ctx, address(t, s, *sources(t, s)["0"].ReplayEndpoint), zmtp.DEALER, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := c.Send(frames...); err != nil {
		t.Fatal(err)
	}
	var out []emission
	for {
		got, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != 4 || len(got[0]) != 0 {
			t.Fatalf("reply of %d frames, the first %x", len(got), got[0])
		}
		seq, payload, err := wire.ParseReply(got)
		if err != nil {
			t.Fatal(err)
		}
		if seq == wire.ReplayEnd {
			if len(got[1])+len(payload) != 0 {
				t.Errorf("end marker with topic %q and %d bytes", got[1], len(payload))
			}
			return out
		}
		out = append(out, emission{string(got[1]), seq, slices.Clone(payload)})
	}
}

func replay(t testing.TB, s *Server, from uint64) []emission {
	t.Helper()
	return ask(t, s, nil, binary.BigEndian.AppendUint64(nil, from))
}

func numbers(messages []emission) []uint64 {
	out := []uint64{}
	for _, m := range messages {
		out = append(out, m.seq)
	}
	return out
}
