package discovery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
)

// script is a source that publishes what a test sends it.
type script struct {
	sets chan []scheduling.EndpointSpec
	fail chan error
}

func newScript() *script {
	return &script{sets: make(chan []scheduling.EndpointSpec), fail: make(chan error)}
}

func (s *script) Run(ctx context.Context, publish func([]scheduling.EndpointSpec)) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case specs := <-s.sets:
			publish(specs)
		case err := <-s.fail:
			return err
		}
	}
}

func (s *script) String() string { return "script" }

// send publishes endpoints, each "address" or "address#uid", and waits until that is through.
func (s *script) send(list ...string) {
	specs := make([]scheduling.EndpointSpec, len(list))
	for i, e := range list {
		specs[i].Address, specs[i].UID, _ = strings.Cut(e, "#")
	}
	s.sets <- specs
	synctest.Wait()
}

// runDiscovery runs a discovery until the test ends.
func runDiscovery(t *testing.T, pool *scheduling.Pool, o Options, sources ...Source) (d *Discovery, stop func() error) {
	t.Helper()
	d = New(pool, o, sources...)
	ctx, cancel := context.WithCancel(t.Context())
	var (
		done sync.WaitGroup
		err  error
	)
	done.Go(func() { err = d.Run(ctx) })
	stop = func() error { cancel(); done.Wait(); return err }
	t.Cleanup(func() { _ = stop() })
	return d, stop
}

func isReady(d *Discovery) bool {
	synctest.Wait()
	select {
	case <-d.Ready():
		return true
	default:
		return false
	}
}

// held is the pool's set: address by address with its generation.
func held(pool *scheduling.Pool) map[string]uint64 {
	m := make(map[string]uint64)
	for _, e := range pool.Snapshot().Endpoints {
		if e != nil {
			m[e.Address] = e.Generation
		}
	}
	return m
}

func wantHeld(t *testing.T, pool *scheduling.Pool, want ...string) {
	t.Helper()
	if diff := cmp.Diff(slices.Sorted(slices.Values(want)), slices.Sorted(maps.Keys(held(pool)))); diff != "" {
		t.Errorf("the pool (-want +got)\n%s", diff)
	}
}

func TestReadyWhenEverySourceHasPublished(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool, a, b := scheduling.NewPool(), newScript(), newScript()
		d, _ := runDiscovery(t, pool, Options{}, a, b)
		if isReady(d) {
			t.Error("ready before anything was published")
		}
		a.send("10.0.0.1:1", "10.0.0.2:1")
		wantHeld(t, pool, "10.0.0.1:1", "10.0.0.2:1") // serves what it knows
		a.send("10.0.0.1:1")
		if isReady(d) {
			t.Error("ready before the second source has published")
		}
		wantHeld(t, pool, "10.0.0.1:1", "10.0.0.2:1") // but takes nothing away yet
		b.send()
		if !isReady(d) {
			t.Error("not ready after both sources have published")
		}
		wantHeld(t, pool, "10.0.0.1:1")
	})
}

func TestReadyAfterABoundedWait(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		pool, a := scheduling.NewPool(), newScript()
		pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.9:1"}})
		d, _ := runDiscovery(t, pool, Options{ReadyTimeout: 3 * time.Second, Logger: log.logger()}, a, newScript())
		a.send("10.0.0.1:1")
		time.Sleep(3*time.Second - time.Nanosecond)
		if isReady(d) {
			t.Error("ready before the wait was over")
		}
		wantHeld(t, pool, "10.0.0.1:1", "10.0.0.9:1")
		time.Sleep(time.Nanosecond)
		if !isReady(d) {
			t.Error("not ready after the wait")
		}
		wantHeld(t, pool, "10.0.0.1:1")
		if !strings.Contains(log.String(), "starting without some endpoint sources") {
			t.Errorf("the log says nothing: %s", log.String())
		}
	})
}

func TestDiscoveryWithoutSources(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := scheduling.NewPool()
		pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.9:1"}})
		if d, _ := runDiscovery(t, pool, Options{}); !isReady(d) {
			t.Error("not ready")
		}
		wantHeld(t, pool)
	})
}

