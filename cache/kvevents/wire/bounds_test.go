package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"runtime"
	"testing"

	"github.com/tinylib/msgp/msgp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
)

func mustHex(s string) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return b
}

func hexByte(b int) string { return fmt.Sprintf("%02x", b) }

// bound is what a Decoder may hold after a payload of n bytes. Growing a slice may take a quarter more than is needed,
// rounded up to a size class; small ones are doubled.
func bound(n int) int {
	return 4096 + n*8*5/4 + maxEvents*eventBytes*5/4 + maxItems*itemBytes*5/4
}

// TestAllocations: a Decoder that has seen as much before allocates nothing, whatever the engine.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, name := range kvtest.Names {
		frames := kvtest.Captures(t, name)
		var d Decoder
		decode := func() {
			for _, f := range frames {
				if _, err := d.Decode(f.Payload); err != nil {
					t.Fatal(err)
				}
			}
		}
		decode()
		if n := testing.AllocsPerRun(10, decode); n != 0 {
			t.Errorf("%s: %v allocations in %d frames, want 0", name, n, len(frames))
		}
	}
	var d Decoder
	payloads := kvtest.Payloads(t)
	decode := func() {
		for _, p := range payloads {
			if _, err := d.Decode(p); err != nil {
				t.Fatal(err)
			}
		}
	}
	decode()
	if n := testing.AllocsPerRun(10, decode); n != 0 {
		t.Errorf("hand-written payloads: %v allocations, want 0", n)
	}
}

// allocated is how many bytes f allocates.
func allocated(f func()) int {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return int(after.TotalAlloc - before.TotalAlloc)
}

// TestClaimsDoNotAllocate: lengths that the payload cannot hold allocate next to nothing.
func TestClaimsDoNotAllocate(t *testing.T) {
	stored := str("BlockStored")
	for name, payload := range map[string]string{
		"events":     "9301ddffffffff",
		"hashes":     "930191" + "95" + stored + "ddffffffff01",
		"tokens":     "930191" + "95" + stored + "9101c0ddffffffff01",
		"extra keys": "930191" + "99" + stored + "9101c090" + "02c0c0c0" + "ddffffffff01",
		"a text":     "930191" + "93" + str("BlockRemoved") + "9101" + "dbffffffff41",
		"a map":      "930191" + "dfffffffff",
		"fields":     "930191" + "ddffffffff" + stored,
	} {
		p := mustHex(payload)
		var err error
		n := allocated(func() { _, err = new(Decoder).Decode(p) })
		if err == nil || n > 8<<10 {
			t.Errorf("%s: error %v, %d bytes allocated for a payload of %d", name, err, n, len(p))
		}
	}
}

// TestBadEventsDoNotAllocate: a payload full of bad and unknown events allocates nothing for each.
func TestBadEventsDoNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	const n = 10_000
	for name, event := range map[string]string{
		"nil": "c0", "a number": "07", "an unknown tag": "91" + str("New"), "a text as hashes": "92" + str("BlockRemoved") + "a161",
		"a medium that is a float": "93" + str("BlockRemoved") + "9101" + "ca00000000", "an ext as tag": "91d40101",
		"an adapter that is a number": "98" + str("BlockStored") + "9101c0" + "9101" + "01c0c0ff",
	} {
		p := binary.BigEndian.AppendUint32([]byte{0x92, 0x01, 0xdd}, n)
		p = append(p, bytes.Repeat(mustHex(event), n)...)
		var d Decoder
		decode := func() {
			b, err := d.Decode(p)
			if err != nil || b.Bad+b.Unknown != n {
				t.Fatalf("%s: %+v, %v; want %d events left out", name, b, err, n)
			}
		}
		decode()
		if got := testing.AllocsPerRun(3, decode); got != 0 {
			t.Errorf("%s: %v allocations, want 0", name, got)
		}
	}
}

// TestTooManyEvents: what exceeds the limit is counted, the rest counts.
func TestTooManyEvents(t *testing.T) {
	const n = maxEvents + 10
	p := binary.BigEndian.AppendUint32([]byte{0x93, 0x01, 0xdd}, n)
	p = append(p, bytes.Repeat(mustHex("92"+str("BlockRemoved")+"9101"), n)...)
	p = append(p, 0x05)
	var d Decoder
	b, err := d.Decode(p)
	if err != nil || len(b.Events) != maxEvents || b.Bad != 10 || b.Rank != 5 {
		t.Fatalf("%d events, %d bad, rank %d, %v; want %d, 10, 5", len(b.Events), b.Bad, b.Rank, err, maxEvents)
	}
	if held, most := d.held(), bound(len(p)); held > most {
		t.Errorf("%d bytes held, at most %d are allowed", held, most)
	}
}

