package engine

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/sim"
)

// KVEvents says how the events of the KV cache are published: as vLLM's ZmqEventPublisher does, one
// batch a step that changed the cache, each event a map. The zero value of a field takes the
// default given beside it.
type KVEvents struct {
	Listen         string // host of Config.Listen and a free port; address of the PUB socket
	Connect        string // none; host:port of a bound SUB socket to connect to, instead of Listen
	Replay         string // host of Config.Listen and a free port; address of the replay socket
	NoReplay       bool   // no replay socket
	Topic          string // "", with Connect "kv@ADDRESS@MODEL"; ADDRESS is the one served on
	BufferSteps    int    // 10,000; batches kept for replay, as far as 256 MiB hold them
	HWM            int    // 100,000; messages that wait for one subscriber, as far as 64 MiB hold them
	Rank           int    // 0; data-parallel rank that the batches name
	SelfDescribing bool   // stores in the offload tier carry tokens and parent; else the hash alone
}

func (k *KVEvents) withDefaults() {
	k.BufferSteps = cmp.Or(k.BufferSteps, 10_000)
	k.HWM = cmp.Or(k.HWM, 100_000)
}

func (k *KVEvents) validate() (errs []error) {
	for _, a := range []struct{ name, address string }{{"listen", k.Listen}, {"connect", k.Connect}, {"replay", k.Replay}} {
		if a.address == "" {
			continue
		}
		if _, _, err := net.SplitHostPort(a.address); err != nil {
			errs = append(errs, fmt.Errorf("kvEvents.%s: %q: %w", a.name, a.address, err))
		}
	}
	if k.Connect != "" && k.Listen != "" {
		errs = append(errs, errors.New("kvEvents: listen and connect exclude one another"))
	}
	if k.NoReplay && k.Replay != "" {
		errs = append(errs, errors.New("kvEvents: replay and noReplay exclude one another"))
	}
	for _, n := range []struct {
		name   string
		v, min int
	}{{"bufferSteps", k.BufferSteps, 1}, {"hwm", k.HWM, 1}, {"rank", k.Rank, 0}} {
		if n.v < n.min {
			errs = append(errs, fmt.Errorf("kvEvents.%s: must be >= %d, got %d", n.name, n.min, n.v))
		}
	}
	return errs
}

// events publishes what happens to the cache during one life. It is the model's observer: what it
// is told waits for the end of the step.
type events struct {
	cfg    Config
	to     KVEvents // with the addresses that the sockets took
	faults *faults

	publisher *zmtp.Publisher
	router    *zmtp.Router
	wg        sync.WaitGroup
	history   history
	published atomic.Uint64 // sequence numbers used

	topic []byte // fixed by serve

	// Of the model's goroutine.
	pending []wire.Event
	hashes  []uint64 // memory of the pending events
	tokens  []uint32
	items   []wire.Item
	ends    []int
}

// newEvents returns nil if the configuration publishes none.
func newEvents(cfg Config, f *faults) *events {
	if cfg.KVEvents == nil {
		return nil
	}
	return &events{
		cfg: cfg, to: *cfg.KVEvents, faults: f,
		history: history{steps: cfg.KVEvents.BufferSteps, maxBytes: maxHistoryBytes},
	}
}

// next is the beginning of a new stream on the same addresses.
func (e *events) next() *events {
	if e == nil {
		return nil
	}
	n := newEvents(e.cfg, e.faults)
	n.to = e.to
	return n
}

// open opens the sockets; listen is the server's address, of which the host is the default.
func (e *events) open(listen string) error {
	host, _, err := net.SplitHostPort(listen)
	if err != nil {
		return fmt.Errorf("listen: %q: %w", listen, err)
	}
	free := net.JoinHostPort(host, "0")
	e.publisher = zmtp.NewPublisher(zmtp.PublisherOptions{Queue: e.to.HWM})
	if e.to.Connect != "" {
		if err := e.publisher.Connect(e.to.Connect); err != nil {
			return fmt.Errorf("kvEvents.connect: %w", err)
		}
	} else {
		bound, err := e.publisher.Listen(cmp.Or(e.to.Listen, free))
		if err != nil {
			return fmt.Errorf("kvEvents.listen: %w", err)
		}
		e.to.Listen = bound.String()
	}
	if e.to.NoReplay {
		return nil
	}
	if e.router, err = zmtp.ListenRouter(cmp.Or(e.to.Replay, free), zmtp.RouterOptions{}); err != nil {
		return fmt.Errorf("kvEvents.replay: %w", err)
	}
	e.to.Replay = e.router.Addr().String()
	return nil
}

