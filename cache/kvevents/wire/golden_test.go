package wire

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
)

// sameBatch compares batches; an empty list is no list.
var sameBatch = cmp.Options{cmpopts.EquateEmpty(), cmpopts.EquateNaNs()}

func TestEveryCapturedFrameIsReadAsAnotherDecoderReadsIt(t *testing.T) {
	for _, name := range kvtest.Names {
		t.Run(name, func(t *testing.T) {
			var d Decoder // one for all frames: what it keeps of one must not show in the next
			for i, f := range kvtest.Captures(t, name) {
				compare(t, fmt.Sprintf("frame %d (%s)", i, f.Phase), &d, f.Payload, f.Batch)
			}
		})
	}
}

func TestEveryLayoutIsReadAsAnotherDecoderReadsIt(t *testing.T) {
	var d Decoder
	releases := make(map[string]int)
	plain := make(map[string][]Event) // by phase: what every release tells
	for _, l := range kvtest.Layouts(t) {
		name := l.VLLM + " " + l.Phase
		batch := compare(t, name, &d, l.Payload, l.Batch)
		releases[l.VLLM]++
		var told []Event
		for _, e := range batch.Events {
			told = append(told, Event{
				Kind: e.Kind, Hashes: append([]uint64{}, e.Hashes...), Tokens: append([]uint32{}, e.Tokens...),
				Parent: e.Parent, HasParent: e.HasParent, BlockSize: e.BlockSize, Medium: e.Medium,
			})
		}
		if before, ok := plain[l.Phase]; ok {
			if diff := cmp.Diff(before, told, sameBatch); diff != "" {
				t.Errorf("%s: differs from the first release:\n%s", name, diff)
			}
		} else {
			plain[l.Phase] = told
		}
	}
	if len(releases) != 11 || len(plain) != 5 {
		t.Errorf("%d releases of %d batches, want 11 of 5", len(releases), len(plain))
	}
}

func TestReplayedPayloadsAreThePublishedOnes(t *testing.T) {
	for _, replay := range kvtest.ReplayNames {
		live := kvtest.Captures(t, strings.Replace(replay, "replay", "kv", 1))
		var d Decoder
		for _, e := range kvtest.Exchanges(t, replay) {
			if e.Socket != "DEALER" {
				continue
			}
			next := e.Start
			for i, frames := range e.Replies {
				seq, payload, err := ParseReply(frames)
				if err != nil {
					t.Fatalf("%s %s[%d]: %v", replay, e.Case, i, err)
				}
				if i == len(e.Replies)-1 {
					if seq != ReplayEnd || len(payload) != 0 {
						t.Errorf("%s %s: the last reply is %d with %d bytes, want the end", replay, e.Case, seq, len(payload))
					}
					break
				}
				if seq != next || !bytes.Equal(payload, live[seq].Payload) {
					t.Errorf("%s %s[%d]: sequence %d, want %d with the bytes that were published", replay, e.Case, i, seq, next)
				}
				compare(t, e.Case, &d, payload, live[seq].Batch)
				next++
			}
		}
	}
}

// compare decodes a payload and holds it against the same batch in JSON.
func compare(t *testing.T, name string, d *Decoder, payload []byte, batch json.RawMessage) *Batch {
	t.Helper()
	got, err := d.Decode(payload)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	if diff := cmp.Diff(oracle(t, batch), got, sameBatch); diff != "" {
		t.Errorf("%s: (-want +got)\n%s", name, diff)
	}
	return got
}

// oracle makes the batch that the JSON form describes, by name or position, without looking at msgpack.
func oracle(t *testing.T, raw json.RawMessage) *Batch {
	t.Helper()
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var parts []any
	if err := dec.Decode(&parts); err != nil {
		t.Fatal(err)
	}
	b := &Batch{Rank: number(t, parts[2]), HasRank: true}
	b.Time, _ = parts[0].(json.Number).Float64()
	for _, e := range parts[1].([]any) {
		b.Events = append(b.Events, oracleEvent(t, named(e)))
	}
	return b
}

// named gives the fields of an event in array form their names.
func named(e any) map[string]any {
	list, ok := e.([]any)
	if !ok {
		return e.(map[string]any)
	}
	names := map[string][]string{
		"BlockStored": {
			"type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium", "lora_name",
			"extra_keys", "group_idx", "kv_cache_spec_kind", "kv_cache_spec_sliding_window",
		},
		"BlockRemoved":     {"type", "block_hashes", "medium", "group_idx"},
		"AllBlocksCleared": {"type"},
	}[list[0].(string)]
	m := make(map[string]any)
	for i, v := range list {
		m[names[i]] = v
	}
	return m
}

func oracleEvent(t *testing.T, m map[string]any) Event {
	t.Helper()
	var e Event
	switch m["type"] {
	case "BlockStored":
		e.Kind = Stored
	case "BlockRemoved":
		e.Kind = Removed
	case "AllBlocksCleared":
		return Event{Kind: Cleared}
	}
	for _, h := range m["block_hashes"].([]any) {
		e.Hashes = append(e.Hashes, name64(t, h))
	}
	if medium, ok := m["medium"].(string); ok {
		e.Medium = strings.ToLower(medium)
	}
	if group, ok := m["group_idx"]; ok && group != nil {
		e.Group, e.HasGroup = number(t, group), true
	}
	if e.Kind == Removed {
		return e
	}
	if parent := m["parent_block_hash"]; parent != nil {
		e.Parent, e.HasParent = name64(t, parent), true
	}
	for _, token := range m["token_ids"].([]any) {
		e.Tokens = append(e.Tokens, uint32(number(t, token)))
	}
	e.BlockSize = number(t, m["block_size"])
	e.Spec, _ = m["kv_cache_spec_kind"].(string)
	if window := m["kv_cache_spec_sliding_window"]; window != nil {
		e.Window = number(t, window)
	}
	if id := m["lora_id"]; id != nil {
		e.LoRAID = int64(number(t, id))
	}
	adapter, _ := m["lora_name"].(string)
	if adapter != "" {
		e.LoRA = []byte(adapter)
	} else if e.LoRAID != 0 { // before vLLM 0.14
		e.LoRA = fmt.Appendf(nil, "\x00lora_id=%d", e.LoRAID)
	}
	if session, ok := m["session_id"].(string); ok {
		e.Session = []byte(session)
	}
	if extra, ok := m["extra_keys"].([]any); ok {
		for _, block := range extra {
			keys, _ := block.([]any)
			if adapter != "" && len(keys) > 0 && keys[0] == adapter {
				keys = keys[1:]
			}
			for _, key := range keys { // the captures have no other kind
				e.Extra = append(e.Extra, Item{Kind: ItemString, Value: []byte(key.(string))})
			}
			e.ExtraEnd = append(e.ExtraEnd, len(e.Extra))
		}
	}
	return e
}

func number(t *testing.T, v any) int {
	t.Helper()
	n, err := strconv.Atoi(v.(json.Number).String())
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// name64 is a block hash's name: a number's 64 bits, or the hash of its bytes.
func name64(t *testing.T, v any) uint64 {
	t.Helper()
	if m, ok := v.(map[string]any); ok {
		b, err := hex.DecodeString(m["$hex"].(string))
		if err != nil {
			t.Fatal(err)
		}
		return xxh3.Hash(b)
	}
	n, err := strconv.ParseUint(v.(json.Number).String(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
