package kube

import (
	"bytes"
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/discovery"
	"github.com/sluice-epp/sluice/server/discovery/kube"
	"github.com/sluice-epp/sluice/test/kube/cluster"
	"github.com/sluice-epp/sluice/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// watcher is a source that follows the API server into a pool of its own.
type watcher struct {
	t     *testing.T
	pool  *scheduling.Pool
	stats *discovery.Stats
	ready <-chan struct{}
	stop  func()

	mu  sync.Mutex // guards log
	log bytes.Buffer
}

// follow starts a source as a user of the cluster and stops it with the test. It does not wait.
func follow(t *testing.T, c *cluster.Cluster, user string, o kube.Options) *watcher {
	t.Helper()
	w := &watcher{t: t, pool: scheduling.NewPool(), stats: new(discovery.Stats)}
	if o.Kubeconfig == "" {
		o.Kubeconfig = c.Kubeconfig(t, user, "default", "")
	}
	o.Stats, o.Logger = w.stats, slog.New(slog.NewTextHandler(w, nil))
	source, err := kube.New(o)
	if err != nil {
		t.Fatal(err)
	}
	d := discovery.New(w.pool, discovery.Options{Stats: w.stats, Logger: o.Logger, ReadyTimeout: time.Hour}, source)
	w.ready = d.Ready()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := d.Run(ctx); err != nil {
			t.Errorf("discovery: %v", err)
		}
	}()
	w.stop = sync.OnceFunc(func() {
		cancel()
		select {
		case <-done:
		case <-time.After(5 * time.Second):
			t.Error("the source has not ended 5 s after it should have")
			<-done
		}
	})
	t.Cleanup(func() {
		w.stop()
		if t.Failed() {
			t.Logf("the source wrote:\n%s", w.written())
		}
	})
	return w
}

// Write takes the log in.
func (w *watcher) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.Write(b)
}

func (w *watcher) written() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.log.String()
}

// says waits until the log holds a text.
func (w *watcher) says(text string) {
	w.t.Helper()
	lab.Wait(w.t, "the log to say "+text, func() bool { return strings.Contains(w.written(), text) })
}

// endpoints are the pool's as "name address state".
func (w *watcher) endpoints() []string {
	var all []string
	for _, e := range w.pool.Snapshot().Endpoints {
		if e != nil {
			all = append(all, e.Name+" "+e.Address+" "+e.State.String())
		}
	}
	slices.Sort(all)
	return all
}

// wants waits until the pool holds these endpoints and no others.
func (w *watcher) wants(endpoints ...string) {
	w.t.Helper()
	slices.Sort(endpoints)
	deadline := time.Now().Add(lab.Timeout)
	for got := w.endpoints(); !slices.Equal(got, endpoints); got = w.endpoints() {
		if time.Now().After(deadline) {
			w.t.Fatalf("endpoints %q, want %q", got, endpoints)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// generations are those of the pool's endpoints by address: another generation is another instance.
func (w *watcher) generations() map[string]uint64 {
	all := map[string]uint64{}
	for _, e := range w.pool.Snapshot().Endpoints {
		if e != nil {
			all[e.Address] = e.Generation
		}
	}
	return all
}

// keeps checks that the endpoints that were there before are the same instances.
func (w *watcher) keeps(before map[string]uint64) {
	w.t.Helper()
	if now := w.generations(); !maps.Equal(now, before) {
		w.t.Errorf("the instances are %v, and were %v", now, before)
	}
}

func (w *watcher) isReady() bool {
	select {
	case <-w.ready:
		return true
	default:
		return false
	}
}
