//go:build linux

package chaos

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// flooding is an engine that publishes events without end.
type flooding struct {
	publisher *zmtp.Publisher
	random    *rand.Rand
	seq, name uint64
	sent      int
	recent    []uint64 // hashes that it stored
}

const (
	floodEngines = 2
	recentHashes = 4096
	// besidesTheIndex is more than all else in this process takes: what is between engines and Sluice, and Sluice itself.
	besidesTheIndex = 64 << 20
)

// TestFloodOfEvents has engines publish more than memory could hold: stores without removals, removals of what never
// was, blocks without parents, names without end, gaps, and payloads that are no events. What Sluice keeps stays below
// what docs/precise-prefix-cache.md says, and it knows afterwards what it is told.
func TestFloodOfEvents(t *testing.T) {
	total, limit := 64<<20, 10_000 // bytes, and blocks that an engine may have
	switch {
	case long() && raceEnabled:
		total, limit = 128<<20, 20_000
	case long():
		total, limit = 4<<30, 100_000
	case raceEnabled:
		total, limit = 4<<20, 2_000
	}
	engines, entries := floodingEngines(t)
	s := lab.StartSluice(t, lab.Plan{Endpoints: entries, Config: fmt.Sprintf(`plugins:
  - type: token-producer
    parameters: {vllm: {endpoints: true}}
  - type: precise-prefix-cache-producer
    parameters: {maxBlocksPerEndpoint: %d}
`, limit)})
	lab.Wait(t, "Sluice to listen", func() bool {
		return engines[0].publisher.Subscribers() == 1 && engines[1].publisher.Subscribers() == 1
	})
	for quarter := range 4 {
		ceiling := 0
		for sent := 0; sent < total/4; {
			for _, e := range engines {
				for range 64 {
					sent += e.publish(t, e.batch())
				}
			}
			heard(t, s, engines)
			ceiling = belowTheCeiling(t, s, limit)
			if t.Failed() {
				return
			}
		}
		now := heapInUse()
		t.Logf("%d MiB of events: heap %d MiB, %s", (quarter+1)*(total/4)>>20, now>>20, indexOf(t, s))
		if now > ceiling+besidesTheIndex {
			t.Errorf("a heap of %d MiB, with at most %d MiB in the index", now>>20, ceiling>>20)
		}
	}
	m := s.Metrics(t)
	for what, least := range map[string]float64{
		`sluice_kv_index_holder_blocks`: float64(limit) / 4, // the ceiling was met, or a clearing is not long ago
		`sluice_kv_event_blocks_total`:  float64(total / 200),
	} {
		if n := m.Total(t, what); n < least {
			t.Errorf("%s is %v: the flood was none", what, n)
		}
	}
	for _, e := range engines {
		if n := e.publisher.Dropped(); n > 0 {
			t.Errorf("%d messages were not sent", n)
		}
		e.publish(t, wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{{Kind: wire.Cleared}, e.prompt(10, nil)}}))
	}
	lab.Wait(t, "Sluice to know what is left", func() bool {
		return s.Total(t, "sluice_kv_index_holder_blocks") == 10*floodEngines && s.Total(t, "sluice_kv_sources", `state="live"`) == floodEngines
	})
}

func floodingEngines(t *testing.T) (all []*flooding, entries []string) {
	t.Helper()
	for i, ip := range envoytest.PodIPs(t, floodEngines) {
		e := &flooding{
			publisher: zmtp.NewPublisher(zmtp.PublisherOptions{Queue: 1 << 16}),
			random:    rand.New(rand.NewPCG(uint64(i), 4)), name: uint64(i) << 32,
		}
		t.Cleanup(func() { _ = e.publisher.Close() })
		bound, err := e.publisher.Listen(net.JoinHostPort(ip, "0"))
		if err != nil {
			t.Fatal(err)
		}
		_, port, err := net.SplitHostPort(bound.String())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, e)
		entries = append(entries, fmt.Sprintf("%s:9,kvEvents.port=%s,kvEvents.replayPort=none,kvEvents.discover=false", ip, port))
	}
	return all, entries
}

// publish sends a payload under the next sequence number, and returns its size.
func (e *flooding) publish(t *testing.T, payload []byte) int {
	t.Helper()
	if e.random.IntN(500) == 0 {
		e.seq++ // lost
	}
	if err := e.publisher.Send(nil, binary.BigEndian.AppendUint64(nil, e.seq), payload); err != nil {
		t.Fatal(err)
	}
	e.seq++
	e.sent++
	return len(payload)
}

// batch is a payload of some events, or now and then of none that can be read.
func (e *flooding) batch() []byte {
	r := e.random
	switch r.IntN(200) {
	case 0:
		return fmt.Appendf(nil, "no events: %d", r.Uint64())
	case 1:
		return wire.AppendBatch(nil, &wire.Batch{Events: []wire.Event{e.prompt(64, nil)}})[:500]
	}
	b := wire.Batch{Rank: 0, HasRank: true}
	for range 1 + r.IntN(8) {
		b.Events = append(b.Events, e.event())
	}
	if r.IntN(3000) == 0 {
		b.Events = append(b.Events, wire.Event{Kind: wire.Cleared})
	}
	return wire.AppendBatch(nil, &b)
}

