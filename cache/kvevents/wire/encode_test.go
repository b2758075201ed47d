package wire

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
)

// TestEncoderWritesWhatVLLMWrites: captured payloads of vLLM 0.32 come back byte for byte.
func TestEncoderWritesWhatVLLMWrites(t *testing.T) {
	var d Decoder
	same := 0
	for _, name := range kvtest.Names {
		if name == "v0.23.0_kv_sha256_b32" || name == "kv_offload_cpu_selfdesc_xxhash_bytes_b32" {
			continue // events that are arrays; hashes whose bytes are not kept
		}
		for i, f := range kvtest.Captures(t, name) {
			batch, err := d.Decode(f.Payload)
			if err != nil {
				t.Fatal(err)
			}
			if got := AppendBatch(nil, batch); !bytes.Equal(got, f.Payload) {
				t.Errorf("%s[%d] (%s): differs:\n got %x\nwant %x", name, i, f.Phase, got, f.Payload)
			}
			same++
		}
	}
	if same != 314 {
		t.Errorf("%d payloads compared, want 314", same)
	}
}

// TestEncoderWritesTheHandWrittenMaps: the maps among the hand-written payloads come back byte for byte too.
func TestEncoderWritesTheHandWrittenMaps(t *testing.T) {
	var d Decoder
	payloads := kvtest.Payloads(t)
	for _, name := range []string{"K11", "K25"} {
		batch, err := d.Decode(payloads[name])
		if err != nil {
			t.Fatal(err)
		}
		if got := AppendBatch(nil, batch); !bytes.Equal(got, payloads[name]) {
			t.Errorf("%s: got %x, want %x", name, got, payloads[name])
		}
	}
}

func TestAppendBatchAppends(t *testing.T) {
	b := &Batch{Time: 2, Events: []Event{{Kind: Cleared}}}
	if got := AppendBatch([]byte("before"), b); !bytes.HasPrefix(got, []byte("before")) || !bytes.Equal(got[6:], AppendBatch(nil, b)) {
		t.Errorf("got %x", got)
	}
}

// TestDecodeGivesBackWhatWasAppended generates batches of everything that an event can hold.
func TestDecodeGivesBackWhatWasAppended(t *testing.T) {
	var d Decoder // one for all, so that what it remembers of one batch meets another
	rapid.Check(t, func(t *rapid.T) {
		want := drawBatch(t)
		got, err := d.Decode(AppendBatch(nil, want))
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got, sameBatch); diff != "" {
			t.Fatalf("(-want +got)\n%s", diff)
		}
	})
}

func drawBatch(t *rapid.T) *Batch {
	b := &Batch{Time: rapid.Float64().Draw(t, "time"), HasRank: rapid.Bool().Draw(t, "hasRank")}
	if b.HasRank {
		b.Rank = rapid.IntRange(0, maxRank).Draw(t, "rank")
	}
	for range rapid.IntRange(0, 6).Draw(t, "events") {
		b.Events = append(b.Events, drawEvent(t))
	}
	return b
}

