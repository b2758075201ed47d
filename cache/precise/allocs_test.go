package precise

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

func noAllocs(t *testing.T, what string, f func()) {
	t.Helper()
	if n := testing.AllocsPerRun(300, f); n != 0 {
		t.Errorf("%s allocates %v times", what, n)
	}
}

func TestLookupAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h := newHarness(t, nil)
	var names []string
	for i := range 130 {
		names = append(names, fmt.Sprintf("10.0.%d.1:8000", i))
	}
	h.endpoints(names...)
	prompt := upTo(4096)
	for i, name := range names {
		f := h.site.at(name)
		f.live()
		f.say(t, store(16, prompt[:16*(i+100)], 1), on("cpu", store(16, prompt[:16*(256-i%5)], 1)))
	}
	r := ids("m", prompt)
	// A look-up with what the pick is believed to leave, and the end of that.
	r.Headers = []scheduling.Header{{Name: "pick", Value: []byte(names[0])}}
	noAllocs(t, "a request", func() {
		h.advance(defaultTTL)
		c := h.begin(r)
		f, err := h.scheduler.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		h.scheduler.End(c)
		f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.Usage{CachedTokens: 4080}}, h.now())
	})
}

func TestIndexAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	x := NewIndex(newTestHub().keys.seed)
	var q Query
	prompt := upTo(4096)
	for i := range 70 {
		number, sink := x.Open()
		if number != i {
			t.Fatalf("engine %d is number %d", i, number)
		}
		sink.Apply(&wire.Batch{Events: []wire.Event{store(16, prompt[:16*(i+10)], 1)}})
	}
	look := func() {
		x.Hash(&q, 16, prompt)
		x.Match(&q)
	}
	look()
	if len(q.Hashes) != 256 || q.Matches[69].Blocks != 79 || q.Matches[0].Blocks != 10 {
		t.Errorf("%d hashes, %+v and %+v", len(q.Hashes), q.Matches[0], q.Matches[69])
	}
	noAllocs(t, "a look-up", look)
}

func TestEventsAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	batch := func(events ...wire.Event) []byte { return wire.AppendBatch(nil, &wire.Batch{Events: events}) }
	names := store(16, upTo(2048), 1).Hashes
	salted := store(16, upTo(2048), 5001)
	salted.LoRA, salted.Salt = []byte("sql"), []byte("tenant-1")
	salted.Extra, salted.ExtraEnd = []wire.Item{{Kind: wire.ItemFeature, Value: []byte("img-1")}}, []int{1, 1, 1}
	for name, payloads := range map[string][][]byte{
		"stores and removals": {batch(store(16, upTo(2048), 1)), batch(removed("gpu", names...))},
		"repeated stores":     {batch(store(16, upTo(2048), 1), store(16, upTo(2048), 1)), batch(removed("gpu", names...), removed("gpu", names...))},
		"decoding": {
			batch(store(16, upTo(16), 1)), batch(after(1, store(16, from(17, 32), 2))), batch(after(2, store(16, from(33, 48), 3))),
			batch(removed("gpu", 3)), batch(removed("gpu", 2)), batch(removed("gpu", 1)),
		},
		"offload by name":    {batch(store(16, upTo(2048), 1)), batch(byName("cpu", names...)), batch(removed("gpu", names...)), batch(removed("cpu", names...))},
		"adapters and salts": {batch(salted), batch(removed("gpu", salted.Hashes...))},
		"clears":             {batch(store(16, upTo(2048), 1), cleared)},
		"sliding windows":    {batch(inGroup(1, "sliding_window", store(16, upTo(2048), 1)))},
		"two full groups": {
			batch(inGroup(0, "full_attention", store(16, upTo(2048), 1)), inGroup(1, "full_attention", store(16, upTo(2048), 1))),
			batch(removed("gpu", names...), inGroup(1, "", removed("gpu", names...))),
		},
	} {
		e := newPool(t).open()
		round := func() {
			for _, p := range payloads {
				b, err := e.decoder.Decode(p)
				if err != nil {
					t.Fatal(err)
				}
				e.Apply(b)
			}
		}
		for range 20 {
			round()
		}
		noAllocs(t, name, round)
		if err := e.check(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	// A real engine's messages, over and over.
	for _, name := range []string{"kv_evict_lora_b32", "kv_offload_cpu_cbor_b32"} {
		e := newPool(t).open()
		frames := kvtest.Captures(t, name)
		round := func() {
			for _, f := range frames {
				b, err := e.decoder.Decode(f.Payload)
				if err != nil {
					t.Fatal(err)
				}
				e.Apply(b)
			}
		}
		for range 10 {
			round()
		}
		noAllocs(t, name, round)
	}
}
