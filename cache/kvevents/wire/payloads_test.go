package wire

import (
	"encoding/hex"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
)

const (
	hashA1 = 0xa1a1a1a1a1a1a1a1
	hashB2 = 0xb2b2b2b2b2b2b2b2
	hashC3 = 0xc3c3c3c3c3c3c3c3
	hashD4 = 0xd4d4d4d4d4d4d4d4
)

// span is the token ids from first to last.
func span(first, last uint32) []uint32 {
	var s []uint32
	for id := first; id <= last; id++ {
		s = append(s, id)
	}
	return s
}

// store is a store of one block of the tokens from first on, in the medium GPU.
func store(hash uint64, first, size uint32, change ...func(*Event)) Event {
	e := Event{Kind: Stored, Hashes: []uint64{hash}, Tokens: span(first, first+size-1), BlockSize: int(size), Medium: "gpu"}
	for _, f := range change {
		f(&e)
	}
	return e
}

func under(parent uint64) func(*Event) {
	return func(e *Event) { e.Parent, e.HasParent = parent, true }
}
func in(medium string) func(*Event) { return func(e *Event) { e.Medium = medium } }

// full makes it the event of a map: group 0, full attention, extra keys told.
func full(e *Event) {
	e.Spec, e.HasGroup, e.ExtraEnd = "full_attention", true, []int{0}
}

func adapter(e *Event) { e.LoRA, e.LoRAID = []byte("adapter-a"), 7 }

func salted(e *Event) {
	e.Extra, e.ExtraEnd = []Item{{Kind: ItemString, Value: []byte("tenant-1")}}, []int{1}
}

// payloadBatches says what each of the hand-written payloads means.
func payloadBatches() map[string]Batch {
	batch := func(events ...Event) Batch { return Batch{Time: 1, HasRank: true, Events: events} }
	remove := func(hash uint64, medium string) Event {
		return Event{Kind: Removed, Hashes: []uint64{hash}, Medium: medium}
	}
	raw := make([]byte, 32)
	for i := range raw {
		raw[i] = byte(i)
	}
	a1 := store(hashA1, 1, 16)
	unknownFirst := batch(a1)
	unknownFirst.Unknown = 1
	rank1 := batch(a1)
	rank1.Rank = 1
	return map[string]Batch{
		"K01": batch(a1),
		"K02": batch(store(hashB2, 17, 16, under(hashA1))),
		"K03": batch(store(hashA1, 1, 16, full)),
		"K04": batch(store(100, 1, 16)),
		"K05": batch(store(0xa5a5a5a5a5a5a5a5, 1, 16)),
		"K06": batch(store(xxh3.Hash(raw), 1, 16)),
		"K07": batch(store(hashA1, 1, 16, in(""))),
		"K08": unknownFirst,
		"K09": batch(store(hashB2, 17, 16, under(hashA1))),
		"K10": batch(Event{Kind: Cleared}),
		"K11": batch(Event{Kind: Cleared}),
		"K12": batch(store(hashA1, 1, 16, in("cpu"))),
		"K13": batch(remove(hashA1, "gpu")),
		"K14": batch(remove(hashA1, "cpu")),
		"K15": batch(store(hashA1, 1, 16, full, adapter)),
		"K16": batch(store(hashA1, 1, 16, full, adapter, salted)),
		"K17": batch(store(hashC3, 1, 32, full, func(e *Event) {
			e.BlockSize, e.Group, e.Spec, e.Window = 16, 1, "sliding_window", 16
		})),
		"K18": batch(store(hashD4, 1, 64, full, in("cpu"))),
		"K19": rank1,
		"K20": batch(store(hashA1, 1, 16, func(e *Event) { e.Spec = "" })),
		"K22": batch(remove(0xa5a5a5a5a5a5a5a5, "gpu")),
		"K23": batch(store(hashD4, 33, 16)),
		"K24": batch(store(0x7777777777777777, 1, 16)),
		"K25": batch(),
		"K26": batch(Event{Kind: Removed, Hashes: []uint64{hashC3}, Medium: "gpu", Group: 1, HasGroup: true}),
		"K27": batch(store(hashA1, 1, 16, full, salted)),
	}
}

func TestEveryPayloadIsReadAsItIsMeant(t *testing.T) {
	payloads, want := kvtest.Payloads(t), payloadBatches()
	var d Decoder
	for name, payload := range payloads {
		w, ok := want[name]
		if !ok {
			t.Errorf("%s: no expectation", name)
			continue
		}
		for _, decoder := range []*Decoder{{}, &d} {
			got, err := decoder.Decode(payload)
			if err != nil {
				t.Errorf("%s: %v", name, err)
			} else if diff := cmp.Diff(&w, got, sameBatch); diff != "" {
				t.Errorf("%s: (-want +got)\n%s", name, diff)
			}
		}
	}
	if len(payloads) != len(want) {
		t.Errorf("%d payloads, %d expectations", len(payloads), len(want))
	}
}