func drawEvent(t *rapid.T) Event {
	e := Event{Kind: rapid.SampledFrom([]Kind{Stored, Stored, Stored, Removed, Cleared}).Draw(t, "kind")}
	if e.Kind == Cleared {
		return e
	}
	e.Hashes = rapid.SliceOfN(rapid.Uint64(), 0, 20).Draw(t, "hashes")
	e.Medium = rapid.SampledFrom([]string{"", "gpu", "cpu", "storage", "cpu_pinned", "disk", "tape"}).Draw(t, "medium")
	e.HasGroup = rapid.Bool().Draw(t, "hasGroup")
	if e.HasGroup {
		e.Group = rapid.IntRange(0, 3).Draw(t, "group")
	}
	if e.Kind == Removed {
		return e
	}
	if e.HasParent = rapid.Bool().Draw(t, "hasParent"); e.HasParent {
		e.Parent = rapid.Uint64().Draw(t, "parent")
	}
	e.Tokens = rapid.SliceOfN(rapid.OneOf(rapid.Uint32Range(0, 300), rapid.Uint32Range(300, 200_000), rapid.Uint32()), 0, 70).
		Draw(t, "tokens")
	e.BlockSize = rapid.SampledFrom([]int{0, 1, 16, 32, 300, maxBlockSize}).Draw(t, "blockSize")
	e.Spec = rapid.SampledFrom([]string{"", "full_attention", "sliding_window", "mamba"}).Draw(t, "spec")
	e.Window = rapid.SampledFrom([]int{0, 0, 64, 4096}).Draw(t, "window")
	text := rapid.SampledFrom([][]byte{nil, nil, []byte("a"), []byte("adapter-a"), bytes.Repeat([]byte("long"), 70)})
	e.Salt, e.Session = text.Draw(t, "salt"), text.Draw(t, "session")
	drawAdapter(t, &e, text)
	for range rapid.SampledFrom([]int{0, 0, 1, 3, 20}).Draw(t, "extra") {
		for range rapid.SampledFrom([]int{0, 0, 1, 2}).Draw(t, "keys") {
			e.Extra = append(e.Extra, rapid.SampledFrom([]Item{
				{ItemString, []byte("a")}, {ItemString, []byte("adapter-a")}, {ItemString, nil}, {ItemFeature, []byte("adapter-a")},
				{ItemOpaque, []byte{0xc0}}, {ItemOpaque, []byte("\x93\x01\x02\xa1x")}, {ItemOpaque, []byte("\xc4\x02\x00\xff")},
			}).Draw(t, "key"))
		}
		e.ExtraEnd = append(e.ExtraEnd, len(e.Extra))
	}
	return e
}

func drawAdapter(t *rapid.T, e *Event, text *rapid.Generator[[]byte]) {
	e.LoRA = text.Draw(t, "adapter")
	e.LoRAID = rapid.SampledFrom([]int64{0, 0, 1, 300, 1 << 40, -1, -5000}).Draw(t, "adapterID")
	switch {
	case e.LoRA == nil && e.LoRAID != 0:
		e.LoRA = new(Decoder).nameAdapter(e.LoRAID, nil)
	case e.LoRA == nil && rapid.Bool().Draw(t, "textID"):
		e.LoRA = new(Decoder).nameAdapter(0, []byte("uuid"))
	}
}

// TestOneDecoderReadsAsManyDo: events that are alike at their ends, in any mixture and order of fields, are read the same
// by a decoder that has read others before, in this batch or an earlier one, as each alone by a new one.
func TestOneDecoderReadsAsManyDo(t *testing.T) {
	var d Decoder
	rapid.Check(t, func(t *rapid.T) {
		for range 5 {
			readTogether(t, &d, drawAlike(t))
		}
	})
}

// readTogether holds a batch of events against each of them alone.
func readTogether(t *rapid.T, d *Decoder, list []string) {
	const head = "92cb3ff0000000000000"
	want := &Batch{Time: 1}
	for _, e := range list {
		one, err := new(Decoder).Decode(mustHex(head + "91" + e))
		if err != nil {
			t.Fatalf("%s: %v", e, err)
		}
		want.Events = append(want.Events, one.Events...)
		want.Bad += one.Bad
		want.Unknown += one.Unknown
	}
	got, err := d.Decode(mustHex(head + hexByte(0x90|len(list)) + strings.Join(list, "")))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got, sameBatch); diff != "" {
		t.Fatalf("%v: (-each alone +together)\n%s", list, diff)
	}
}

var ignorePairs = cmp.FilterPath(func(p cmp.Path) bool { return p.Last().String() == ".Pairs" }, cmp.Ignore())