// An endpoint that goes and comes back is a new instance, even under its old name and on its old ordinal; one that only
// changes its state or labels is the one it was.
func TestC05_FlapsThroughDiscovery(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool, s := scheduling.NewPool(), newScript()
		runDiscovery(t, pool, Options{}, s)
		s.send("10.0.0.1:1#U1", "10.0.0.2:1")
		first := pool.Snapshot().ByAddress("10.0.0.1:1")

		s.sets <- []scheduling.EndpointSpec{
			{Address: "10.0.0.1:1", UID: "U1", State: scheduling.EndpointNotReady},
			{Address: "10.0.0.2:1"},
		}
		synctest.Wait()
		flapped := pool.Snapshot()
		if e := flapped.ByAddress("10.0.0.1:1"); e.Generation != first.Generation || flapped.Ready.Has(e.Ordinal) {
			t.Errorf("a readiness flap made %+v of %+v", e, first)
		}

		s.send("10.0.0.1:1#U2", "10.0.0.2:1") // replaced in one step
		second := pool.Snapshot().ByAddress("10.0.0.1:1")
		if second.Generation == first.Generation || pool.Snapshot().Holds(first.Ordinal, first.Generation) {
			t.Errorf("another uid is the same instance: %+v, %+v", first, second)
		}
		s.send("10.0.0.2:1")
		s.send("10.0.0.1:1#U2", "10.0.0.2:1")
		third := pool.Snapshot().ByAddress("10.0.0.1:1")
		if third.Generation <= second.Generation || third.Ordinal != first.Ordinal {
			t.Errorf("back as %+v, was %+v", third, second)
		}
	})
}

// Editing a list in a running process keeps the instances that stay in it, also when another discovery takes over.
func TestHotReloadKeepsInstances(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := scheduling.NewPool()
		l := NewList(mustEntries(t, "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000,uid=a"), Options{})
		_, stop := runDiscovery(t, pool, Options{}, l)
		synctest.Wait()
		before := held(pool)
		l.Replace(mustEntries(t, "10.0.0.4:8000", "10.0.0.3:8000,uid=b", "10.0.0.2:8000,state=draining,label.a=b"))
		synctest.Wait()
		after := held(pool)
		if after["10.0.0.2:8000"] != before["10.0.0.2:8000"] {
			t.Error("an endpoint that stayed became another instance")
		}
		if after["10.0.0.3:8000"] == before["10.0.0.3:8000"] {
			t.Error("another uid is the same instance")
		}
		wantHeld(t, pool, "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000")
		if err := stop(); err != nil {
			t.Error(err)
		}
		wantHeld(t, pool, "10.0.0.2:8000", "10.0.0.3:8000", "10.0.0.4:8000") // the end takes nothing away
		slow := newScript()
		runDiscovery(t, pool, Options{}, NewList(mustEntries(t, "10.0.0.2:8000"), Options{}), slow)
		slow.send("10.0.0.4:8000")
		if now := held(pool); now["10.0.0.2:8000"] != after["10.0.0.2:8000"] || now["10.0.0.4:8000"] != after["10.0.0.4:8000"] || len(now) != 2 {
			t.Errorf("taken over as %v, was %v", now, after)
		}
	})
}

// At the limit the excess is refused, counted and logged once; who is in stays in.
func TestEndpointsAreBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		stats := new(Stats)
		pool, a, b := scheduling.NewPool(), newScript(), newScript()
		runDiscovery(t, pool, Options{MaxEndpoints: 3, Stats: stats, Logger: log.logger()}, a, b)
		a.send()
		b.send("10.0.0.1:1", "10.0.0.2:1")
		before := held(pool)
		for range 3 {
			a.send("10.0.1.1:1", "10.0.1.2:1", "10.0.1.3:1")
		}
		wantHeld(t, pool, "10.0.0.1:1", "10.0.0.2:1", "10.0.1.1:1")
		if now := held(pool); now["10.0.0.1:1"] != before["10.0.0.1:1"] {
			t.Error("a held endpoint became another instance")
		}
		if stats.Refused.Load() != 2 || stats.Endpoints.Load() != 3 {
			t.Errorf("%d refused, %d endpoints; want 2, 3", stats.Refused.Load(), stats.Endpoints.Load())
		}
		if n := strings.Count(log.String(), `"too many endpoints, the excess is refused" limit=3 refused=2 first=10.0.1.2:1`); n != 1 {
			t.Errorf("logged %d times:\n%s", n, log.String())
		}
		b.send() // room again
		wantHeld(t, pool, "10.0.1.1:1", "10.0.1.2:1", "10.0.1.3:1")
		if stats.Refused.Load() != 0 {
			t.Errorf("%d refused, want 0", stats.Refused.Load())
		}
	})
}

