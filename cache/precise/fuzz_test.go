package precise

import (
	"math"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
)

// sound checks everything that must hold whatever an engine says, and that nothing is left of it.
func sound(t *testing.T, h *hub, s *source) {
	t.Helper()
	if err := s.check(); err != nil {
		t.Fatal(err)
	}
	if err := h.store.Check(); err != nil {
		t.Fatal(err)
	}
	s.close()
	if z := h.store.Sizes(); z.Chains != 0 || z.Positions != 0 || z.Bits != 0 {
		t.Fatalf("left: %+v", z)
	}
	if n := h.stats.blocks.Load(); n != 0 {
		t.Fatalf("%d blocks are left", n)
	}
	if n := h.stats.parked.Load(); n != 0 {
		t.Fatalf("%d parked blocks are left", n)
	}
}

// FuzzPayloads lets a source hear whatever may come in on a socket.
func FuzzPayloads(f *testing.F) {
	seeds := kvtest.Seeds(f)
	for i, seed := range seeds {
		f.Add(seed, seeds[(i+1)%len(seeds)])
	}
	f.Fuzz(func(t *testing.T, first, second []byte) {
		h := newTestHub()
		h.maxBlocks = 64
		s := h.newSource()
		s.State(cursor.Degraded)
		var d wire.Decoder
		for _, payload := range [][]byte{first, second, first} {
			b, err := d.Decode(payload)
			if err != nil {
				continue
			}
			s.Apply(b)
			if s.blocks > h.maxBlocks {
				t.Fatalf("%d blocks", s.blocks)
			}
		}
		sound(t, h, s)
	})
}

// FuzzEvents lets a source hear events that are about few blocks and make no sense: names that mean several things, things
// that have several names, in all sizes, tiers and groups. Every four bytes are a step.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{0, 0x21, 0x03, 0, 4, 1, 0, 0})
	f.Add([]byte{0, 0x11, 0, 0, 0, 0x12, 0, 0, 4, 1, 0, 0, 4, 2, 0, 0})                 // two names for one block
	f.Add([]byte{0, 0x34, 0, 0, 0, 0x14, 0x40, 0x10, 4, 4, 0, 0, 4, 4, 0, 0x10})        // one name in two sizes and tiers
	f.Add([]byte{1, 0x35, 0x04, 0, 1, 0x14, 0x01, 0, 0, 0x11, 0, 0, 8, 0, 0, 0})        // orphans
	f.Add([]byte{0, 0x31, 0, 1, 0, 0x31, 0, 5, 4, 1, 0, 1, 9, 0x31, 0, 0, 10, 0, 0, 0}) // groups, contradictions
	f.Add([]byte{2, 0x23, 0, 0x10, 0, 0x31, 0, 0, 2, 0x23, 0, 0x10, 6, 0, 0, 0, 11, 0x31, 0, 0, 12, 0, 0, 0})
	// One name in two sizes and two groups of a tier.
	f.Add([]byte{0xa7, 0xf8, 0xdc, 0x24, 0x29, 0x78, 0x8a, 0xf2, 0x9a, 0x36, 0xf5, 0x7f, 0x59, 0x76, 0x12, 0xf2})
	f.Fuzz(func(t *testing.T, data []byte) {
		h := newTestHub()
		h.maxBlocks = 20
		s := h.newSource()
		routes := []share{}
		for ; len(data) >= 4; data = data[4:] {
			routes = fuzzStep(h, s, data[0], data[1], data[2], data[3], routes)
			if err := s.check(); err != nil {
				t.Fatal(err)
			}
			if s.blocks > h.maxBlocks {
				t.Fatalf("%d blocks", s.blocks)
			}
		}
		for _, r := range routes {
			s.routed.undo(r)
		}
		h.queue.expire(1, math.MaxInt)
		if blocks, _ := s.routed.size(); blocks != 0 || s.routed.hashes != 0 || len(s.routed.kept) != 0 {
			t.Fatalf("%d blocks, %d hashes and %d records of picks that are taken back", blocks, s.routed.hashes, len(s.routed.kept))
		}
		sound(t, h, s)
	})
}

// fuzzStep does what four bytes say: op; number of blocks and first name; tokens and size; tier and group.
func fuzzStep(h *hub, s *source, op, names, content, where byte, routes []share) []share {
	n, first := int(names>>4)%5+1, uint64(names&15)
	size := []int{4, 4, 4, 8}[content>>6]
	ev := wire.Event{
		Kind: wire.Stored, Medium: []string{"gpu", "cpu", "disk", "gpu"}[where>>4&3], BlockSize: size,
		Group: int(where & 3), Spec: []string{"", "full_attention", "sliding_window", ""}[where>>2&3],
	}
	for i := range n {
		ev.Hashes = append(ev.Hashes, (first+uint64(i))%16)
		for k := range size {
			ev.Tokens = append(ev.Tokens, uint32(content>>(i%4)&1)*10+uint32(k))
		}
	}
	hashes := h.keys.appendPrompt(nil, 4, 0, "", ev.Tokens, nil)
	switch op % 14 {
	case 0, 13:
	case 1:
		ev.HasParent, ev.Parent = true, uint64(content&15)
	case 2:
		ev.Tokens, ev.BlockSize = nil, 0
	case 3:
		ev.Hashes[n-1] = ev.Hashes[0]
	case 4, 5:
		ev = wire.Event{Kind: wire.Removed, Hashes: ev.Hashes, Medium: ev.Medium, Group: ev.Group}
	case 6:
		s.Forget(0)
		return routes
	case 7:
		ev = cleared
	case 8:
		s.State(cursor.State(content) % 5)
		return routes
	case 9:
		s.contradict(hashes, size, int(content&3), s.now()-uint32(where&1))
		return routes
	case 10:
		s.report(hashes)
		return routes
	case 11:
		route := s.routed.add(hashes, int(content&3)%len(hashes), 4, time.Duration(where&1))
		if route.record != nil && where&1 > 0 {
			h.queue.push(route.record)
		}
		return append(routes, route)
	case 12:
		if where&2 > 0 {
			h.queue.expire(1, int(content))
			return routes
		}
		if len(routes) > 0 {
			s.routed.undo(routes[0])
			return routes[1:]
		}
		return routes
	}
	s.Apply(&wire.Batch{Events: []wire.Event{ev}})
	return routes
}
