package latency

import (
	"maps"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// MaxClasses is how many classes of endpoints are told apart at a time; further ones are learnt together.
const MaxClasses = 32

// knowledge is what has been learnt. It outlives the plugin that made it: the one of the next configuration takes it over.
type knowledge struct {
	perMs      float64 // prefilled tokens per ms, where nothing is known
	classLabel string

	// mu guards the endpoints' values and the classes. A decision holds it while it predicts, learning only to take a request out.
	mu        sync.Mutex
	endpoints scheduling.Instances[endpoint]
	classes   map[string]*class

	growing nursery

	samples, tpotSamples, forests atomic.Uint64
	skipped                       [skips]atomic.Uint64
}

// endpoint is what is known of one endpoint instance.
type endpoint struct {
	work  work
	slow  slowness
	class *class
	// fresh is how many more answers say nothing: the first ones of a process that has just started.
	fresh int
	gone  bool
	error accuracy
}

// warming is how many answers of a process that has just started say nothing: engines compile and fill caches.
const warming = 3

// accuracy is how far predictions were off.
type accuracy struct {
	n     int
	share float64 // mean of |seen − predicted| over seen
}

func (a *accuracy) add(seen, predicted float64) {
	a.n++
	off := min(furthest, max(seen-predicted, predicted-seen)/seen)
	a.share += (off - a.share) * max(1./64, 1/float64(a.n))
}

// of is what is known of an endpoint. The caller holds mu.
func (k *knowledge) of(e *scheduling.Endpoint) *endpoint {
	known := &k.endpoints.Take(e).Value
	if known.class == nil {
		known.fresh = warming
		k.classify(known, e)
	}
	return known
}

// classify gives an endpoint its class, which is another one when its label has changed.
func (k *knowledge) classify(known *endpoint, e *scheduling.Endpoint) {
	name := k.nameOf(e)
	if known.class != nil && known.class.name == name {
		return
	}
	c := k.classes[name]
	if c == nil && len(k.classes) >= MaxClasses {
		name = "" // learnt together with others, until there is room
		c = k.classes[name]
	}
	if c == nil {
		c = newClass(name, k.perMs)
		k.classes[name] = c
	}
	known.class = c
}

// nameOf is the name of an endpoint's class.
func (k *knowledge) nameOf(e *scheduling.Endpoint) string {
	return e.Engine + "\x00" + e.Labels[k.classLabel]
}

// follow keeps up with the endpoints.
func (k *knowledge) follow(s *scheduling.Snapshot) {
	k.mu.Lock()
	defer k.mu.Unlock()
	before := k.endpoints.All()
	k.endpoints.Follow(s)
	now := k.endpoints.All()
	for i, in := range before {
		if in != nil && scheduling.FindInstance(now, i, in.Endpoint.Generation) == nil {
			in.Value.gone = true
		}
	}
	used := map[string]bool{"": true}
	for _, e := range s.Endpoints {
		if e != nil {
			used[k.nameOf(e)] = true
		}
	}
	if len(k.classes) >= MaxClasses { // room where endpoints of other classes came and went
		maps.DeleteFunc(k.classes, func(name string, _ *class) bool { return !used[name] })
	}
	for i, in := range now {
		if in != nil && i < len(s.Endpoints) && s.Endpoints[i] != nil {
			if in.Value.class == nil {
				in.Value.fresh = warming
			}
			k.classify(&in.Value, s.Endpoints[i])
		}
	}
}

// restarted notes that an instance's process was started anew: what it had before it is gone.
func (k *knowledge) restarted(ordinal int, generation uint64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if in := k.endpoints.Find(ordinal, generation); in != nil {
		in.Value.fresh = warming
	}
}

// spawn grows a forest beside the caller.
func (k *knowledge) spawn(grow func()) {
	k.forests.Add(1)
	k.growing.spawn(grow)
}

// nursery knows which functions run. Unlike a sync.WaitGroup it can be waited for while others begin: the plugin of the next
// configuration goes on where this one closes.
type nursery struct {
	mu   sync.Mutex
	n    int
	none *sync.Cond
}

func (g *nursery) spawn(f func()) {
	g.add(1)
	go func() {
		defer g.add(-1)
		f()
	}()
}

func (g *nursery) add(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.n += n; g.n == 0 && g.none != nil {
		g.none.Broadcast()
	}
}

// wait returns once none runs.
func (g *nursery) wait() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.none == nil {
		g.none = sync.NewCond(&g.mu)
	}
	for g.n > 0 {
		g.none.Wait()
	}
}

// end takes a request out of its endpoint's work, and reports whether its times teach anything. took is its time to the first
// token, where that was seen.
func (k *knowledge) end(s *flight, f *scheduling.Flight, now, took time.Duration, seen bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := s.on
	e.work.end(now, f.ID, s.input)
	if tokens := float64(f.Outcome.Usage.CompletionTokens) / s.choices; tokens > 0 {
		e.work.answered(tokens)
	}
	skip := -1
	switch o := &f.Outcome; {
	case o.Reason != scheduling.EndComplete || o.Status < 200 || o.Status > 299:
		skip = skipFailed
	case s.moved:
		skip = skipMoved
	case !seen || took <= 0:
		skip = skipUnstream
	case e.gone:
		skip = skipGone
	case e.fresh > 0:
		e.fresh--
		skip = skipFresh
	}
	if skip >= 0 {
		k.skipped[skip].Add(1)
		return false
	}
	k.samples.Add(1)
	e.error.add(ms(took), s.ttftMs)
	e.slow.add(now, ms(took)*s.slow/s.ttftMs)
	return true
}
