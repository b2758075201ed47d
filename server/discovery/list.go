package discovery

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// List is a source that publishes the endpoints of a list of entries, and looks their names up again and again. The list
// can be replaced while it runs.
type List struct {
	o    *Options
	name string

	mu      sync.Mutex // guards entries
	entries []Entry

	replaced chan struct{} // holds one when entries have been replaced
	refresh  chan struct{} // holds one when names are to be looked up at once
}

// NewList returns a source for entries.
func NewList(entries []Entry, o Options) *List {
	return newList(entries, o.withDefaults(), "list")
}

func newList(entries []Entry, o *Options, name string) *List {
	return &List{
		o: o, name: name, entries: entries,
		replaced: make(chan struct{}, 1),
		refresh:  make(chan struct{}, 1),
	}
}

// String names the source in logs.
func (l *List) String() string { return l.name }

// Replace puts other entries in the list's place. Endpoints whose UID and address stay remain the same instances. It does
// not wait.
func (l *List) Replace(entries []Entry) {
	l.set(entries)
	signal(l.replaced)
}

func (l *List) set(entries []Entry) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.entries = entries
}

// Refresh looks all names up at once instead of at the end of the interval. It does not wait.
func (l *List) Refresh() { signal(l.refresh) }

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

func (l *List) current() []Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.entries
}

// Run implements Source. It publishes after the first round of look-ups, whether or not all of them succeeded, and after
// every change.
func (l *List) Run(ctx context.Context, publish func([]scheduling.EndpointSpec)) error {
	known := newAnswers(l.o)
	defer known.close()
	timer := time.NewTimer(time.Hour)
	timer.Stop()
	defer timer.Stop()
	armed := false // whether the timer runs
	changed, onlyNew := true, false
	for {
		entries := l.current()
		changed = known.refresh(ctx, entries, onlyNew) || changed
		if ctx.Err() != nil {
			return nil
		}
		if changed {
			publish(l.expand(entries, known))
		}
		if !armed && len(known.byQ) > 0 {
			timer.Reset(jitter(l.o.ResolveInterval))
			armed = true
		}
		select {
		case <-ctx.Done():
			return nil
		case <-l.replaced:
			// What is known of the names is fresh enough; only those added are waited for.
			changed, onlyNew = true, true
		case <-l.refresh:
			changed, onlyNew = false, false
		case <-timer.C:
			changed, onlyNew, armed = false, false, false
		}
	}
}

// expand makes the endpoints of entries. It stops well above the limit of the merged set, where more would only cost
// memory.
func (l *List) expand(entries []Entry, known *answers) []scheduling.EndpointSpec {
	specs := make([]scheduling.EndpointSpec, 0, len(entries))
	for i := range entries {
		specs = entries[i].appendSpecs(specs, known.targets(&entries[i]))
		if len(specs) > 16*l.o.MaxEndpoints {
			l.o.Logger.Error("endpoints beyond many times the limit are not even looked at",
				"source", l.name, "limit", l.o.MaxEndpoints, "entry", i)
			break
		}
	}
	return specs
}

// jitter spreads an interval by a tenth to either side, so that many replicas do not ask at the same moment.
func jitter(d time.Duration) time.Duration {
	return time.Duration(float64(d) * (0.9 + 0.2*rand.Float64()))
}
