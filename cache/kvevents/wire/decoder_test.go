package wire

import (
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
)

func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(s, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// decodeHex decodes a payload with a new Decoder.
func decodeHex(t testing.TB, s string) *Batch {
	t.Helper()
	b, err := new(Decoder).Decode(unhex(t, s))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func wantError(t *testing.T, name string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v, want %v", name, err, want)
	}
}

const head = "93cb3ff0000000000000" // [1.0, events, rank]

// TestForms reads one event of each odd form.
func TestForms(t *testing.T) {
	stored := str("type") + str("BlockStored")
	hash := str("block_hashes") + "9101"
	tokens := str("token_ids") + "920102"
	size := str("block_size") + "02"
	plain := Event{Kind: Stored, Hashes: []uint64{1}, Tokens: []uint32{1, 2}, BlockSize: 2}
	with := func(change func(*Event)) Event { e := plain; change(&e); return e }
	hashed := func(h uint64) Event { return with(func(e *Event) { e.Hashes = []uint64{h} }) }
	tests := []struct {
		name, event string
		want        Event
	}{
		{"least map", "84" + stored + hash + tokens + size, plain},
		{"keys in another order, the tag last", "84" + size + tokens + hash + stored, plain},
		{"tag as bytes", "84" + "c40474797065" + "c40b" + str("BlockStored")[2:] + hash + tokens + size, plain},
		{"unknown fields of every type", "8c" + stored + "aa" + str("later_on_1")[2:] + "c3" + hash + str("x") + "cb3ff0000000000000" +
			tokens + str("y") + "82a16181a16290a163c7020301ff" + size + "05c0" + str("z") + "c403010203" + "c2" + "d60102030405" +
			str("locality") + str("LOCAL") + str("lookahead_token_ids") + "9101", plain},
		{"a field twice: the last", "85" + stored + str("block_hashes") + "9109" + hash + tokens + size, plain},
		{"least array", "95" + str("BlockStored") + "9101" + "c0" + "920102" + "02", plain},
		{"array longer than known", "dc000f" + str("BlockStored") + "9101c092010202c0c0c0c0c0c0c0" + "810102" + "9101" + "c0", plain},
		{"array as array32", "dd00000005" + str("BlockStored") + "dd000000019101"[0:10] + "01" + "c0" + "dd000000020102" + "02", plain},
		{"map32, map16", "df00000004" + stored + hash + tokens + size, plain},
		{"no tokens", "84" + stored + hash + str("token_ids") + "90" + str("block_size") + "00",
			Event{Kind: Stored, Hashes: []uint64{1}}},
		{"nil tokens", "84" + stored + hash + str("token_ids") + "c0" + str("block_size") + "00",
			Event{Kind: Stored, Hashes: []uint64{1}}},
		{"tokens of every width", "84" + stored + hash + str("token_ids") + "dc000a" + "00 7f cc80 ccff cd0100 cdffff ce00010000 ceffffffff cf0000000000000005 d007" + size,
			with(func(e *Event) { e.Tokens = []uint32{0, 127, 128, 255, 256, 65535, 65536, 1<<32 - 1, 5, 7} })},
		{"one token of two bytes before such a number", "98" + str("BlockStored") + "9101c091cd0100cd0100c0c0c0",
			with(func(e *Event) { e.Tokens, e.BlockSize = []uint32{256}, 256 })},
		{"pairs", "84" + stored + hash + str("token_ids") + "92" + "920102" + "9202cd1234" + size,
			with(func(e *Event) { e.Pairs = true })},
		{"hash int8", "84" + stored + str("block_hashes") + "91d0ff" + tokens + size, hashed(1<<64 - 1)},
		{"hash negative fixint", "84" + stored + str("block_hashes") + "91ff" + tokens + size, hashed(1<<64 - 1)},
		{"hash int16", "84" + stored + str("block_hashes") + "91d1fffe" + tokens + size, hashed(1<<64 - 2)},
		{"hash int32", "84" + stored + str("block_hashes") + "91d280000000" + tokens + size, hashed(0xffffffff80000000)},
		{"hash int64", "84" + stored + str("block_hashes") + "91d3fffffffffffffffe" + tokens + size, hashed(1<<64 - 2)},
		{"hash uint32", "84" + stored + str("block_hashes") + "91cefffffffe" + tokens + size, hashed(1<<32 - 2)},
		{"hash of 16 bytes", "84" + stored + str("block_hashes") + "91c410" + strings.Repeat("ab", 16) + tokens + size,
			hashed(xxh3.Hash(unhex(t, strings.Repeat("ab", 16))))},
		{"hash of 8 bytes, bin16", "84" + stored + str("block_hashes") + "91c50008" + strings.Repeat("cd", 8) + tokens + size,
			hashed(xxh3.Hash(unhex(t, strings.Repeat("cd", 8))))},
		{"hash with its group", "84" + stored + str("block_hashes") + "9192cf000000000000000907" + tokens + size, hashed(9)},
		{"hash with tokens and keys, nested", "84" + stored + str("block_hashes") + "91" + "939209c092010291c0" + tokens + size, hashed(9)},
		{"parent as array", "85" + stored + hash + str("parent_block_hash") + "9205c0" + tokens + size,
			with(func(e *Event) { e.Parent, e.HasParent = 5, true })},
		{"parent 0 is a parent", "85" + stored + hash + str("parent_block_hash") + "00" + tokens + size,
			with(func(e *Event) { e.HasParent = true })},
		{"media without case", "85" + stored + hash + tokens + size + str("medium") + str("Cpu_Pinned"),
			with(func(e *Event) { e.Medium = "cpu_pinned" })},
		{"a medium never seen", "85" + stored + hash + tokens + size + str("medium") + str("CXL"),
			with(func(e *Event) { e.Medium = "cxl" })},
		{"a medium's name too long", "85" + stored + hash + tokens + size + str("medium") + "d941" + strings.Repeat("61", 65),
			with(func(e *Event) { e.Medium = OtherName })},
		{"SGLang's salt", "86" + stored + hash + tokens + size + str("cache_salt") + str("t") + str("session_id") + str("s"),
			with(func(e *Event) { e.Salt, e.Session = []byte("t"), []byte("s") })},
		{"an empty salt is none", "85" + stored + hash + tokens + size + str("cache_salt") + "a0", plain},
		{"a salt map at index 7", "98" + str("BlockStored") + "9101c092010202c0" + str("GPU") + "81" + str("cache_salt") + str("t"),
			with(func(e *Event) { e.Salt, e.Medium = []byte("t"), "gpu" })},
		{"a salt map with nil", "98" + str("BlockStored") + "9101c092010202c0c0" + "81" + str("cache_salt") + "c0", plain},
		{"a map with more than a salt", "98" + str("BlockStored") + "9101c092010202c0c0" + "82" + str("cache_salt") + str("t") + str("k") + "01",
			with(func(e *Event) { e.Salt = unhex(t, "82"+str("cache_salt")+str("t")+str("k")+"01") })},
		{"partial tail", "85" + stored + hash + str("token_ids") + "93010203" + str("block_size") + "03" + str("group_idx") + "02",
			with(func(e *Event) { e.Tokens, e.BlockSize, e.Group, e.HasGroup = []uint32{1, 2, 3}, 3, 2, true })},
		{"more tokens than hashes", "84" + stored + hash + str("token_ids") + "9401020304" + size,
			with(func(e *Event) { e.Tokens = []uint32{1, 2, 3, 4} })},
		{"removed with many hashes", "83" + str("type") + str("BlockRemoved") + str("block_hashes") + "9301ccffc40101" + str("medium") + str("cpu"),
			Event{Kind: Removed, Hashes: []uint64{1, 255, xxh3.Hash([]byte{1})}, Medium: "cpu"}},
		{"removed, tag and hashes only", "92" + str("BlockRemoved") + "9101", Event{Kind: Removed, Hashes: []uint64{1}}},
		{"removed with fields of a store", "84" + str("type") + str("BlockRemoved") + hash + tokens + size,
			Event{Kind: Removed, Hashes: []uint64{1}}},
		{"cleared with fields", "82" + str("type") + "b0" + str2("AllBlocksCleared") + str("medium") + str("GPU"), Event{Kind: Cleared}},
	}
	var d Decoder
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			payload := unhex(t, head+"91"+tt.event+"03")
			want := &Batch{Time: 1, Rank: 3, HasRank: true, Events: []Event{tt.want}}
			for range 2 { // the second time from the remembered tail
				got, err := d.Decode(payload)
				if err != nil {
					t.Fatal(err)
				}
				if diff := cmp.Diff(want, got, sameBatch); diff != "" {
					t.Errorf("(-want +got)\n%s", diff)
				}
			}
		})
	}
}

