package scheduling_test

import (
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
)

func endpointSpec(address, uid string) scheduling.EndpointSpec {
	return scheduling.EndpointSpec{Address: address, UID: uid, Name: address}
}

// endpointSpecs makes specs with these addresses and no uid.
func endpointSpecs(list ...string) []scheduling.EndpointSpec {
	specs := make([]scheduling.EndpointSpec, len(list))
	for i, a := range list {
		specs[i] = endpointSpec(a, "")
	}
	return specs
}

// layout is the address on each ordinal, "" for a hole.
func layout(s *scheduling.Snapshot) []string {
	list := make([]string, len(s.Endpoints))
	for i, e := range s.Endpoints {
		if e != nil {
			list[i] = e.Address
		}
	}
	return list
}

func readyOrdinals(s *scheduling.Snapshot) []int { return slices.Collect(s.Ready.All()) }

func TestPoolBeginsEmpty(t *testing.T) {
	t.Parallel()
	s := scheduling.NewPool().Snapshot()
	if s == nil || s.Len() != 0 || !s.Ready.Empty() || s.ByAddress("10.0.0.1:1") != nil || s.Holds(0, 0) {
		t.Errorf("a new pool holds %+v", s)
	}
}

// A release that names the instance it was charged to can't land on the one that took its address and ordinal.
func TestC05_ReplacementIsAnotherInstance(t *testing.T) {
	t.Parallel()
	for name, flap := range map[string]func(*scheduling.Pool){
		"leaves and returns": func(p *scheduling.Pool) { p.Update(nil); p.Update(endpointSpecs("10.0.0.1:1")) },
		"returns with another uid": func(p *scheduling.Pool) {
			p.Update([]scheduling.EndpointSpec{endpointSpec("10.0.0.1:1", "U2")})
		},
		"leaves and returns with another uid": func(p *scheduling.Pool) {
			p.Update(nil)
			p.Update([]scheduling.EndpointSpec{endpointSpec("10.0.0.1:1", "U2")})
		},
		"another address takes the ordinal": func(p *scheduling.Pool) { p.Update(endpointSpecs("10.0.0.2:1")) },
	} {
		pool := scheduling.NewPool()
		before := pool.Update(endpointSpecs("10.0.0.1:1"))
		old := before.Endpoints[0]
		flap(pool)
		after := pool.Snapshot()
		if len(after.Endpoints) != 1 || after.Endpoints[0] == nil {
			t.Errorf("%s: %v", name, layout(after))
			continue
		}
		if after.Endpoints[0].Generation <= old.Generation || after.Holds(old.Ordinal, old.Generation) {
			t.Errorf("%s: generation %d after %d", name, after.Endpoints[0].Generation, old.Generation)
		}
		// The snapshot that a request took at its start stays as it was.
		if before.Endpoints[0] != old || before.ByAddress("10.0.0.1:1") != old || !before.Holds(old.Ordinal, old.Generation) {
			t.Errorf("%s: the old snapshot has changed", name)
		}
	}
}

