package kube

import (
	"context"
	"errors"
	"maps"
	"net/url"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
)

// object is a pointer to one of the types that are read.
type object[O any] interface {
	*O
	metav1.Object
	runtime.Object
}

// kind is what a query finds: an object of the type, and what makes an empty list of it.
type kind struct {
	one  runtime.Object
	list func() runtime.Object
}

var (
	pods           = kind{&Pod{}, func() runtime.Object { return &list[Pod]{} }}
	endpointSlices = kind{&EndpointSlice{}, func() runtime.Object { return &list[EndpointSlice]{} }}
	inferencePools = kind{&InferencePool{}, func() runtime.Object { return &list[InferencePool]{} }}
)

// table holds what is kept of the objects of a query, by name: a query is of one namespace. It signals when that changes,
// which most updates of an object do not do.
type table[V any] struct {
	reduce func(any) (name string, v V)
	equal  func(a, b V) bool
	signal func()

	mu    sync.Mutex // guards what follows
	known bool       // a whole list has been seen
	rows  map[string]V
}

func newTable[O, V any, P object[O]](reduce func(P) V, equal func(a, b V) bool, signal func()) *table[V] {
	return &table[V]{
		reduce: func(o any) (string, V) { p := o.(P); return p.GetName(), reduce(p) },
		equal:  equal, signal: signal, rows: map[string]V{},
	}
}

// all returns what is held; ok is false until a whole list has been seen.
func (t *table[V]) all() (rows []V, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.rows)), t.known
}

// Add implements cache.ReflectorStore.
func (t *table[V]) Add(o any) error {
	name, v := t.reduce(o)
	t.mu.Lock()
	old, held := t.rows[name]
	same := held && t.equal(old, v)
	if !same {
		t.rows[name] = v
	}
	t.mu.Unlock()
	if !same {
		t.signal()
	}
	return nil
}

// Update implements cache.ReflectorStore.
func (t *table[V]) Update(o any) error { return t.Add(o) }

// Delete implements cache.ReflectorStore.
func (t *table[V]) Delete(o any) error {
	name, _ := t.reduce(o)
	t.mu.Lock()
	_, held := t.rows[name]
	delete(t.rows, name)
	t.mu.Unlock()
	if held {
		t.signal()
	}
	return nil
}

// Replace implements cache.ReflectorStore.
func (t *table[V]) Replace(objects []any, _ string) error {
	rows := make(map[string]V, len(objects))
	for _, o := range objects {
		name, v := t.reduce(o)
		rows[name] = v
	}
	t.mu.Lock()
	same := t.known && maps.EqualFunc(t.rows, rows, t.equal)
	t.known = true
	if !same {
		t.rows = rows
	}
	t.mu.Unlock()
	if !same {
		t.signal()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (t *table[V]) Resync() error { return nil }

// follow keeps store at what q finds, until ctx ends.
func (s *Source) follow(ctx context.Context, group *sync.WaitGroup, q query, what kind, store cache.ReflectorStore) error {
	client, err := s.cluster.client(q.version)
	if err != nil {
		return err
	}
	health := &health{source: s, query: q}
	lw := listWatch(client, q, what.list, func(verb string, err error) { health.told(ctx, verb, err) })
	r := cache.NewReflectorWithOptions(lw, what.one, store, cache.ReflectorOptions{
		Name:  q.String(),
		Clock: until{ctx: ctx},
		// An API server that is back is asked again within this time, and not by all replicas at one moment.
		Backoff: &wait.Backoff{Duration: s.o.retry, Cap: 8 * time.Second, Factor: 2, Jitter: 0.5, Steps: 30},
	})
	group.Go(func() {
		defer health.close()
		r.RunWithContext(klog.NewContext(ctx, logr.FromSlogHandler(quiet{s.o.Logger.Handler()})))
	})
	return nil
}

// until is a clock on which nobody waits beyond the end of a context: between attempts the reflector looks at nothing else.
type until struct {
	clock.RealClock
	ctx context.Context
}

// After implements clock.Clock.
func (u until) After(d time.Duration) <-chan time.Time {
	c := make(chan time.Time, 1)
	ctx, stop := context.WithTimeout(u.ctx, d)
	context.AfterFunc(ctx, func() {
		stop()
		c <- time.Now()
	})
	return c
}

// health follows whether the API server answers a query, and says when that changes.
type health struct {
	source *Source
	query  query

	mu      sync.Mutex // guards what follows
	failing string     // what is wrong; empty if nothing is
	since   time.Time
}

func (h *health) told(ctx context.Context, verb string, err error) {
	// An API server that streams no lists says so, and is asked for the list in one piece.
	if ctx.Err() != nil || errors.Is(err, context.Canceled) || apierrors.IsInvalid(err) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	stats, log := h.source.o.Stats, h.source.o.Logger
	if err == nil {
		if verb == "list" {
			stats.KubeLists.Add(1)
		} else {
			stats.KubeWatches.Add(1)
		}
		if h.failing != "" {
			log.Info("Kubernetes API server answers again", "query", h.query.String(), "after", time.Since(h.since).Round(time.Millisecond))
			h.settle("")
		}
		return
	}
	stats.KubeErrors.Add(1)
	if what := explain(err, h.query); what != h.failing {
		log.Warn("Kubernetes API server does not answer as it should, the last known endpoints stay",
			"query", h.query.String(), "verb", verb, "error", what)
		h.settle(what)
	}
}

func (h *health) settle(failing string) {
	if (failing != "") != (h.failing != "") {
		delta := int64(1)
		if failing == "" {
			delta = -1
		}
		h.source.o.Stats.KubeFailing.Add(delta)
		h.since = time.Now()
	}
	h.failing = failing
}

// close takes the query out of what is counted as failing.
func (h *health) close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.settle("")
}

// explain says what is wrong in the same words at every attempt, and what is most likely behind it.
func explain(err error, q query) string {
	if address := new(url.Error); errors.As(err, &address) { // which is another at every attempt
		err = address.Err
	}
	switch {
	case err.Error() == "": // a status without a message
		return "the answer is " + string(apierrors.ReasonForError(err))
	case apierrors.IsNotFound(err) && q.version == inferenceVersion:
		return err.Error() + ": the cluster does not serve inferencepools of " + q.version.String() +
			" (install the custom resource, or follow pods by selector)"
	case apierrors.IsForbidden(err):
		return err.Error() + ": the service account needs a Role that allows list and watch"
	}
	return err.Error()
}