// str2 is a string's bytes in hex.
func str2(s string) string { return hex.EncodeToString([]byte(s)) }

func TestExtraKeys(t *testing.T) {
	item := func(kind ItemKind, value string) Item { return Item{Kind: kind, Value: []byte(value)} }
	tests := []struct {
		name, keys string
		want       [][]Item
	}{
		{"nil", "c0", nil},
		{"no blocks", "90", nil},
		{"nil for each block", "93c0c0c0", [][]Item{nil, nil, nil}},
		{"salt on the first block", "92" + "91" + str("s") + "c0", [][]Item{{item(ItemString, "s")}, nil}},
		{"images over two blocks", "92" + "92" + "92" + str("i") + "00" + "92" + str("j") + "d0f0" + "91" + "92" + str("j") + "05",
			[][]Item{{item(ItemFeature, "i"), item(ItemFeature, "j")}, {item(ItemFeature, "j")}}},
		{"a bare key", "91" + str("s"), [][]Item{{item(ItemString, "s")}}},
		{"bytes, numbers, nil, long arrays", "91" + "95" + "c40101" + "05" + "c0" + "93" + str("a") + "0102" + "92" + str("b") + str("c"),
			[][]Item{{
				item(ItemOpaque, "\xc4\x01\x01"), item(ItemOpaque, "\x05"), item(ItemOpaque, "\xc0"), item(ItemOpaque, "\x93\xa1a\x01\x02"),
				item(ItemOpaque, "\x92\xa1b\xa1c"),
			}}},
		{"an empty list", "92" + "90" + "91" + str("s"), [][]Item{nil, {item(ItemString, "s")}}},
		{"not a list", "81" + str("k") + "01", [][]Item{{item(ItemOpaque, "\x81\xa1k\x01")}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := decodeHex(t, head+"91"+"99"+str("BlockStored")+"9101c092010202c0c0c0"+tt.keys+"00")
			if len(b.Events) != 1 {
				t.Fatalf("got %+v", b)
			}
			e := b.Events[0]
			if len(e.ExtraEnd) != len(tt.want) || (e.ExtraEnd == nil) != (tt.want == nil) {
				t.Fatalf("keys of %d blocks, want %d", len(e.ExtraEnd), len(tt.want))
			}
			for i, want := range tt.want {
				if diff := cmp.Diff(want, e.Keys(i), sameBatch); diff != "" {
					t.Errorf("block %d: (-want +got)\n%s", i, diff)
				}
			}
			if e.Keys(len(tt.want)) != nil {
				t.Errorf("there are keys past the last block")
			}
		})
	}
}