func (e *flooding) event() wire.Event {
	r := e.random
	some := func() uint64 {
		if len(e.recent) == 0 {
			return 1
		}
		return e.recent[r.IntN(len(e.recent))]
	}
	switch r.IntN(10) {
	case 0: // goes on from something
		parent := some()
		return e.prompt(8, &parent)
	case 1: // goes on from what nobody knows
		parent := r.Uint64()
		return e.prompt(1+r.IntN(32), &parent)
	case 2: // offloaded, by name alone
		return wire.Event{Kind: wire.Stored, Hashes: []uint64{some(), some(), r.Uint64()}, Medium: "cpu", HasGroup: true}
	case 3:
		return wire.Event{Kind: wire.Removed, Hashes: []uint64{some(), some(), r.Uint64()}, Medium: []string{"gpu", "cpu"}[r.IntN(2)], HasGroup: true}
	case 4: // an adapter that nothing else has
		ev := e.prompt(16, nil)
		ev.LoRA, ev.LoRAID = fmt.Appendf(nil, "adapter-%d-%s", r.Uint64(), strings.Repeat("x", r.IntN(200))), int64(r.IntN(1000))
		return ev
	case 5: // a salt of its own
		ev := e.prompt(16, nil)
		ev.Extra = []wire.Item{{Kind: wire.ItemString, Value: fmt.Appendf(nil, "%d%s", r.Uint64(), strings.Repeat("salt", r.IntN(100)))}}
		for range ev.Hashes {
			ev.ExtraEnd = append(ev.ExtraEnd, 1)
		}
		return ev
	}
	return e.prompt(64, nil)
}

// prompt stores n blocks that nobody has stored before.
func (e *flooding) prompt(n int, parent *uint64) wire.Event {
	ev := wire.Event{Kind: wire.Stored, BlockSize: blockTokens, Medium: "gpu", HasGroup: true, Spec: "full_attention"}
	if parent != nil {
		ev.Parent, ev.HasParent = *parent, true
	}
	for range n {
		e.name++
		ev.Hashes = append(ev.Hashes, e.name*0x9e3779b97f4a7c15)
		if len(e.recent) < recentHashes {
			e.recent = append(e.recent, ev.Hashes[len(ev.Hashes)-1])
		} else {
			e.recent[e.random.IntN(recentHashes)] = ev.Hashes[len(ev.Hashes)-1]
		}
	}
	for range n * blockTokens {
		ev.Tokens = append(ev.Tokens, e.random.Uint32N(150_000))
	}
	return ev
}

// heard waits until Sluice has taken in what was published, so that none of it is dropped on the way.
func heard(t *testing.T, s *lab.Sluice, engines []*flooding) {
	t.Helper()
	lab.Wait(t, "Sluice to take events in", func() bool {
		sent := 0
		for _, e := range engines {
			sent += e.sent
		}
		return s.Total(t, "sluice_kv_event_messages_total", `what="received"`) == float64(sent)
	})
}

// belowTheCeiling holds what the index has against what docs/precise-prefix-cache.md says under "Memory".
func belowTheCeiling(t *testing.T, s *lab.Sluice, limit int) (ceiling int) {
	t.Helper()
	m := s.Metrics(t)
	held, bytes := int(m.Total(t, "sluice_kv_index_holder_blocks")), int(m.Total(t, "sluice_kv_index_bytes"))
	if held > (limit+1)*floodEngines { // the one above the limit is the one that makes another go
		t.Errorf("%d blocks are held, more than %d for each of %d engines", held, limit, floodEngines)
	}
	if ceiling = ceilingOf(limit*floodEngines, int(m.Total(t, "sluice_kv_index_chains"))); bytes > ceiling {
		t.Errorf("the index has %d bytes, more than %d: %s", bytes, ceiling, indexOf(t, s))
	}
	return ceiling
}

// ceilingOf is the memory in bytes of an index with so many blocks, all distinct, in so many runs: a table's entry and a
// place for each, places that nobody holds, runs, those that are kept for use again, and what tables have to be larger
// than what is in them.
func ceilingOf(blocks, runs int) int {
	const entry, place, run, places, kept, spare = 30, 16, 250, 4, 16 << 20, 2 << 20
	return blocks*entry + blocks*(1+places)*place + runs*run + kept + floodEngines*spare
}

func indexOf(t *testing.T, s *lab.Sluice) string {
	t.Helper()
	m, text := s.Metrics(t), ""
	for _, name := range []string{"holder_blocks", "blocks", "chains", "bytes", "parked_blocks"} {
		text += fmt.Sprintf(" %s=%v", name, m.Total(t, "sluice_kv_index_"+name))
	}
	return text[1:]
}

func heapInUse() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