// serve begins to answer requests for replay, until the context ends; address is what the server is
// served on. It comes before the first batch.
func (e *events) serve(ctx context.Context, address string) {
	e.topic = []byte(e.to.Topic)
	if e.to.Topic == "" && e.to.Connect != "" {
		e.topic = fmt.Appendf(nil, "kv@%s@%s", address, e.cfg.Models[0])
	}
	if e.router != nil {
		e.wg.Go(func() { _ = e.router.Serve(ctx, e.replay) }) // it ends with its context
	}
}

// close cuts the connections; the context given to serve must have ended.
func (e *events) close() {
	if e.router != nil {
		_ = e.router.Close() // for one that does not serve
	}
	if e.publisher != nil {
		_ = e.publisher.Close() // it never fails
	}
	e.wg.Wait()
}

// BlocksStored implements [sim.Observer].
func (e *events) BlocksStored(s sim.Stored) {
	ev := wire.Event{Kind: wire.Stored, Hashes: e.copyHashes(s.Hashes), Medium: medium(s.Medium), HasGroup: true}
	if s.Medium == sim.CPU && !e.to.SelfDescribing {
		e.pending = append(e.pending, ev)
		return
	}
	ev.BlockSize = len(s.Tokens) / len(s.Hashes)
	ev.Parent, ev.HasParent = s.Parent, s.First > 0
	n := len(e.tokens)
	e.tokens = append(e.tokens, s.Tokens...)
	ev.Tokens = e.tokens[n:]
	ev.Spec = "full_attention"
	if s.Job.Adapter != "" {
		ev.LoRA = []byte(s.Job.Adapter)
		ev.LoRAID = int64(slices.Index(e.cfg.Adapters, s.Job.Adapter)) + 1
	}
	if s.Medium == sim.GPU { // vLLM leaves extra keys out of the tier's events
		ev.Extra, ev.ExtraEnd = e.extra(s)
	}
	e.pending = append(e.pending, ev)
}

// extra is what the keys of blocks cover beyond tokens and adapter: the salt, in the first block
// of the text.
func (e *events) extra(s sim.Stored) ([]wire.Item, []int) {
	items, ends := len(e.items), len(e.ends)
	if s.First == 0 && s.Job.Salt != "" {
		e.items = append(e.items, wire.Item{Kind: wire.ItemString, Value: []byte(s.Job.Salt)})
	}
	for range s.Hashes {
		e.ends = append(e.ends, len(e.items)-items)
	}
	return e.items[items:], e.ends[ends:]
}

// BlocksRemoved implements [sim.Observer].
func (e *events) BlocksRemoved(r sim.Removed) {
	e.pending = append(e.pending, wire.Event{
		Kind: wire.Removed, Hashes: e.copyHashes(r.Hashes), Medium: medium(r.Medium), HasGroup: true,
	})
}

// CacheCleared implements [sim.Observer]. Resets between two steps are one event, so that what
// waits for a step is bounded.
func (e *events) CacheCleared() {
	if n := len(e.pending); n == 0 || e.pending[n-1].Kind != wire.Cleared {
		e.pending = append(e.pending, wire.Event{Kind: wire.Cleared})
	}
}

func (e *events) copyHashes(hashes []uint64) []uint64 {
	n := len(e.hashes)
	e.hashes = append(e.hashes, hashes...)
	return e.hashes[n:]
}

func medium(m sim.Medium) string {
	if m == sim.CPU {
		return "cpu"
	}
	return "gpu"
}

