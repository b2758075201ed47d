// Package kvtest holds KV-event traffic for tests: frames that real vLLM engines (0.32.0, and 0.23.0 for the older
// encoding) published, what they replied on the replay socket, one set of batches in the layouts of eleven releases, and
// hand-written payloads with a name each. Every captured message has its batch beside it as another decoder read it.
package kvtest

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/hex"
	"io"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

//go:embed testdata
var files embed.FS

// Names are the live captures that Captures reads. Every engine has blocks of 32 tokens.
var Names = []string{
	"kv_sha256_b32",                            // shared prefixes, repeats, chat turns, salts, chunked prefill, a reset
	"kv_evict_lora_b32",                        // 39 usable blocks: evictions, preemptions, adapters, adapter with salt, a reset
	"kv_offload_cpu_cbor_b32",                  // hash-only CPU stores, duplicate stores, resets
	"kv_offload_cpu_selfdesc_xxhash_bytes_b32", // 16-byte hashes; CPU stores with tokens, children before parents
	"kv_dp2_b32",                               // two data-parallel ranks, a sequence each
	"kv_hybrid_swa_b32",                        // sliding-window group 0 and full-attention group 1
	"kv_restart_b32",                           // killed and started again: sequence 0, 1, 0, 1
	"v0.23.0_kv_sha256_b32",                    // vLLM 0.23: positional events
}

// ReplayNames are the captures that Exchanges reads: vLLM 0.32 (replies with a topic) and 0.23 (without).
var ReplayNames = []string{"replay_sha256_b32", "v0.23.0_replay_sha256_b32"}

// Frame is one message as a subscriber received it.
type Frame struct {
	Phase   string // the scripted request that caused it
	Topic   []byte
	Seq     uint64
	Payload []byte
	// Batch is the payload as another msgpack decoder read it: JSON, bytes as {"$hex": "..."}.
	Batch []byte
}

// Exchange is one request on a replay socket with all its replies, the empty delimiter frame of a DEALER included.
type Exchange struct {
	Case    string
	Socket  string // "DEALER" or "REQ"
	Start   uint64 // sequence number asked for
	Request [][]byte
	Replies [][][]byte
}

// Layout is one batch in the layout of a vLLM release, made with that release's struct definitions.
type Layout struct {
	VLLM    string // the release
	Phase   string // tells which batch; the same in every release
	Payload []byte
	Batch   []byte
}

// Captures reads the messages of one of Names in the order of arrival. The caller may change them.
func Captures(tb testing.TB, name string) []Frame {
	tb.Helper()
	return readLines(tb, name, func(line []byte, _ []Frame) (Frame, bool) {
		var l struct {
			Phase, Topic string
			Seq          uint64
			Frames       []string
			Batch        jsontext.Value
		}
		parse(tb, line, &l)
		return Frame{Phase: l.Phase, Topic: []byte(l.Topic), Seq: l.Seq, Payload: bin(tb, l.Frames[2]), Batch: l.Batch}, true
	})
}

// Layouts reads the batches in the layouts of the releases from 0.11.0 to 0.33.0.
func Layouts(tb testing.TB) []Layout {
	tb.Helper()
	return readLines(tb, "layouts_by_version", func(line []byte, _ []Layout) (Layout, bool) {
		var l struct {
			VLLM    string
			Phase   string `json:"source_phase"`
			Payload string
			Batch   jsontext.Value
		}
		parse(tb, line, &l)
		return Layout{VLLM: l.VLLM, Phase: l.Phase, Payload: bin(tb, l.Payload), Batch: l.Batch}, true
	})
}

// Exchanges reads the replay exchanges of one of ReplayNames.
func Exchanges(tb testing.TB, name string) []Exchange {
	tb.Helper()
	return readLines(tb, name, func(line []byte, before []Exchange) (Exchange, bool) {
		var l struct {
			Case, Socket  string
			Start         uint64   `json:"start_seq"`
			RequestFrames []string `json:"request_frames"`
			Frames        []string
		}
		parse(tb, line, &l)
		if l.Frames != nil {
			last := &before[len(before)-1]
			last.Replies = append(last.Replies, bins(tb, l.Frames))
			return Exchange{}, false
		}
		return Exchange{Case: l.Case, Socket: l.Socket, Start: l.Start, Request: bins(tb, l.RequestFrames)}, true
	})
}

// Payloads reads the hand-written payloads: K01, K02 and so on. testdata/payloads.txt says what each one is.
func Payloads(tb testing.TB) map[string][]byte {
	tb.Helper()
	text, err := files.ReadFile("testdata/payloads.txt")
	if err != nil {
		tb.Fatal(err)
	}
	payloads := make(map[string][]byte)
	var name string
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		switch hex, indented := strings.CutPrefix(line, "  "); {
		case indented:
			payloads[name] = bin(tb, hex)
		case !strings.HasPrefix(line, "#"):
			name, _, _ = strings.Cut(line, " ")
		}
	}
	return payloads
}

// Seeds are payloads of every shape, for fuzz corpora: all of Payloads, the layouts, and a few captured ones.
func Seeds(tb testing.TB) [][]byte {
	tb.Helper()
	var seeds [][]byte
	payloads := Payloads(tb)
	for _, name := range slices.Sorted(maps.Keys(payloads)) {
		seeds = append(seeds, payloads[name])
	}
	for _, l := range Layouts(tb) {
		if len(l.Payload) < 1024 {
			seeds = append(seeds, l.Payload)
		}
	}
	for _, name := range Names {
		for i, f := range Captures(tb, name) {
			if i%8 == 0 && len(f.Payload) < 2048 {
				seeds = append(seeds, f.Payload)
			}
		}
	}
	return seeds
}

// readLines reads a compressed capture line by line; add gets what was read so far and says whether it made a new one.
func readLines[T any](tb testing.TB, name string, add func(line []byte, before []T) (T, bool)) []T {
	tb.Helper()
	packed, err := files.ReadFile("testdata/" + name + ".jsonl.gz")
	if err != nil {
		tb.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		tb.Fatalf("%s: %v", name, err)
	}
	var list []T
	for r := bufio.NewReader(z); ; {
		line, err := r.ReadBytes('\n')
		if len(bytes.TrimSpace(line)) > 0 {
			if v, isNew := add(line, list); isNew {
				list = append(list, v)
			}
		}
		if err == io.EOF {
			return list
		}
		if err != nil {
			tb.Fatalf("%s: %v", name, err)
		}
	}
}

func parse(tb testing.TB, line []byte, v any) {
	tb.Helper()
	if err := json.Unmarshal(line, v, json.MatchCaseInsensitiveNames(true)); err != nil {
		tb.Fatalf("%.80s: %v", line, err)
	}
}

func bin(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	if err != nil {
		tb.Fatalf("%.80s: %v", s, err)
	}
	return b
}

func bins(tb testing.TB, list []string) [][]byte {
	tb.Helper()
	out := make([][]byte, len(list))
	for i, s := range list {
		out[i] = bin(tb, s)
	}
	return out
}
