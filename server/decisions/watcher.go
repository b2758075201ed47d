package decisions

// watched is how many decisions wait for a watcher at most; it misses what is beyond.
const watched = 256

// Watcher is told of decisions as they are made.
type Watcher struct {
	ring   *Ring
	ids    chan uint64
	missed uint64 // guarded by the ring's mu
}

// Watch begins to tell of decisions, until Close.
func (r *Ring) Watch() *Watcher {
	w := &Watcher{ring: r, ids: make(chan uint64, watched)}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watchers[w] = struct{}{}
	r.watching.Add(1)
	return w
}

// Close ends the watching.
func (w *Watcher) Close() {
	w.ring.mu.Lock()
	defer w.ring.mu.Unlock()
	if _, ok := w.ring.watchers[w]; ok {
		delete(w.ring.watchers, w)
		w.ring.watching.Add(-1)
	}
}

// IDs are the decisions' ids, to Get them by. A decision may be gone by then.
func (w *Watcher) IDs() <-chan uint64 { return w.ids }

// Missed is how many decisions the watcher was not told of since the last call, because too many waited already.
func (w *Watcher) Missed() uint64 {
	w.ring.mu.Lock()
	defer w.ring.mu.Unlock()
	n := w.missed
	w.missed = 0
	return n
}

// tell tells the watchers of a decision. It waits for nobody.
func (r *Ring) tell(id uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for w := range r.watchers {
		select {
		case w.ids <- id:
		default:
			w.missed++
		}
	}
}
