package kube

import (
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/server/discovery/kube"
	"github.com/sluice-epp/sluice/test/kube/cluster"
	"github.com/sluice-epp/sluice/test/lab"
)

// settled waits until the watches are older than a second: the client library distrusts one that ends sooner without an
// event, and reads the list again.
func (w *watcher) settled() {
	w.t.Helper()
	since := time.Now()
	lab.Wait(w.t, "the watches to be old enough", func() bool { return time.Since(since) > 1100*time.Millisecond })
}

// A watch that breaks off goes on where it was: nothing is missed, and no list is read again.
func testBrokenWatches(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "broken")
	c.Pool(t, ns, "pool", "model", 8000)
	p := startProxy(t, c.Address())
	w := follow(t, c, "", kube.Options{Pool: ns + "/pool", Kubeconfig: c.Kubeconfig(t, cluster.Admin, ns, p.Addr)})
	<-w.ready
	var want []string
	for i := range 4 {
		w.settled()
		name, ip := fmt.Sprintf("m-%d", i), fmt.Sprintf("10.0.0.%d", i+1)
		if i%2 == 0 {
			p.Break()
		} else {
			p.Cut()
		}
		c.Pod(t, cluster.Pod{Namespace: ns, Name: name, IP: ip})
		if i%2 == 1 {
			lab.Wait(t, "both queries to be refused", func() bool { return w.stats.KubeFailing.Load() == 2 })
			w.says("the last known endpoints stay")
			w.wants(want...)
			p.Mend(t)
		}
		want = append(want, name+" "+ip+":8000 ready")
		w.wants(want...)
		watches := uint64(2 * (i + 1))
		lab.Wait(t, "both watches to go on", func() bool { return w.stats.KubeFailing.Load() == 0 && w.stats.KubeWatches.Load() >= watches })
	}
	if n := w.stats.KubeLists.Load(); n != 2 {
		t.Errorf("%d lists were read, want the first of the pool and of the pods", n)
	}
	if n := w.stats.KubeErrors.Load(); n < 4 || n > 20 {
		t.Errorf("%d questions were not answered: want a few in each of two times", n)
	}
}

// A connection that is dead without an end is noticed, within a minute, and another is made.
func testFrozenWatches(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "frozen")
	c.Pool(t, ns, "pool", "model", 8000)
	p := startProxy(t, c.Address())
	w := follow(t, c, "", kube.Options{Pool: ns + "/pool", Kubeconfig: c.Kubeconfig(t, cluster.Admin, ns, p.Addr)})
	<-w.ready
	w.settled()
	p.Freeze()
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	begun := time.Now()
	for len(w.endpoints()) == 0 && time.Since(begun) < 2*time.Minute {
		time.Sleep(20 * time.Millisecond)
	}
	w.wants("m-1 10.0.0.1:8000 ready")
	t.Logf("a dead connection was given up after %v", time.Since(begun).Round(time.Second))
}

// Where the API server no longer knows the changes since, the whole list is read again, once.
func testExpiredWatches(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "expired")
	c.Pool(t, ns, "pool", "model", 8000)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2"})
	p := startProxy(t, c.Address())
	w := follow(t, c, "", kube.Options{Pool: ns + "/pool", Kubeconfig: c.Kubeconfig(t, cluster.Admin, ns, p.Addr)})
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	before := w.generations()
	w.settled()
	p.Cut()
	lab.Wait(t, "both queries to be refused", func() bool { return w.stats.KubeFailing.Load() == 2 })
	// What goes and what comes while nobody listens is told by no watch afterwards.
	c.Delete(t, "Pod", ns, "m-1", true)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-3", IP: "10.0.0.3"})
	c.Pool(t, ns, "pool", "model", 8000, 8001)
	c.KillAPIServer()
	c.Compact(t)
	c.StartAPIServer(t)
	p.Mend(t)
	w.wants("m-2-rank-0 10.0.0.2:8000 ready", "m-2-rank-1 10.0.0.2:8001 ready", "m-3-rank-0 10.0.0.3:8000 ready", "m-3-rank-1 10.0.0.3:8001 ready")
	if g := w.generations(); g["10.0.0.2:8000"] != before["10.0.0.2:8000"] {
		t.Errorf("the instances are %v, and were %v", g, before)
	}
	lab.Wait(t, "both queries to be answered", func() bool { return w.stats.KubeFailing.Load() == 0 })
	if n := w.stats.KubeLists.Load(); n < 3 || n > 6 {
		t.Errorf("%d lists were read, want two at the start and again about one each", n)
	}
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2", Unready: true})
	w.wants("m-2-rank-0 10.0.0.2:8000 not_ready", "m-2-rank-1 10.0.0.2:8001 not_ready", "m-3-rank-0 10.0.0.3:8000 ready", "m-3-rank-1 10.0.0.3:8001 ready")
}

