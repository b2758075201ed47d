package memo

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

func key(n int) Key { return Key{}.With(1, fmt.Append(nil, n)) }

func prompt(tokens int) *Prompt {
	return &Prompt{Tokens: make([]uint32, tokens), Count: tokens, Prompts: 1}
}

func TestKeys(t *testing.T) {
	a := Key{}.With(1, []byte("a"))
	for name, other := range map[string]Key{
		"other data": Key{}.With(1, []byte("b")), "other seed": Key{}.With(2, []byte("a")), "nothing": {},
		"more":            a.With(1, nil),
		"one for two":     Key{}.With(1, []byte("aa")),
		"twice":           a.With(1, []byte("a")),
		"the other order": Key{}.With(1, []byte("b")).With(1, []byte("a")),
	} {
		if other == a {
			t.Errorf("%s has the same key", name)
		}
	}
	if a != (Key{}.With(1, []byte("a"))) || a != (Key{}.WithString(1, "a")) || a.Sum() == 0 {
		t.Error("the same data has another key")
	}
}

func TestStoreBounds(t *testing.T) {
	const limit = 100_000
	s := NewStore(limit)
	each := prompt(1000).size()
	for i := range 200 {
		s.Put(key(i), prompt(1000))
		s.Get(key(0)) // in use
		if n, bytes, _ := s.Size(); bytes > limit || n*each != bytes {
			t.Fatalf("%d prompts, %d bytes; the bound is %d", n, bytes, limit)
		}
	}
	n, _, evicted := s.Size()
	if n != limit/each || evicted != int64(200-n) || s.Limit() != limit {
		t.Errorf("%d prompts of %d bytes each within %d, %d evicted", n, each, limit, evicted)
	}
	for i, want := range map[int]bool{0: true, 1: false, 100: false, 199: true} {
		if got := s.Get(key(i)) != nil; got != want {
			t.Errorf("prompt %d is held: %v, want %v", i, got, want)
		}
	}
	s.Put(key(0), prompt(limit/8/4)) // too large, and what was there is out of date
	if s.Get(key(0)) != nil {
		t.Error("a prompt larger than an eighth of the store is kept, or the one it replaces")
	}
	s.Put(key(199), prompt(10))
	if p := s.Get(key(199)); p == nil || p.Count != 10 {
		t.Error("a prompt is not replaced")
	}
	s.Remove(key(199))
	s.Remove(key(199))
	if s.Get(key(199)) != nil {
		t.Error("a removed prompt is there")
	}
	s.Purge()
	if n, bytes, _ := s.Size(); n != 0 || bytes != 0 || s.Get(key(198)) != nil {
		t.Errorf("%d prompts, %d bytes after a purge", n, bytes)
	}
	s.Put(key(1), &Prompt{Features: []scheduling.PromptFeature{{ID: "x"}}})
	if _, bytes, _ := s.Size(); bytes != promptBytes+featureBytes {
		t.Errorf("%d bytes for one prompt with a feature", bytes)
	}
}

func TestStoreConcurrently(t *testing.T) {
	s := NewStore(50_000)
	var all sync.WaitGroup
	for w := range 4 {
		all.Go(func() {
			for i := range 2000 {
				n := (i*7 + w) % 300
				if p := s.Get(key(n)); p != nil && p.Count != n {
					t.Errorf("prompt %d has %d tokens", n, p.Count)
				}
				s.Put(key(n), prompt(n))
				if i%50 == 0 {
					s.Remove(key(n))
				}
				if i%500 == 0 {
					s.Purge()
				}
			}
		})
	}
	all.Wait()
	seen := 0
	for e := s.recent.next; e != &s.recent; e = e.next {
		seen += e.prompt.size()
	}
	if n, bytes, _ := s.Size(); bytes != seen || bytes > 50_000 || n != len(s.entries) {
		t.Errorf("%d prompts, %d bytes counted, %d there", n, bytes, seen)
	}
}

func TestStoreAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	s := NewStore(100_000)
	s.Put(key(1), prompt(10))
	data := []byte("1")
	if n := testing.AllocsPerRun(100, func() {
		if s.Get(Key{}.With(1, data)) == nil {
			t.Fatal("it is gone")
		}
	}); n != 0 {
		t.Errorf("%v allocations a look-up", n)
	}
}