// drawAlike makes events, msgpack in hex, out of few different fields in many orders.
func drawAlike(t *rapid.T) (events []string) {
	fields := []string{
		str("block_hashes") + "9101", str("block_hashes") + "9102", str("token_ids") + "920102", str("token_ids") + "920103",
		str("token_ids") + "9192" + "0102", str("block_size") + "02", str("block_size") + "03", str("medium") + str("GPU"), str("medium") + str("CPU"), str("medium") + "c0",
		str("lora_name") + "c0", str("lora_name") + str("a"), str("lora_id") + "c0", str("lora_id") + "05", str("extra_keys") + "91c0", str("extra_keys") + "9191" + str("a"),
		str("extra_keys") + "c0", str("group_idx") + "00", str("group_idx") + "01", str("parent_block_hash") + "c0", str("parent_block_hash") + "07",
		str("cache_salt") + str("s"), str("session_id") + str("t"), str("new") + "9101",
		"b2" + str2("kv_cache_spec_kind") + "ae" + str2("full_attention"),
	}
	tags := []string{str("type") + str("BlockStored"), str("type") + str("BlockRemoved"), str("type") + "b0" + str2("AllBlocksCleared"), str("type") + str("New")}
	pick := func(label string, most int) (list []string) {
		for _, i := range rapid.SliceOfN(rapid.IntRange(0, len(fields)-1), most/2, most).Draw(t, label) {
			list = append(list, fields[i])
		}
		return list
	}
	need := []string{fields[0], fields[2], fields[5]} // of a store
	heads := [][]string{need[:2], {fields[1], fields[3]}, {fields[3]}, append(pick("head", 3), need[:2]...)}
	tails := [][]string{append(pick("tail", 5), need[2]), append(pick("all", 3), need...)}
	for range rapid.IntRange(5, 15).Draw(t, "events") {
		tag := tags[rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 1, 1, 2, 3}).Draw(t, "tag")]
		list := slices.Concat([]string{tag}, rapid.SampledFrom(heads).Draw(t, "head"), rapid.SampledFrom(tails).Draw(t, "tail"))
		if rapid.IntRange(0, 5).Draw(t, "shuffled") == 0 {
			list = rapid.Permutation(list).Draw(t, "order")
		}
		events = append(events, hexByte(0x80|len(list))+strings.Join(list, ""))
	}
	return events
}

// FuzzDecode holds every payload, valid or not, to what a decoder promises.
func FuzzDecode(f *testing.F) {
	for _, seed := range kvtest.Seeds(f) {
		f.Add(seed)
	}
	var used Decoder
	f.Fuzz(func(t *testing.T, payload []byte) {
		if len(used.media) > 6 || len(used.specs) > 0 {
			used = Decoder{} // the names that it has room for are a matter of what came before
		}
		fresh := new(Decoder)
		want, err := fresh.Decode(payload)
		got, usedErr := used.Decode(payload)
		if (err == nil) != (usedErr == nil) {
			t.Fatalf("a new decoder says %v, a used one %v", err, usedErr)
		}
		if held, most := fresh.held(), bound(len(payload)); held > most {
			t.Fatalf("%d bytes held for a payload of %d, at most %d are allowed", held, len(payload), most)
		}
		if err != nil {
			return
		}
		if diff := cmp.Diff(want, got, sameBatch); diff != "" {
			t.Fatalf("(-new +used)\n%s", diff)
		}
		for i := range want.Events {
			checkEvent(t, &want.Events[i])
		}
		again, err := new(Decoder).Decode(AppendBatch(nil, want))
		if err != nil {
			t.Fatal(err)
		}
		again.Bad, again.Unknown = want.Bad, want.Unknown
		if diff := cmp.Diff(want, again, sameBatch, ignorePairs); diff != "" {
			t.Fatalf("appended and decoded again: (-want +got)\n%s", diff)
		}
	})
}

// checkEvent looks at what holds for every event that is handed out.
func checkEvent(t *testing.T, e *Event) {
	t.Helper()
	if e.Kind != Stored && (len(e.Tokens) > 0 || e.BlockSize != 0 || e.LoRA != nil || e.ExtraEnd != nil) {
		t.Fatalf("%v has fields of a store: %+v", e.Kind, e)
	}
	if !slices.IsSorted(e.ExtraEnd) || len(e.ExtraEnd) == 0 && len(e.Extra) > 0 ||
		len(e.ExtraEnd) > 0 && e.ExtraEnd[len(e.ExtraEnd)-1] != len(e.Extra) {
		t.Fatalf("ends %v of %d extra keys", e.ExtraEnd, len(e.Extra))
	}
	if e.Group < 0 || e.Window < 0 || e.BlockSize < 0 || len(e.Medium) > maxNameBytes || len(e.Spec) > maxNameBytes {
		t.Fatalf("out of bounds: %+v", e)
	}
}
