package vllm

import (
	"fmt"
	"strings"
	"testing"
)

// reading is what an engine's cache holds by its own events, kept as plainly as can be: it shares no code with what it
// is compared with, the decoder and the index of Sluice.
type reading struct {
	copies map[string]int    // how many copies of a block there are, by the engine's hash
	names  map[string]string // the engine's hash of a block, by what the block is
	again  map[string]bool   // blocks that a request of the moment reuses and has announced again: no new copies
}

func newReading() *reading { return &reading{copies: map[string]int{}, names: map[string]string{}} }

// apply takes an event of the form that vLLM has had since 0.24.
func (r *reading) apply(event map[string]any) error {
	hashes, _ := event["block_hashes"].([]any)
	switch event["type"] {
	case "AllBlocksCleared":
		clear(r.copies)
		clear(r.names)
		return nil
	case "BlockRemoved":
		for _, h := range hashes {
			name := fmt.Sprint(h)
			if r.copies[name]--; r.copies[name] < 0 {
				return fmt.Errorf("%s is removed more often than stored", name)
			}
		}
		return nil
	case "BlockStored":
		return r.store(event, hashes)
	}
	return fmt.Errorf("an event of the type %v", event["type"])
}

func (r *reading) store(event map[string]any, hashes []any) error {
	tokens, _ := event["token_ids"].([]any)
	extra, _ := event["extra_keys"].([]any)
	if fmt.Sprint(event["block_size"]) != fmt.Sprint(blockSize) || len(tokens) != blockSize*len(hashes) {
		return fmt.Errorf("%d blocks of %v have %d tokens", len(hashes), event["block_size"], len(tokens))
	}
	parent := "root"
	if p := event["parent_block_hash"]; p != nil {
		parent = fmt.Sprint(p)
	}
	for i, h := range hashes {
		var keys []any
		if extra != nil {
			keys, _ = extra[i].([]any)
		}
		name := fmt.Sprint(h)
		r.names[block(parent, fmt.Sprint(tokens[i*blockSize:(i+1)*blockSize]), keys)] = name
		if !r.again[name] {
			r.copies[name]++
		}
		parent = name
	}
	return nil
}

func block(parent, tokens string, keys []any) string {
	return fmt.Sprintf("%s %s %s", parent, tokens, strings.TrimSpace(fmt.Sprintln(keys...)))
}

// cached is how many of a prompt's tokens the engine takes from its cache. It computes the last token itself, whatever is
// stored.
func (r *reading) cached(tokens []uint32, adapter, salt string) int {
	return blockSize * len(r.prefix(tokens, adapter, salt))
}

// prefix are the engine's hashes of the blocks that it takes from its cache for a prompt.
func (r *reading) prefix(tokens []uint32, adapter, salt string) (names []string) {
	parent, n := "root", 0
	for n+blockSize < len(tokens) {
		var keys []any
		if adapter != "" {
			keys = append(keys, adapter)
		}
		if salt != "" && n == 0 {
			keys = append(keys, salt)
		}
		name, known := r.names[block(parent, fmt.Sprint(tokens[n:n+blockSize]), keys)]
		if !known || r.copies[name] == 0 {
			break
		}
		names = append(names, name)
		parent = name
		n += blockSize
	}
	return names
}

func TestReading(t *testing.T) {
	var a, b []any
	var prompt []uint32
	for i := range 2 * blockSize {
		prompt = append(prompt, uint32(i))
		if i < blockSize {
			a = append(a, int64(i))
		} else {
			b = append(b, int64(i))
		}
	}
	stored := func(hash, parent any, tokens []any, keys ...any) map[string]any {
		e := map[string]any{
			"type": "BlockStored", "block_hashes": []any{hash}, "parent_block_hash": parent, "token_ids": tokens,
			"block_size": int64(blockSize),
		}
		if keys != nil {
			e["extra_keys"] = []any{keys}
		}
		return e
	}
	removed := map[string]any{"type": "BlockRemoved", "block_hashes": []any{uint64(1)}}
	r := newReading()
	apply := func(events ...map[string]any) {
		for _, e := range events {
			if err := r.apply(e); err != nil {
				t.Fatal(err)
			}
		}
	}
	check := func(what string, want, n int, adapter, salt string) {
		if got := r.cached(prompt[:n], adapter, salt); got != want {
			t.Errorf("%s: %d tokens cached, want %d", what, got, want)
		}
	}
	apply(stored(uint64(1), nil, a), stored(int64(2), uint64(1), b), stored(uint64(1), nil, a))
	check("two blocks but the last token", blockSize, 2*blockSize, "", "")
	check("one block and one token", blockSize, blockSize+1, "", "")
	check("one block", 0, blockSize, "", "")
	check("another adapter", 0, 2*blockSize, "sql", "")
	check("another salt", 0, 2*blockSize, "", "s")
	apply(removed)
	check("one of two copies", blockSize, 2*blockSize, "", "")
	apply(removed)
	check("no copy", 0, 2*blockSize, "", "")
	if r.apply(removed) == nil {
		t.Error("a removal too many is no fault")
	}
	r = newReading()
	apply(stored(uint64(3), nil, a, "sql", "s"))
	check("adapter and salt", blockSize, 2*blockSize, "sql", "s")
	apply(map[string]any{"type": "AllBlocksCleared"})
	check("all cleared", 0, 2*blockSize, "sql", "s")
}