// TestBatchForms reads what stands around the events.
func TestBatchForms(t *testing.T) {
	clear := "9181" + str("type") + "b0" + str2("AllBlocksCleared")
	tests := []struct {
		name, payload string
		want          Batch
	}{
		{"no rank", "92cb3ff0000000000000" + clear, Batch{Time: 1}},
		{"nil rank", "93cb3ff0000000000000" + clear + "c0", Batch{Time: 1}},
		{"time as float32", "93ca3f800000" + clear + "02", Batch{Time: 1, Rank: 2, HasRank: true}},
		{"time as integer", "9307" + clear + "02", Batch{Time: 7, Rank: 2, HasRank: true}},
		{"time below 0", "93f9" + clear + "02", Batch{Time: -7, Rank: 2, HasRank: true}},
		{"nil time", "93c0" + clear + "02", Batch{Rank: 2, HasRank: true}},
		{"longer than known", "95c0" + clear + "02" + "9101" + "c0", Batch{Rank: 2, HasRank: true}},
		{"map", "83" + str("ts") + "01" + str("events") + clear + "b2" + str2("data_parallel_rank") + "02",
			Batch{Time: 1, Rank: 2, HasRank: true}},
		{"map of SGLang's name, other order, unknown keys", "85" + str("attn_dp_rank") + "02" + "07c0" + str("x") + "9101" + str("events") + clear +
			str("ts") + "01", Batch{Time: 1, Rank: 2, HasRank: true}},
		{"bytes after the batch", "92c0" + clear + "c1", Batch{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.want.Events = []Event{{Kind: Cleared}}
			got := decodeHex(t, tt.payload)
			if diff := cmp.Diff(&tt.want, got, sameBatch); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if !got.Clears() {
				t.Error("Clears is false")
			}
		})
	}
}

