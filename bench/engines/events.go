package engines

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"sync"

	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

// HeldBlocksOfAPrompt is how many blocks of each of its group's prompts an engine holds at most.
const HeldBlocksOfAPrompt = 256

// held is what the engines of a group hold, and how they say so.
type held struct {
	blocks int
	batch  []byte
}

// holdings returns what each group's engines hold.
func holdings(prompts [][]byte, groups int) []held {
	out := make([]held, groups)
	for g := range out {
		var events []wire.Event
		known := map[uint64]bool{}
		for i := g; i < len(prompts); i += groups {
			events = appendStored(events, Tokens(prompts[i]), known)
		}
		out[g] = held{blocks: len(known), batch: wire.AppendBatch(nil, &wire.Batch{Time: 1.7e9, HasRank: true, Events: events})}
	}
	return out
}

// appendStored appends the event that stores what is not known of a prompt's beginning.
func appendStored(events []wire.Event, tokens []uint32, known map[uint64]bool) []wire.Event {
	blocks := min(len(tokens)/BlockTokens, HeldBlocksOfAPrompt)
	e := wire.Event{Kind: wire.Stored, BlockSize: BlockTokens, Medium: "gpu", HasGroup: true, Spec: "full_attention"}
	name := uint64(0)
	for b := range blocks {
		parent := name
		block := tokens[b*BlockTokens : (b+1)*BlockTokens]
		name = blockName(parent, block)
		if known[name] {
			continue
		}
		known[name] = true
		if len(e.Hashes) == 0 {
			e.Parent, e.HasParent = parent, b > 0
		}
		e.Hashes = append(e.Hashes, name)
		e.Tokens = append(e.Tokens, block...)
	}
	if len(e.Hashes) == 0 {
		return events
	}
	return append(events, e)
}

// blockName is an engine's own name of a block.
func blockName(parent uint64, tokens []uint32) uint64 {
	var b [8 + 4*BlockTokens]byte
	binary.LittleEndian.PutUint64(b[:], parent)
	for i, t := range tokens {
		binary.LittleEndian.PutUint32(b[8+4*i:], t)
	}
	return xxh3.Hash(b[:])
}

// source is one engine's event sockets.
type source struct {
	held      held
	publisher *zmtp.Publisher
	router    *zmtp.Router
	address   net.Addr
	serving   sync.WaitGroup
}

// publish opens an engine's sockets and publishes what it holds, as its first message.
func publish(ctx context.Context, h held) (*source, error) {
	s := &source{held: h, publisher: zmtp.NewPublisher(zmtp.PublisherOptions{})}
	var err error
	if s.address, err = s.publisher.Listen("127.0.0.1:0"); err == nil {
		s.router, err = zmtp.ListenRouter("127.0.0.1:0", zmtp.RouterOptions{})
	}
	if err != nil {
		s.close()
		return nil, fmt.Errorf("KV events: %w", err)
	}
	s.serving.Go(func() { _ = s.router.Serve(ctx, s.replay) }) // it ends with its context
	if err := s.publisher.Send(nil, sequence(0), h.batch); err != nil {
		s.close()
		return nil, fmt.Errorf("KV events: %w", err)
	}
	return s, nil
}

func sequence(n uint64) []byte { return binary.BigEndian.AppendUint64(nil, n) }

// replay answers with every message from a sequence number on, and the mark of the end.
func (s *source) replay(_ net.Addr, frames [][]byte, reply func(...[]byte) error) {
	if len(frames) != 2 || len(frames[1]) != 8 {
		return
	}
	if binary.BigEndian.Uint64(frames[1]) == 0 && reply(nil, nil, sequence(0), s.held.batch) != nil {
		return
	}
	_ = reply(nil, nil, sequence(wire.ReplayEnd), nil) // who asked learns by its absence
}

// describe is the answer of vLLM's /kv_event_sources.
func (s *source) describe() string {
	port := func(a net.Addr) string {
		_, port, _ := net.SplitHostPort(a.String()) // a listener's address has one
		return port
	}
	return fmt.Sprintf(`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%s","replay_endpoint":"tcp://*:%s","topic":""}}`,
		port(s.address), port(s.router.Addr()))
}

func (s *source) close() {
	if s.router != nil {
		_ = s.router.Close() // it serves, and ends with that
	}
	_ = s.publisher.Close() // it never fails
	s.serving.Wait()
}