// TestC02_WireShapes: every shape gives its one block, an unknown event costs itself, and bad frames are errors.
func TestC02_WireShapes(t *testing.T) {
	payloads := kvtest.Payloads(t)
	var d Decoder
	decode := func(name string) *Batch {
		t.Helper()
		b, err := d.Decode(payloads[name])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		return b
	}
	for _, name := range []string{"K01", "K03", "K04", "K05", "K06", "K07", "K08", "K20"} {
		b := decode(name)
		if len(b.Events) != 1 || b.Events[0].Kind != Stored || len(b.Events[0].Hashes) != 1 || len(b.Events[0].Tokens) != 16 ||
			b.Events[0].BlockSize != 16 || b.Bad != 0 {
			t.Errorf("%s: got %+v, want one store of one block of 16 tokens", name, b)
		}
	}
	if b := decode("K25"); len(b.Events) != 0 || b.Bad != 0 || b.Unknown != 0 {
		t.Errorf("K25: got %+v, want nothing", b)
	}
	if b := decode("K08"); b.Unknown != 1 {
		t.Errorf("K08: %d unknown events, want 1", b.Unknown)
	}
	signed := decode("K05").Events[0].Hashes[0]
	if b := decode("K22"); b.Events[0].Kind != Removed || b.Events[0].Hashes[0] != signed {
		t.Errorf("K22 removes %#x, want what K05 stores, %#x", b.Events[0].Hashes[0], signed)
	}

	seq := []byte{0, 0, 0, 0, 0, 0, 1, 2}
	for _, topic := range []string{"", "kv-events", "kv@10.0.0.5:8000@model-x"} {
		gotTopic, gotSeq, payload, err := ParseFrames([][]byte{[]byte(topic), seq, payloads["K01"]})
		if err != nil || string(gotTopic) != topic || gotSeq != 258 || len(payload) != len(payloads["K01"]) {
			t.Errorf("topic %q: got %q, %d, %d bytes, %v", topic, gotTopic, gotSeq, len(payload), err)
		}
	}
	_, _, _, err := ParseFrames([][]byte{nil, seq})
	wantError(t, "two frames", err, ErrFrames)
	_, _, _, err = ParseFrames([][]byte{nil, {0, 0, 0, 1}, payloads["K01"]})
	wantError(t, "4-byte sequence", err, ErrSequence)
	_, err = d.Decode(payloads["K01"][:len(payloads["K01"])/2])
	wantError(t, "half a payload", err, ErrTruncated)
	if b := decode("K01"); len(b.Events) != 1 {
		t.Errorf("after bad frames: %d events, want 1", len(b.Events))
	}
}

// TestC28_AdapterIsNoExtraKey: the adapter's name is taken out of the extra keys once, where it stands first.
func TestC28_AdapterIsNoExtraKey(t *testing.T) {
	text := func(s string) Item { return Item{Kind: ItemString, Value: []byte(s)} }
	tests := []struct {
		name, lora, id, keys string // msgpack
		want                 []Item
		wantLoRA             string
	}{
		{"named like an image", str("img-aaaa"), "07", "92" + str("img-aaaa") + str("img-aaaa"), []Item{text("img-aaaa")}, "img-aaaa"},
		{"with an image pair", str("adapter-a"), "07", "92" + str("adapter-a") + "92" + str("img-aaaa") + "03",
			[]Item{{Kind: ItemFeature, Value: []byte("img-aaaa")}}, "adapter-a"},
		{"another string first", str("adapter-a"), "07", "92" + str("salt") + str("adapter-a"),
			[]Item{text("salt"), text("adapter-a")}, "adapter-a"},
		{"no adapter", "c0", "c0", "91" + str("adapter-a"), []Item{text("adapter-a")}, ""},
		{"id only", "c0", "07", "c0", nil, "\x00lora_id=7"},
		{"negative id only", "c0", "d0f9", "c0", nil, "\x00lora_id=-7"},
		{"id that is a string", "c0", str("a7"), "c0", nil, "\x00lora_id=a7"},
		{"id 0 is none", "c0", "00", "c0", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := decodeHex(t, "93cb3ff00000000000009189"+str("type")+str("BlockStored")+
				str("extra_keys")+"91"+tt.keys+ // before the name that it is read with
				str("block_hashes")+"9101"+str("parent_block_hash")+"c0"+str("token_ids")+"920102"+str("block_size")+"02"+
				str("lora_id")+tt.id+str("lora_name")+tt.lora+str("medium")+"c0"+"00")
			if len(b.Events) != 1 {
				t.Fatalf("got %+v", b)
			}
			e := b.Events[0]
			if string(e.LoRA) != tt.wantLoRA || AdapterByID(e.LoRA) != (tt.wantLoRA != "" && tt.wantLoRA[0] == 0) {
				t.Errorf("adapter %q, want %q", e.LoRA, tt.wantLoRA)
			}
			if diff := cmp.Diff(tt.want, e.Keys(0), sameBatch); diff != "" {
				t.Errorf("extra keys: (-want +got)\n%s", diff)
			}
		})
	}
	b := decodeHex(t, "93cb3ff0000000000000"+"91"+"98"+str("BlockStored")+"9101c0920102"+"02"+"c0c0"+str("\x00lora_id=7")+"00")
	if b.Bad != 1 {
		t.Errorf("a name that poses as an id: %d bad events, want 1", b.Bad)
	}
}

// str is a short string as msgpack in hex.
func str(s string) string { return hex.EncodeToString(append([]byte{0xa0 | byte(len(s))}, s...)) }