func TestDefaultLimit(t *testing.T) {
	t.Parallel()
	specs := make([]scheduling.EndpointSpec, 5000)
	for i := range specs {
		specs[i].Address = fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256)
	}
	merged, sum := merge([][]scheduling.EndpointSpec{specs}, scheduling.NewPool().Snapshot(), Options{}.withDefaults().MaxEndpoints, false)
	if len(merged) != 4096 || sum.refused != 904 {
		t.Errorf("%d endpoints, %d refused; want 4096, 904", len(merged), sum.refused)
	}
}

func TestMergeNormalisesAndDeduplicates(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log logBuffer
		stats := new(Stats)
		pool, a, b := scheduling.NewPool(), newScript(), newScript()
		runDiscovery(t, pool, Options{Stats: stats, Logger: log.logger()}, a, b)
		b.send("10.0.0.1:8000#late", "[2001:DB8:0::1]:8000#late", "10.0.0.2:8000")
		a.send("[::ffff:10.0.0.1]:8000#early", "[2001:db8::1]:8000#early", "vllm-0:8000", "10.0.0.1:8000")
		wantHeld(t, pool, "10.0.0.1:8000", "[2001:db8::1]:8000", "10.0.0.2:8000")
		for _, address := range []string{"10.0.0.1:8000", "[2001:db8::1]:8000"} {
			if e := pool.Snapshot().ByAddress(address); e.UID != "early" {
				t.Errorf("%s is %s, want the earlier source's", address, e.UID)
			}
		}
		if stats.Duplicates.Load() != 3 || stats.Invalid.Load() != 1 || stats.Updates.Load() != 2 {
			t.Errorf("%d duplicates, %d invalid, %d updates; want 3, 1, 2",
				stats.Duplicates.Load(), stats.Invalid.Load(), stats.Updates.Load())
		}
		for _, want := range []string{"listed more than once", "invalid=1 first=vllm-0:8000"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("the log lacks %q:\n%s", want, log.String())
			}
		}
	})
}

// A source that fails takes nothing with it.
func TestSourceFails(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool, a, b := scheduling.NewPool(), newScript(), newScript()
		_, stop := runDiscovery(t, pool, Options{}, a, b)
		a.send("10.0.0.1:1")
		b.send("10.0.0.2:1")
		broken := errors.New("broken")
		a.fail <- broken
		synctest.Wait()
		b.send("10.0.0.3:1")
		wantHeld(t, pool, "10.0.0.1:1", "10.0.0.3:1")
		if err := stop(); !errors.Is(err, broken) || !strings.Contains(err.Error(), "discovery: script: broken") {
			t.Errorf("Run = %v, want the source's failure", err)
		}
	})
}

// Once Run has returned the pool is left alone.
func TestNothingAfterTheEnd(t *testing.T) {
	t.Parallel()
	pool := scheduling.NewPool()
	late := make(chan func([]scheduling.EndpointSpec), 1)
	d := New(pool, Options{}, sourceFunc(func(ctx context.Context, publish func([]scheduling.EndpointSpec)) error {
		late <- publish
		<-ctx.Done()
		return ctx.Err()
	}))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := d.Run(ctx); err != nil {
		t.Errorf("Run = %v", err)
	}
	(<-late)([]scheduling.EndpointSpec{{Address: "10.0.0.1:1"}})
	if pool.Snapshot().Len() != 0 {
		t.Error("an endpoint was added after the end")
	}
	if err := d.Run(t.Context()); err == nil || !strings.Contains(err.Error(), "run twice") {
		t.Errorf("the second Run = %v", err)
	}
}

type sourceFunc func(context.Context, func([]scheduling.EndpointSpec)) error

func (f sourceFunc) Run(ctx context.Context, publish func([]scheduling.EndpointSpec)) error {
	return f(ctx, publish)
}