// A health check, a label or a name that changes is no new life.
func TestC05_StateFlapKeepsTheInstance(t *testing.T) {
	t.Parallel()
	pool := scheduling.NewPool()
	first := pool.Update(endpointSpecs("10.0.0.1:1", "10.0.0.2:1")).Endpoints[0]
	for i, change := range []func(*scheduling.EndpointSpec){
		func(s *scheduling.EndpointSpec) { s.State = scheduling.EndpointNotReady },
		func(s *scheduling.EndpointSpec) { s.State = scheduling.EndpointReady },
		func(s *scheduling.EndpointSpec) { s.State = scheduling.EndpointDraining },
		func(s *scheduling.EndpointSpec) { s.Labels = map[string]string{"zone": "a"} },
		func(s *scheduling.EndpointSpec) { s.Labels = map[string]string{"zone": "b"} },
		func(s *scheduling.EndpointSpec) { s.Name = "vllm-0" },
		func(s *scheduling.EndpointSpec) { s.Engine = "sglang" },
		func(s *scheduling.EndpointSpec) { s.MetricsURL = "http://10.0.0.1:9/metrics" },
		func(s *scheduling.EndpointSpec) { s.Rank = 3 },
	} {
		specs := endpointSpecs("10.0.0.1:1", "10.0.0.2:1")
		change(&specs[0])
		version := pool.Snapshot().Version
		s := pool.Update(specs)
		e := s.Endpoints[0]
		if e.Generation != first.Generation || e.Ordinal != first.Ordinal {
			t.Errorf("change %d: instance (%d, %d), was (%d, %d)", i, e.Ordinal, e.Generation, first.Ordinal, first.Generation)
		}
		if diff := cmp.Diff(specs[0], e.EndpointSpec); diff != "" {
			t.Errorf("change %d: (-want +got)\n%s", i, diff)
		}
		if s.Version != version+1 {
			t.Errorf("change %d: version %d after %d", i, s.Version, version)
		}
		want := []int{0, 1}
		if specs[0].State != scheduling.EndpointReady {
			want = []int{1}
		}
		if diff := cmp.Diff(want, readyOrdinals(s)); diff != "" {
			t.Errorf("change %d: ready (-want +got)\n%s", i, diff)
		}
	}
}

func TestPoolSameSetIsNoChange(t *testing.T) {
	t.Parallel()
	pool := scheduling.NewPool()
	labelled := endpointSpecs("10.0.0.1:1", "10.0.0.2:1")
	labelled[0].Labels = map[string]string{"zone": "a"}
	first := pool.Update(labelled)
	calls := 0
	pool.Watch(func(*scheduling.Snapshot) { calls++ })
	again := endpointSpecs("10.0.0.2:1", "10.0.0.1:1", "10.0.0.2:1")
	again[1].Labels = map[string]string{"zone": "a"}
	if s := pool.Update(again); s != first || pool.Snapshot() != first || calls != 1 {
		t.Errorf("another order made version %d of %d, %d calls", s.Version, first.Version, calls)
	}
}

func TestPoolReusesOrdinals(t *testing.T) {
	t.Parallel()
	pool := scheduling.NewPool()
	for _, step := range []struct {
		set  []string
		want []string
	}{
		{[]string{"a:1", "b:1", "c:1"}, []string{"a:1", "b:1", "c:1"}},
		{[]string{"a:1", "c:1"}, []string{"a:1", "", "c:1"}},
		{[]string{"c:1", "d:1", "a:1", "e:1"}, []string{"a:1", "d:1", "c:1", "e:1"}}, // the lowest hole, then the end
		{[]string{"d:1"}, []string{"", "d:1"}},                                       // no holes at the end
		{[]string{"f:1", "g:1", "d:1"}, []string{"f:1", "d:1", "g:1"}},
		{[]string{"h:1"}, []string{"h:1"}},
		{nil, []string{}},
	} {
		s := pool.Update(endpointSpecs(step.set...))
		if diff := cmp.Diff(step.want, layout(s)); diff != "" {
			t.Errorf("%v: (-want +got)\n%s", step.set, diff)
		}
	}
}

func TestPoolLaterSpecWins(t *testing.T) {
	t.Parallel()
	pool := scheduling.NewPool()
	s := pool.Update([]scheduling.EndpointSpec{endpointSpec("a:1", "first"), endpointSpec("b:1", ""), endpointSpec("a:1", "last")})
	if s.Len() != 2 || s.ByAddress("a:1").UID != "last" || s.ByAddress("a:1").Ordinal != 0 {
		t.Errorf("%v, uid %q", layout(s), s.ByAddress("a:1").UID)
	}
}