// While the API server is away the endpoints stay, for those that know them; it is not asked more often than it can bear
// when it is back, and a process that starts meanwhile waits for it. A source ends at once all the same.
func testAPIServerAway(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "away")
	c.Pool(t, ns, "pool", "model", 8000)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	options := kube.Options{Pool: ns + "/pool"}
	knows := follow(t, c, cluster.Admin, options)
	knows.wants("m-1 10.0.0.1:8000 ready")
	before := knows.generations()
	knows.settled()
	c.KillAPIServer()
	starts := follow(t, c, cluster.Admin, options)
	ends := follow(t, c, cluster.Admin, options)
	lab.Wait(t, "the API server to be missed", func() bool {
		return knows.stats.KubeFailing.Load() == 2 && starts.stats.KubeErrors.Load() > 4 && ends.stats.KubeErrors.Load() > 4
	})
	ends.stop()
	if starts.isReady() {
		t.Error("a process that knows nothing is ready")
	}
	knows.keeps(before)
	lists := knows.stats.KubeLists.Load()
	c.StartAPIServer(t)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2"})
	for _, w := range []*watcher{knows, starts} {
		w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
		w.says("answers again")
	}
	if g := knows.generations(); g["10.0.0.1:8000"] != before["10.0.0.1:8000"] {
		t.Errorf("the instances are %v, and were %v", g, before)
	}
	t.Logf("read %d lists again, %d questions were not answered", knows.stats.KubeLists.Load()-lists, knows.stats.KubeErrors.Load())
	if n := knows.stats.KubeLists.Load() - lists; n > 6 {
		t.Errorf("%d lists were read again", n)
	}
}

// The pods of a large pool, as kubelets and controllers write them.
const manyPods = 1000

// heapOf is what is in use after a collection.
func heapOf() uint64 {
	var m runtime.MemStats
	for range 3 {
		runtime.GC()
	}
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A thousand pods are followed in a few megabytes, and a change of one is not a change of all.
func testManyPods(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "many")
	c.Pool(t, ns, "pool", "model", 8000)
	pod := func(i int) cluster.Pod {
		return cluster.Pod{Namespace: ns, Name: fmt.Sprintf("vllm-qwen3-32b-7d9c8b6f5-%04d", i), IP: fmt.Sprintf("10.1.%d.%d", i/250, 1+i%250), Filling: true}
	}
	begun := time.Now()
	var group sync.WaitGroup
	for part := range 8 {
		group.Go(func() {
			for i := part; i < manyPods; i += 8 {
				c.Pod(t, pod(i))
			}
		})
	}
	group.Wait()
	made := time.Since(begun)
	before := heapOf()
	begun = time.Now()
	w := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool"})
	<-w.ready
	took := time.Since(begun)
	if n := w.pool.Snapshot().Ready.Len(); n != manyPods {
		t.Fatalf("%d endpoints are ready, want %d", n, manyPods)
	}
	w.settled()
	heap := int64(heapOf() - before)
	t.Logf("%d pods were made in %v, and known after %v; they take %d KiB of the heap, %d bytes each",
		manyPods, made.Round(time.Millisecond), took.Round(time.Millisecond), heap>>10, heap/manyPods)
	if heap > 8<<20 {
		t.Errorf("%d pods take %d bytes", manyPods, heap)
	}
	// One becomes unready and ready again, in a pool that is otherwise quiet.
	var delays []time.Duration
	for flip := range 40 {
		p, ready := pod(flip/2), flip%2 == 1
		begun := time.Now()
		c.Condition(t, p.Namespace, p.Name, ready)
		lab.Wait(t, "one to change", func() bool { return w.pool.Snapshot().Ready.Len() == manyPods-1 != ready })
		delays = append(delays, time.Since(begun))
	}
	slices.Sort(delays)
	t.Logf("a change was known after %v at the median, %v at the longest, the write included", delays[len(delays)/2], delays[len(delays)-1])
	// All of them become unready and ready again, as where a switch fails: sets are published by the burst.
	updates, lists := w.stats.Updates.Load(), w.stats.KubeLists.Load()
	begun = time.Now()
	for _, unready := range []bool{true, false} {
		var group sync.WaitGroup
		for part := range 8 {
			group.Go(func() {
				for i := part; i < manyPods; i += 8 {
					p := pod(i)
					c.Condition(t, p.Namespace, p.Name, !unready)
				}
			})
		}
		group.Wait()
		lab.Wait(t, "all to be of one state", func() bool {
			ready := w.pool.Snapshot().Ready.Len()
			return unready && ready == 0 || !unready && ready == manyPods
		})
	}
	t.Logf("%d changes in %v came in %d sets", 2*manyPods, time.Since(begun).Round(time.Millisecond), w.stats.Updates.Load()-updates)
	if n := w.stats.KubeLists.Load(); n != lists {
		t.Errorf("%d lists were read again", n-lists)
	}
	if s := w.pool.Snapshot(); s.Len() != manyPods || w.stats.Invalid.Load() != 0 {
		t.Errorf("%d endpoints, %d invalid", s.Len(), w.stats.Invalid.Load())
	}
	w.settled()
	t.Logf("afterwards they take %d KiB", int64(heapOf()-before)>>10)
}