// Whatever sources publish, the merged set is bounded, normalised and free of duplicates; it leaves out only what it says,
// and no endpoint that is held gives way to a new one.
func TestMergeProperties(t *testing.T) {
	t.Parallel()
	address := rapid.SampledFrom([]string{
		"10.0.0.1:1", "10.0.0.2:1", "10.0.0.3:1", "[::ffff:10.0.0.1]:1", "[2001:db8::1]:1", "[2001:DB8::1]:01", "x:1", "",
	})
	spec := rapid.Custom(func(t *rapid.T) scheduling.EndpointSpec {
		return scheduling.EndpointSpec{Address: address.Draw(t, "address"), UID: rapid.SampledFrom([]string{"", "a"}).Draw(t, "uid")}
	})
	sets := rapid.SliceOfN(rapid.SliceOfN(spec, 0, 6), 0, 3)
	rapid.Check(t, func(t *rapid.T) {
		pool := scheduling.NewPool()
		limit := rapid.IntRange(1, 6).Draw(t, "limit")
		before, _ := merge(sets.Draw(t, "before"), pool.Snapshot(), limit, false)
		held := pool.Update(before)
		in := sets.Draw(t, "sets")
		out, sum := merge(in, held, limit, false)
		total, seen := 0, make(map[string]bool)
		for _, set := range in {
			total += len(set)
		}
		isNew := false
		for _, s := range out {
			if n, err := NormalizeAddress(s.Address); err != nil || n != s.Address || seen[n] {
				t.Fatalf("%q in %v", s.Address, out)
			}
			seen[s.Address] = true
			isNew = isNew || rankIn(held, &s) == 1
		}
		if len(out) > limit || len(out)+sum.duplicates+sum.invalid+sum.refused != total {
			t.Fatalf("%d of %d, limit %d: %+v", len(out), total, limit, sum)
		}
		if all, _ := merge(in, held, total+1, false); isNew {
			for _, s := range all {
				if rankIn(held, &s) == 0 && !seen[s.Address] {
					t.Fatalf("%s is held and gave way", s.Address)
				}
			}
		}
	})
}

// A file, names and a list together, on real files and sockets, with what a deployment goes through.
func TestDiscoveryEndToEnd(t *testing.T) {
	t.Parallel()
	server := startDNS(t)
	server.setA("vllm.test.", "10.0.2.1")
	path := t.TempDir() + "/endpoints.yaml"
	write(t, path, "10.0.1.1:8000", "vllm.test.:8000", "oops")
	o := fileOptions()
	o.Resolver = server.resolver()
	o.ResolveInterval = 20 * time.Millisecond
	pool := scheduling.NewPool()
	d, stop := runDiscovery(t, pool, o, NewList(mustEntries(t, "10.0.0.1:8000"), o), NewFile(path, o))
	select {
	case <-d.Ready():
	case <-time.After(wait):
		t.Fatal("not ready")
	}
	wantHeld(t, pool, "10.0.0.1:8000", "10.0.1.1:8000", "10.0.2.1:8000")
	before := held(pool)
	server.setA("vllm.test.", "10.0.2.1", "10.0.2.2")
	eventually(t, "a new address of the name", func() bool { return pool.Snapshot().ByAddress("10.0.2.2:8000") != nil })
	write(t, path+".new", "vllm.test.:8000,state=draining")
	must(t, os.Rename(path+".new", path))
	eventually(t, "the edited file", func() bool { return pool.Snapshot().ByAddress("10.0.1.1:8000") == nil })
	if now := held(pool); now["10.0.2.1:8000"] != before["10.0.2.1:8000"] {
		t.Error("an endpoint that stayed became another instance")
	}
	if e := pool.Snapshot().ByAddress("10.0.2.1:8000"); e.State != scheduling.EndpointDraining {
		t.Errorf("its state is %s", e.State)
	}
	if err := stop(); err != nil {
		t.Error(err)
	}
	if bad, failing := o.Stats.BadEntries.Load(), o.Stats.NamesFailing.Load(); bad != 0 || failing != 0 {
		t.Errorf("after the end %d bad entries and %d failing names are counted", bad, failing)
	}
}

func BenchmarkMerge(b *testing.B) {
	specs := make([]scheduling.EndpointSpec, 4096)
	for i := range specs {
		specs[i].Address = fmt.Sprintf("10.0.%d.%d:8000", i/256, i%256)
	}
	pool := scheduling.NewPool()
	held := pool.Update(specs)
	b.ReportAllocs()
	for b.Loop() {
		merge([][]scheduling.EndpointSpec{specs}, held, 4096, false)
	}
}