func TestPoolWatchers(t *testing.T) {
	t.Parallel()
	pool := scheduling.NewPool()
	pool.Update(endpointSpecs("a:1"))
	var one, two []uint64
	record := func(to *[]uint64) func(*scheduling.Snapshot) {
		return func(s *scheduling.Snapshot) { *to = append(*to, s.Version) }
	}
	stopOne := pool.Watch(record(&one))
	stopTwo := pool.Watch(record(&two))
	pool.Update(endpointSpecs("a:1", "b:1"))
	stopOne()
	pool.Update(endpointSpecs("b:1"))
	var three []uint64
	stopThree := pool.Watch(record(&three)) // may take the place of the first
	pool.Update(endpointSpecs("c:1"))
	stopTwo()
	stopThree()
	pool.Update(nil)
	for name, c := range map[string]struct{ got, want []uint64 }{
		"one": {one, []uint64{1, 2}}, "two": {two, []uint64{1, 2, 3, 4}}, "three": {three, []uint64{3, 4}},
	} {
		if diff := cmp.Diff(c.want, c.got); diff != "" {
			t.Errorf("watcher %s: (-want +got)\n%s", name, diff)
		}
	}
}

// poolModel is what the pool must be, kept by address alone.
type poolModel struct {
	pool  *scheduling.Pool
	specs map[string]scheduling.EndpointSpec
	born  map[string]uint64 // generation by address
	newer uint64            // the highest generation seen
	seen  map[uint64]string // every generation ever, with its address and uid
	told  *scheduling.Snapshot
}

func (m *poolModel) update(t *rapid.T) {
	spec := rapid.Custom(func(t *rapid.T) scheduling.EndpointSpec {
		return scheduling.EndpointSpec{
			Address: fmt.Sprintf("10.0.0.%d:1", rapid.IntRange(1, 6).Draw(t, "address")),
			UID:     rapid.SampledFrom([]string{"", "u", "v"}).Draw(t, "uid"),
			State:   scheduling.EndpointState(rapid.IntRange(0, 2).Draw(t, "state")),
			Labels:  map[string]string{"l": rapid.SampledFrom([]string{"a", "b"}).Draw(t, "label")},
		}
	})
	specs := rapid.SliceOfN(spec, 0, 8).Draw(t, "specs")
	before := m.pool.Snapshot()
	highest := m.newer
	s := m.pool.Update(specs)
	wanted := make(map[string]scheduling.EndpointSpec)
	for _, spec := range specs {
		wanted[spec.Address] = spec
	}
	for address, spec := range wanted {
		e := s.ByAddress(address)
		if e == nil {
			t.Fatalf("%s is missing", address)
		}
		old, was := m.specs[address]
		stays := was && old.UID == spec.UID
		switch {
		case stays && e.Generation != m.born[address]:
			t.Fatalf("%s stayed and became generation %d of %d", address, e.Generation, m.born[address])
		case stays && before.ByAddress(address).Ordinal != e.Ordinal:
			t.Fatalf("%s moved to ordinal %d", address, e.Ordinal)
		case !stays && e.Generation <= highest:
			t.Fatalf("%s is new with generation %d, %d was given before", address, e.Generation, highest)
		}
		id := address + "#" + spec.UID
		if known, ok := m.seen[e.Generation]; ok && (known != id || !stays) {
			t.Fatalf("generation %d was %s and is %s", e.Generation, known, id)
		}
		m.seen[e.Generation] = id
		m.newer = max(m.newer, e.Generation)
		m.born[address] = e.Generation
		if diff := cmp.Diff(spec, e.EndpointSpec); diff != "" {
			t.Fatalf("%s: %s", address, diff)
		}
	}
	same := maps.EqualFunc(m.specs, wanted, func(a, b scheduling.EndpointSpec) bool { return cmp.Equal(a, b) })
	if same != (s == before) || !same && s.Version != before.Version+1 {
		t.Fatalf("version %d after %d; the set is the same: %v", s.Version, before.Version, same)
	}
	m.specs = wanted
}

// check looks at what holds for every snapshot.
func (m *poolModel) check(t *rapid.T) {
	s := m.pool.Snapshot()
	if s.Len() != len(m.specs) || m.told != s {
		t.Fatalf("%d endpoints, want %d; the watcher was told this snapshot: %v", s.Len(), len(m.specs), m.told == s)
	}
	if n := len(s.Endpoints); n > 0 && s.Endpoints[n-1] == nil {
		t.Fatalf("a hole at the end: %v", layout(s))
	}
	count := 0
	for i, e := range s.Endpoints {
		if e == nil {
			if s.Ready.Has(i) {
				t.Fatalf("hole %d is ready", i)
			}
			continue
		}
		count++
		if e.Ordinal != i || s.ByAddress(e.Address) != e || !s.Holds(i, e.Generation) || s.Holds(i, e.Generation+1) {
			t.Fatalf("ordinal %d holds %+v", i, e)
		}
		if s.Ready.Has(i) != (e.State == scheduling.EndpointReady) {
			t.Fatalf("%s in the ready set: %v", e.State, s.Ready.Has(i))
		}
	}
	if count != s.Len() || len(s.Endpoints) > 6 {
		t.Fatalf("%d endpoints on %d ordinals, %d by address", count, len(s.Endpoints), s.Len())
	}
}

