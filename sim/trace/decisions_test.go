package trace

import (
	"encoding/binary"
	"math"
	"strings"
	"testing"
	"time"
)

func traceOf(t *testing.T, all ...Decision) (*Trace, *Decisions) {
	t.Helper()
	d := NewDecisions("log")
	for _, one := range all {
		if err := d.Add(one); err != nil {
			t.Fatal(err)
		}
	}
	tr, err := d.Trace()
	if err != nil {
		t.Fatal(err)
	}
	return tr, d
}

// TestDecisionsAreInOrder: a log has them in the order of their ends; times count from the first.
func TestDecisionsAreInOrder(t *testing.T) {
	tr, d := traceOf(t,
		Decision{UnixNano: 5e9, PromptTokens: 130, OutputTokens: 10, Hashes: []uint64{7, 9}, BlockTokens: 64, Seed: "a"},
		Decision{UnixNano: 2e9, PromptTokens: 128, Hashes: []uint64{7, 8}, BlockTokens: 64, Seed: "a"},
		Decision{UnixNano: 3e9, PromptTokens: 70, OutputTokens: 21, Hashes: []uint64{7}, BlockTokens: 32, Seed: "b"},
		Decision{UnixNano: 4e9},
	)
	if tr.BlockTokens != 64 || len(tr.Requests) != 3 || tr.Requests[1].At != time.Second || tr.Requests[2].At != 3*time.Second {
		t.Fatalf("%+v", tr)
	}
	if d.NoPrompt != 1 || d.NoOutput != 1 || d.NoHashes != 1 || len(d.Seeds) != 2 || !d.Known() {
		t.Errorf("%+v", d)
	}
	first, odd, last := tr.Requests[0], tr.Requests[1], tr.Requests[2]
	if first.OutputTokens != 16 || last.OutputTokens != 10 {
		t.Errorf("answers of %d and %d tokens; the mean of 10 and 21 is 16", first.OutputTokens, last.OutputTokens)
	}
	if first.Blocks[0] != last.Blocks[0] || first.Blocks[1] == last.Blocks[1] || odd.Blocks[0] == first.Blocks[0] || len(last.Blocks) != 3 {
		t.Errorf("blocks %x, %x, %x", first.Blocks, odd.Blocks, last.Blocks)
	}
}

// TestTextHasOneRatio: blocks of text become blocks of tokens; what two prompts share stays shared, at most.
func TestTextHasOneRatio(t *testing.T) {
	hashes := func(shared, all, own int) (h []uint64) {
		for i := range all {
			if i < shared {
				h = append(h, uint64(1000+i))
			} else {
				h = append(h, uint64(own*10_000+i))
			}
		}
		return h
	}
	// 5 bytes a token: 100 blocks of 256 bytes are 25,600 bytes and 5,120 tokens, 80 blocks of 64 tokens.
	tr, _ := traceOf(t,
		Decision{PromptTokens: 5120, OutputTokens: 1, PromptBytes: 25_600, Text: true, Hashes: hashes(50, 100, 1), BlockTokens: 64},
		Decision{UnixNano: 1, PromptTokens: 5120, OutputTokens: 1, PromptBytes: 25_600, Text: true, Hashes: hashes(50, 100, 2), BlockTokens: 64},
	)
	a, b := tr.Requests[0].Blocks, tr.Requests[1].Blocks
	n := 0
	for n < len(a) && a[n] == b[n] {
		n++
	}
	if len(a) != 80 || n != 40 { // 50 blocks of 256 bytes are 40 of 320
		t.Errorf("%d of %d blocks are shared", n, len(a))
	}
	seen := map[uint64]bool{}
	for _, name := range a {
		if seen[name] {
			t.Error("two blocks of one prompt have one name")
		}
		seen[name] = true
	}
}

func TestDecisionsThatMakeNoTrace(t *testing.T) {
	for want, all := range map[string][]Decision{
		"no decision whose prompt's length is known": {{UnixNano: 1}},
		"no answer whose length is known":            {{UnixNano: 1, PromptTokens: 5}},
	} {
		d := NewDecisions("log")
		for _, one := range all {
			if err := d.Add(one); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := d.Trace(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v", err)
		}
	}
}

// FuzzDecisions: whatever a log tells, it makes a trace that is one, or an error.
func FuzzDecisions(f *testing.F) {
	f.Add([]byte("0123456789abcdef0123456789abcdef0123456789abcdef"))
	f.Add(binary.LittleEndian.AppendUint64(nil, math.MaxUint64))
	f.Add([]byte("\x01\x00\x00\x00\x00\x00\x00\x80\x40\x01\x02\x03\x04\x05\x06\x07\xff\xff\xff\xff\xff\xff\xff\x7f\x40\x01\x02\x03\x04\x05\x06\x07"))
	f.Fuzz(func(t *testing.T, b []byte) {
		d := NewDecisions("log")
		for len(b) >= 16 {
			one := Decision{
				UnixNano: int64(binary.LittleEndian.Uint64(b)), PromptTokens: int(b[8]) << (b[9] % 8), OutputTokens: int(int8(b[10])), PromptBytes: int(int8(b[11])) << (b[11] % 16),
				BlockTokens: int(int8(b[12])), Text: b[13]&1 == 1, Cut: b[13]&2 == 2, Seed: string(b[14:15]),
			}
			for i := range b[15] % 32 {
				one.Hashes = append(one.Hashes, uint64(i&b[14]))
			}
			if err := d.Add(one); err != nil {
				t.Fatal(err)
			}
			b = b[16:]
		}
		tr, err := d.Trace()
		if err != nil {
			return
		}
		if err := tr.Validate(); err != nil {
			t.Fatal(err)
		}
	})
}