func TestEpochs(t *testing.T) {
	day := time.Date(2026, 3, 29, 0, 0, 0, 0, time.UTC)
	seconds := func(n int) time.Time { return day.Add(time.Duration(n) * time.Second) }
	for _, tc := range []struct {
		begun, ended int
		certain      bool
	}{
		{10, 11, true}, {4, 800, true}, {2, 3, false}, {-1, 1, false}, {890, 896, true}, {890, 897, false}, {-3, -3, false}, {-10, -4, true}, {100, 1100, false},
	} {
		if got := EpochOf(seconds(tc.begun), seconds(tc.ended)); (got != 0) != tc.certain || got != 0 && got != Epoch(seconds(tc.begun)) {
			t.Errorf("%d s to %d s: epoch %d, certain: %v", tc.begun, tc.ended, got, tc.certain)
		}
	}
	// No time zone's midnight lies within an epoch.
	for _, zone := range []string{"UTC", "Asia/Kathmandu", "Asia/Kolkata", "Australia/Eucla", "Pacific/Chatham", "America/St_Johns", "Europe/Berlin"} {
		location, err := time.LoadLocation(zone)
		if err != nil {
			t.Skip(err)
		}
		midnight := time.Date(2026, 5, 5, 0, 0, 0, 0, location)
		if Epoch(midnight.Add(-time.Second)) == Epoch(midnight) {
			t.Errorf("%s: the date changes within an epoch", zone)
		}
	}
}

func TestClasses(t *testing.T) {
	c := NewClasses()
	for i := range agreementsToJoin {
		if d := c.Decide("m", 1); d != Verify {
			t.Fatalf("request %d: %v, want it verified", i, d)
		}
		c.Agreed("m", 1)
	}
	combined, verified := 0, 0
	for range 10 * checkEvery {
		switch c.Decide("m", 1) {
		case Combine:
			combined++
		case Verify:
			verified++
		}
	}
	if verified != 10 || combined != 10*(checkEvery-1) {
		t.Errorf("%d joined, %d verified", combined, verified)
	}
	if d := c.Decide("m", 2); d != Verify {
		t.Errorf("another shape is trusted: %v", d)
	}
	if d := c.Decide("n", 1); d != Verify {
		t.Errorf("another model is trusted: %v", d)
	}
	if classes, trusted, disabled := c.Census(); classes != 3 || trusted != 1 || disabled != 0 {
		t.Errorf("%d classes, %d trusted, %d models disabled", classes, trusted, disabled)
	}
	c.Refused("m", 1)
	if d := c.Decide("m", 1); d != Verify {
		t.Errorf("a class is trusted after a refusal: %v", d)
	}
	for range refusalsToRest {
		c.Refused("m", 1)
	}
	tries := 0
	for range 4 * tryEvery {
		if c.Decide("m", 1) == Verify {
			tries++
		}
	}
	if tries != 4 {
		t.Errorf("a class that cannot be joined is tried %d times of %d", tries, 4*tryEvery)
	}
	c.Agreed("m", 1)
	if d := c.Decide("m", 1); d != Verify {
		t.Errorf("%v after an agreement", d)
	}
	if c.Disabled("m") || !c.Disable("m") || c.Disable("m") || !c.Disabled("m") {
		t.Error("disabling a model says whether it was enabled")
	}
	for range 3 * tryEvery {
		if d := c.Decide("m", 2); d != Render {
			t.Fatalf("%v for a disabled model", d)
		}
	}
}

func TestClassesAreBounded(t *testing.T) {
	c := NewClasses()
	for i := range maxClasses + 500 {
		c.Decide("m", uint64(i))
	}
	for i := range maxModels + 500 {
		c.Disable(fmt.Sprint("m", i))
	}
	if classes, _, disabled := c.Census(); classes != maxClasses || disabled != maxModels {
		t.Errorf("%d classes, %d models; want %d and %d", classes, disabled, maxClasses, maxModels)
	}
}