func TestPoolAgainstAModel(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		m := &poolModel{
			pool: scheduling.NewPool(), specs: map[string]scheduling.EndpointSpec{},
			born: map[string]uint64{}, seen: map[uint64]string{},
		}
		defer m.pool.Watch(func(s *scheduling.Snapshot) { m.told = s })()
		t.Repeat(map[string]func(*rapid.T){"update": m.update, "": m.check})
	})
}

// Readers see whole snapshots, watchers see every one of them once and in order, whoever else is at work.
func TestPoolConcurrently(t *testing.T) {
	t.Parallel()
	const (
		writers = 4
		updates = 200
		size    = 16
	)
	pool := scheduling.NewPool()
	var group, readers sync.WaitGroup
	var versions []uint64 // the pool calls one watcher at a time
	stop := pool.Watch(func(s *scheduling.Snapshot) { versions = append(versions, s.Version) })
	done := make(chan struct{})
	for range 2 {
		readers.Go(func() {
			last := uint64(0)
			for {
				select {
				case <-done:
					return
				default:
				}
				s := pool.Snapshot()
				if s.Version < last {
					t.Errorf("version %d after %d", s.Version, last)
					return
				}
				last = s.Version
				if !wholeSnapshot(s) {
					t.Errorf("version %d is not whole: %v", s.Version, layout(s))
					return
				}
			}
		})
	}
	for w := range writers {
		group.Go(func() {
			for i := range updates {
				specs := make([]scheduling.EndpointSpec, 0, size)
				for a := range size {
					if (a+i+w)%3 != 0 {
						specs = append(specs, endpointSpec(fmt.Sprintf("10.0.0.%d:1", a), fmt.Sprint(i%2)))
					}
				}
				pool.Update(specs)
				pool.Watch(func(*scheduling.Snapshot) {})()
			}
		})
	}
	group.Wait()
	close(done)
	readers.Wait()
	stop()
	for i, v := range versions {
		if v != uint64(i) {
			t.Fatalf("call %d of the watcher was version %d", i, v)
		}
	}
	if last := pool.Snapshot().Version; uint64(len(versions)) != last+1 {
		t.Errorf("the watcher was called %d times for versions 0 to %d", len(versions), last)
	}
}

// wholeSnapshot reports whether the parts of a snapshot fit together.
func wholeSnapshot(s *scheduling.Snapshot) bool {
	count := 0
	for i, e := range s.Endpoints {
		if e == nil {
			continue
		}
		count++
		if e.Ordinal != i || s.ByAddress(e.Address) != e || !s.Ready.Has(i) {
			return false
		}
	}
	return count == s.Len() && s.Ready.Len() == count
}

func BenchmarkPoolUpdate(b *testing.B) {
	specs := make([]scheduling.EndpointSpec, 1000)
	for i := range specs {
		specs[i] = endpointSpec(fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256), "")
	}
	pool := scheduling.NewPool()
	pool.Update(specs)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		specs[i%len(specs)].State = scheduling.EndpointState(i % 2)
		pool.Update(specs)
	}
}

func TestEndingAWatchTwiceLeavesOthersAlone(t *testing.T) {
	p := scheduling.NewPool()
	stop := p.Watch(func(*scheduling.Snapshot) {})
	stop()
	seen := 0
	defer p.Watch(func(*scheduling.Snapshot) { seen++ })()
	stop()
	p.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}})
	if seen != 2 { // at the start, and the update
		t.Errorf("the other watcher was told %d times, want 2", seen)
	}
}