// TestBadEventsCostThemselves puts each between two good ones.
func TestBadEventsCostThemselves(t *testing.T) {
	good := "95" + str("BlockStored") + "9101c092010202"
	stored := str("type") + str("BlockStored")
	hash := str("block_hashes") + "9101"
	tokens := str("token_ids") + "920102"
	size := str("block_size") + "02"
	tests := []struct {
		name, event  string
		bad, unknown int
	}{
		{"nil", "c0", 1, 0},
		{"a number", "cb3ff0000000000000", 1, 0},
		{"an empty array", "90", 1, 0},
		{"an empty map", "80", 1, 0},
		{"a map without a tag", "83" + hash + tokens + size, 1, 0},
		{"a tag that is a number", "9401c0c0c0", 1, 0},
		{"unknown tag", "92" + str("BlockTouched") + "9101", 0, 1},
		{"unknown tag, fields of another type", "83" + str("type") + str("New") + str("token_ids") + "a161" + str("block_hashes") + "c0", 0, 1},
		{"unknown tag after such fields", "83" + str("token_ids") + "a161" + str("block_hashes") + "c0" + str("type") + str("New"), 0, 1},
		{"no hashes", "83" + stored + tokens + size, 1, 0},
		{"no tokens", "83" + stored + hash + size, 1, 0},
		{"no block size", "83" + stored + hash + tokens, 1, 0},
		{"hashes that are no list", "84" + stored + str("block_hashes") + "01" + tokens + size, 1, 0},
		{"a nil hash", "84" + stored + str("block_hashes") + "91c0" + tokens + size, 1, 0},
		{"a float hash", "84" + stored + str("block_hashes") + "91ca00000000" + tokens + size, 1, 0},
		{"an empty hash array", "84" + stored + str("block_hashes") + "9190" + tokens + size, 1, 0},
		{"a hash too deep", "84" + stored + str("block_hashes") + "91" + strings.Repeat("91", 5) + "01" + tokens + size, 1, 0},
		{"a token below 0", "84" + stored + hash + str("token_ids") + "9201ff" + size, 1, 0},
		{"a token of 33 bits", "84" + stored + hash + str("token_ids") + "9201cf0000000100000000" + size, 1, 0},
		{"a token that is text", "84" + stored + hash + str("token_ids") + "9201a161" + size, 1, 0},
		{"a triple of tokens", "84" + stored + hash + str("token_ids") + "9193010203" + size, 1, 0},
		{"pairs and single tokens", "84" + stored + hash + str("token_ids") + "9292010202" + size, 1, 0},
		{"a pair of text", "84" + stored + hash + str("token_ids") + "919201a161" + size, 1, 0},
		{"a block size below 0", "84" + stored + hash + tokens + str("block_size") + "ff", 1, 0},
		{"a block size of 32 bits", "84" + stored + hash + tokens + str("block_size") + "ceffffffff", 1, 0},
		{"a medium that is a number", "85" + stored + hash + tokens + size + str("medium") + "01", 1, 0},
		{"an adapter that is a number", "85" + stored + hash + tokens + size + str("lora_name") + "01", 1, 0},
		{"an adapter's id that is a list", "85" + stored + hash + tokens + size + str("lora_id") + "90", 1, 0},
		{"a salt that is a number", "85" + stored + hash + tokens + size + str("cache_salt") + "01", 1, 0},
		{"a group below 0", "83" + str("type") + str("BlockRemoved") + hash + str("group_idx") + "ff", 1, 0},
		{"removed without hashes", "91" + str("BlockRemoved"), 1, 0},
		{"a session that is a number is passed over", "84" + str("type") + str("New") + hash + tokens + size, 0, 1},
	}
	var d Decoder
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := d.Decode(unhex(t, head+"93"+good+tt.event+good+"00"))
			if err != nil {
				t.Fatal(err)
			}
			e := Event{Kind: Stored, Hashes: []uint64{1}, Tokens: []uint32{1, 2}, BlockSize: 2}
			want := &Batch{Time: 1, HasRank: true, Events: []Event{e, e}, Bad: tt.bad, Unknown: tt.unknown}
			if diff := cmp.Diff(want, got, sameBatch); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}

