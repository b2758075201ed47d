package latency

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/load/classes"
	"github.com/sluice-epp/sluice/scheduling"
)

// knowledge is what has been learnt. It outlives the plugin that made it: the one of the next configuration takes it over.
type knowledge struct {
	// mu guards what follows, and the endpoints' values. A decision holds it while it predicts, learning only to take a request out.
	mu        sync.Mutex
	classes   *classes.Set[class]
	endpoints scheduling.Instances[endpoint]
	stranger  endpoint      // see at
	cycle     uint64        // decisions that were asked for
	clock     time.Duration // of the latest one

	growing nursery

	samples, tpotSamples, forests, failed atomic.Uint64
	skipped                               [skips]atomic.Uint64
	unread                                atomic.Uint64 // requests with an objective that could not be read
}

// endpoint is what is known of one endpoint instance.
type endpoint struct {
	work  work
	slow  slowness
	class *class
	// fresh is how many more answers say nothing: the first ones of a process that has just started.
	fresh int
	warm  time.Duration // when the last of those had its first token: what was picked before waited for the same
	gone  bool
	error accuracy
}

// warming is how many answers of a process that has just started say nothing: engines compile and fill caches.
const warming = 3

// of is what is known of an endpoint. The caller holds mu.
func (k *knowledge) of(e *scheduling.Endpoint) *endpoint {
	known := &k.endpoints.Take(e).Value
	if known.class == nil {
		k.classify(known, e)
	}
	return known
}

// classify gives an endpoint its class. One that had none has just been started; of one that had another it is not known how it
// stands in this one.
func (k *knowledge) classify(known *endpoint, e *scheduling.Endpoint) {
	c := k.classes.Of(e)
	if c == known.class {
		return
	}
	if known.class == nil {
		known.fresh = warming
	}
	known.class, known.slow, known.error = c, slowness{}, accuracy{}
}

// forget begins to learn anew, in other classes. What the endpoints have before them stays.
func (k *knowledge) forget(all *classes.Set[class]) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.classes = all
	for _, in := range k.endpoints.All() {
		if in != nil {
			k.classify(&in.Value, in.Endpoint)
		}
	}
}

// kinds are the classes in force.
func (k *knowledge) kinds() *classes.Set[class] {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.classes
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
	k.classes.Follow(s)
	for i, in := range now {
		if in != nil && i < len(s.Endpoints) && s.Endpoints[i] != nil {
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

// spawn grows a forest beside the caller. A fault in that must not end the process.
func (k *knowledge) spawn(grow func()) {
	k.forests.Add(1)
	k.growing.spawn(func() {
		defer func() {
			if recover() != nil {
				k.failed.Add(1)
			}
		}()
		grow()
	})
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

// generated reports whether an answer whose first token was not seen is one that an engine generates, token by token. A list of models or
// an embedding comes at once, and says nothing of how long an answer takes.
func generated(f *scheduling.Flight) bool {
	switch f.Operation {
	case scheduling.OperationOther, scheduling.OperationEmbeddings:
		return f.Outcome.Usage.CompletionTokens > 0
	}
	return true
}

// mostPerMs is how many tokens of one answer an engine makes in a ms at most.
const mostPerMs = 10

// end takes a request out of its endpoint's work, and reports whether its times teach anything. took is its time to the first
// token, where that was seen.
func (k *knowledge) end(s *flight, f *scheduling.Flight, now, took time.Duration, seen bool) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	e := s.on
	e.work.end(now, f.ID, s.input)
	// A count that no engine reaches in the time would make the endpoint look busy for hundreds of answers.
	possible := mostPerMs * max(0, ms(now-f.PickedAt))
	if tokens := float64(f.Outcome.Usage.CompletionTokens) / s.choices; tokens > 0 && tokens <= possible {
		limit := s.limit
		if f.Outcome.Reason != scheduling.EndComplete {
			limit = tokens // it was cut off there
		}
		e.work.answered(tokens)
		e.work.length.add(tokens, limit)
	}
	skip := -1
	switch o := &f.Outcome; {
	case o.Reason != scheduling.EndComplete || o.Status < 200 || o.Status > 299:
		skip = skipFailed
	case s.moved:
		skip = skipMoved
	case !s.started && !generated(f):
		skip = skipUngenerated
	case !seen || took <= 0:
		skip = skipUnstream
	case e.gone:
		skip = skipGone
	case e.fresh > 0:
		e.fresh--
		e.warm = max(e.warm, f.PickedAt+took)
		skip = skipFresh
	case f.PickedAt < e.warm:
		skip = skipFresh
	}
	if skip >= 0 {
		k.skipped[skip].Add(1)
		return false
	}
	k.samples.Add(1)
	if e.class == s.class { // else it was relabelled since
		e.error.add(ms(took), s.ttftMs)
		e.slow.add(now, ms(took)*s.slow/s.ttftMs)
	}
	return true
}