// TestTooManyExtraKeys: an event whose extra keys exceed what a batch may hold is bad, the one after it is not.
func TestTooManyExtraKeys(t *testing.T) {
	stored := "99" + str("BlockStored") + "9101c0920102" + "02c0c0c0"
	event := func(keys int) []byte {
		e := binary.BigEndian.AppendUint32(mustHex(stored+"91dd"), uint32(keys))
		return append(e, bytes.Repeat([]byte{0x07}, keys)...)
	}
	p := []byte{0x93, 0x01, 0x94}
	for _, keys := range []int{maxItems - 3, 4, 3, 1} {
		p = append(p, event(keys)...)
	}
	p = append(p, 0x00)
	b, err := new(Decoder).Decode(p)
	if err != nil || len(b.Events) != 2 || b.Bad != 2 || len(b.Events[1].Extra) != 3 {
		t.Fatalf("%+v, %v; want the first and the third event", b, err)
	}
}

// TestManyMedia: names past the limit are one.
func TestManyMedia(t *testing.T) {
	var d Decoder
	media := make(map[string]bool)
	for i := range 1000 {
		p := AppendBatch(nil, &Batch{Events: []Event{{Kind: Removed, Medium: fmt.Sprintf("tier-%d", i)}}})
		b, err := d.Decode(p)
		if err != nil {
			t.Fatal(err)
		}
		media[b.Events[0].Medium] = true
		p = AppendBatch(nil, &Batch{Events: []Event{{Kind: Stored, Spec: fmt.Sprintf("spec-%d", i)}}})
		if _, err = d.Decode(p); err != nil {
			t.Fatal(err)
		}
	}
	if len(d.media) != maxNames || len(d.specs) != maxNames || len(media) > maxNames || !media[OtherName] {
		t.Errorf("%d media and %d specs kept, %d seen, want at most %d", len(d.media), len(d.specs), len(media), maxNames)
	}
	if b, err := d.Decode(kvtest.Payloads(t)["K12"]); err != nil || b.Events[0].Medium != "cpu" {
		t.Errorf("afterwards: %+v, %v; want medium cpu", b, err)
	}
}

// TestBuffersAreGivenBack: after one huge payload, small ones do not keep its memory.
func TestBuffersAreGivenBack(t *testing.T) {
	var d Decoder
	huge := AppendBatch(nil, &Batch{Events: []Event{{Kind: Stored, Tokens: make([]uint32, 4<<20)}}})
	if _, err := d.Decode(huge); err != nil {
		t.Fatal(err)
	}
	if d.held() < 16<<20 {
		t.Fatalf("%d bytes held, want those of 4 Mi tokens", d.held())
	}
	small := kvtest.Payloads(t)["K01"]
	for range 2 {
		if b, err := d.Decode(small); err != nil || len(b.Events) != 1 {
			t.Fatalf("%+v, %v", b, err)
		}
	}
	if d.held() > keepBytes {
		t.Errorf("%d bytes held after small payloads, want at most %d", d.held(), keepBytes)
	}
}

// TestDeepNesting: a value nested as deep as a payload can is skipped like any other.
func TestDeepNesting(t *testing.T) {
	deep := append(bytes.Repeat([]byte{0x91}, 1<<20), 0xc0)
	for _, event := range []string{"95" + str("BlockStored") + "9101c0920102" + "02", "91" + str("New")} {
		e := mustHex(event)
		e[0]++ // one field more: the deep one
		p := append([]byte{0x92, 0x01, 0x91}, e...)
		p = append(p, deep...)
		b, err := new(Decoder).Decode(p)
		if err != nil || len(b.Events)+b.Bad+b.Unknown != 1 {
			t.Errorf("%+v, %v", b, err)
		}
	}
	p := append(mustHex("920191"+"92"+str("BlockRemoved")+"91"), deep...) // as a hash
	if b, err := new(Decoder).Decode(p); err != nil || b.Bad != 1 {
		t.Errorf("as a hash: %+v, %v; want one bad event", b, err)
	}
}

// TestSkipAgreesWithAnotherSkipper holds skip against msgp's, on valid and broken values.
func TestSkipAgreesWithAnotherSkipper(t *testing.T) {
	seeds := kvtest.Seeds(t)
	rapid.Check(t, func(t *rapid.T) {
		b := bytes.Clone(rapid.SampledFrom(seeds).Draw(t, "seed"))
		if rapid.Bool().Draw(t, "random") {
			b = rapid.SliceOfN(rapid.Byte(), 1, 40).Draw(t, "bytes")
		}
		for range rapid.IntRange(0, 3).Draw(t, "changes") {
			b[rapid.IntRange(0, len(b)-1).Draw(t, "at")] = rapid.Byte().Draw(t, "byte")
		}
		rest, err := msgp.Skip(b)
		next, ok := skip(b, 0)
		if ok != (err == nil) || ok && next != len(b)-len(rest) {
			t.Fatalf("%x: skipped to %d, %v; msgp to %d, %v", b, next, ok, len(b)-len(rest), err)
		}
	})
}