// flush publishes what a step did as one batch, if it did anything.
func (e *events) flush(now time.Time) {
	if len(e.pending) == 0 {
		return
	}
	fate := e.faults.batch()
	if !fate.silent {
		e.publish(now, fate)
	}
	clear(e.pending)
	e.pending = e.pending[:0]
	e.hashes, e.tokens, e.items, e.ends = e.hashes[:0], e.tokens[:0], e.items[:0], e.ends[:0]
}

func (e *events) publish(now time.Time, f batchFate) {
	seq := e.published.Load()
	if f.wrong {
		e.scramble(seq)
	}
	b := batch{seq: seq, payload: wire.AppendBatch(nil, &wire.Batch{
		Time: float64(now.UnixMicro()) / 1e6, Rank: e.to.Rank, HasRank: true, Events: e.pending,
	})}
	e.published.Add(1)
	if f.lost {
		return
	}
	e.history.add(b)
	if !f.dropped {
		// It fails only when the life ends.
		_ = e.publisher.Send(e.topic, sequence(b.seq), b.payload)
	}
}

// scramble renames the blocks of a batch in a way of its own: no other batch's parents or removals
// name them.
func (e *events) scramble(seq uint64) {
	mask := (seq + 1) * 0x9e3779b97f4a7c15
	for i := range e.pending {
		ev := &e.pending[i]
		ev.Parent ^= mask
		for j := range ev.Hashes {
			ev.Hashes[j] ^= mask
		}
	}
}

// sequence is a sequence number as a frame.
func sequence(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// endOfReplay is the sequence number of the message that ends a replay.
var endOfReplay = bytes.Repeat([]byte{0xff}, 8)

// replay answers a request for the batches from a sequence number on: a message for each that is
// kept, then an end marker. Those that are published meanwhile are not among them, and those that a
// slow reader lets fall out of the history are missing. Requests of another form get no answer, as
// in vLLM.
func (e *events) replay(_ net.Addr, frames [][]byte, reply func(...[]byte) error) {
	if len(frames) != 2 || len(frames[1]) != 8 {
		return
	}
	buf := make([]batch, 0, replayChunk)
	for next, end := binary.BigEndian.Uint64(frames[1]), e.published.Load(); next < end; {
		some := e.history.from(next, buf)
		if len(some) == 0 {
			break
		}
		for _, b := range some {
			if b.seq >= end {
				break
			}
			if reply(nil, e.topic, sequence(b.seq), b.payload) != nil {
				return
			}
		}
		next = some[len(some)-1].seq + 1
	}
	_ = reply(nil, nil, endOfReplay, nil) // who asked learns by its absence
}

// replayChunk is how many batches a replay takes out of the history at once.
const replayChunk = 64

// source is an entry of /kv_event_sources.
type source struct {
	Enable         bool    `json:"enable_kv_cache_events"`
	Publisher      string  `json:"publisher"`
	Endpoint       string  `json:"endpoint"`
	ReplayEndpoint *string `json:"replay_endpoint"`
	BufferSteps    int     `json:"buffer_steps"`
	HWM            int     `json:"hwm"`
	MaxQueueSize   int     `json:"max_queue_size"`
	Topic          string  `json:"topic"`
}

// sources is the body of /kv_event_sources: the publisher of each rank, with the ports that were
// taken. Bound sockets have the host *, by which vLLM tells binding from connecting.
func (e *events) sources() map[string]source {
	if e == nil {
		return map[string]source{}
	}
	bound := func(address string) string {
		_, port, _ := net.SplitHostPort(address) // the sockets took it
		return "tcp://*:" + port
	}
	s := source{
		Enable: true, Publisher: "zmq", Endpoint: "tcp://" + e.to.Connect,
		BufferSteps: e.to.BufferSteps, HWM: e.to.HWM, MaxQueueSize: 100_000, Topic: string(e.topic),
	}
	if e.to.Connect == "" {
		s.Endpoint = bound(e.to.Listen)
	}
	if !e.to.NoReplay {
		replay := bound(e.to.Replay)
		s.ReplayEndpoint = &replay
	}
	return map[string]source{strconv.Itoa(e.to.Rank): s}
}