func TestNoBatch(t *testing.T) {
	tests := []struct {
		name, payload string
		want          error
		text          string
	}{
		{"nothing", "", ErrTruncated, ""},
		{"nil", "c0", ErrBatch, "payload must be an array or map, got the byte 0xc0"},
		{"text", str("hello"), ErrBatch, ""},
		{"one field", "9107", ErrBatch, ""},
		{"time is text", "93" + str("x") + "9000", ErrBatch, "ts must be a number"},
		{"events is a number", "93010200", ErrBatch, "events must be an array"},
		{"rank below 0", "930190ff", ErrBatch, "data_parallel_rank must be nil or 0 to 65535"},
		{"rank is text", "930190a161", ErrBatch, "data_parallel_rank"},
		{"rank too large", "930190ce00010000", ErrBatch, "data_parallel_rank"},
		{"rank is missing", "930190", ErrTruncated, ""},
		{"a byte that is never used", "930191c100", ErrTruncated, "events[0]"},
		{"events that are not there", "9301dd7fffffff", ErrTruncated, ""},
		{"an event's length is a lie", "930191ddffffffff00", ErrTruncated, "events[0]"},
		{"tokens' length is a lie", "930191" + "95" + str("BlockStored") + "9101c0ddffffffff01", ErrTruncated, "events[0]"},
		{"a text's length is a lie", "930191" + "91" + "dbffffffff61", ErrTruncated, "events[0]"},
		{"a map without events", "81" + str("ts") + "01", ErrBatch, "events is missing"},
		{"a map with events twice", "82" + str("events") + "90" + str("events") + "90", ErrBatch, "events is there twice"},
		{"a map that ends", "82" + str("ts") + "01" + str("x"), ErrTruncated, ""},
		{"after the rank", "9401900000"[:8] + "c1", ErrTruncated, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := new(Decoder).Decode(unhex(t, tt.payload))
			wantError(t, tt.payload, err, tt.want)
			if got != nil || err != nil && !strings.Contains(err.Error(), tt.text) {
				t.Errorf("got %v, %v; want an error with %q", got, err, tt.text)
			}
		})
	}
}

// TestCutAnywhere: a captured payload that ends early is an error at every length, and never a panic.
func TestCutAnywhere(t *testing.T) {
	var d Decoder
	for name, payload := range kvtest.Payloads(t) {
		for n := range payload {
			if _, err := d.Decode(payload[:n]); !errors.Is(err, ErrTruncated) {
				t.Fatalf("%s cut to %d bytes: error %v, want %v", name, n, err, ErrTruncated)
			}
		}
	}
}

func TestReplyForms(t *testing.T) {
	seq := []byte{0, 0, 0, 0, 0, 0, 0, 5}
	for name, frames := range map[string][][]byte{
		"without a topic": {{}, seq, []byte("p")}, "with a topic": {{}, []byte("kv@x"), seq, []byte("p")},
	} {
		if got, payload, err := ParseReply(frames); got != 5 || string(payload) != "p" || err != nil {
			t.Errorf("%s: got %d, %q, %v", name, got, payload, err)
		}
	}
	for name, tt := range map[string]struct {
		frames [][]byte
		want   error
	}{
		"no delimiter":   {[][]byte{[]byte("kv@x"), seq, []byte("p")}, ErrFrames},
		"two frames":     {[][]byte{{}, seq}, ErrFrames},
		"five frames":    {[][]byte{{}, {}, {}, seq, {}}, ErrFrames},
		"short sequence": {[][]byte{{}, seq[:7], {}}, ErrSequence},
	} {
		_, _, err := ParseReply(tt.frames)
		wantError(t, name, err, tt.want)
	}
}
