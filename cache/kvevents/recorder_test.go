package kvevents

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// recorder is what the sinks of a feed heard, by rank.
type recorder struct {
	mu    sync.Mutex
	opens []int
	heard map[int][]string
	known map[int][]string // what was applied since the last forgetting
	state map[int]cursor.State
	busy  map[int]bool // a call is under way
	tb    testing.TB
}

func newRecorder(tb testing.TB) *recorder {
	return &recorder{
		heard: map[int][]string{}, known: map[int][]string{}, state: map[int]cursor.State{}, busy: map[int]bool{}, tb: tb,
	}
}

func (r *recorder) open(rank int) Sink {
	r.mu.Lock()
	defer r.mu.Unlock()
	if slices.Contains(r.opens, rank) {
		r.tb.Errorf("rank %d was opened twice", rank)
	}
	r.opens = append(r.opens, rank)
	return ear{r, rank}
}

type ear struct {
	r    *recorder
	rank int
}

// note writes down a call, and that no other was under way.
func (e ear) note(format string, args ...any) {
	e.r.heard[e.rank] = append(e.r.heard[e.rank], fmt.Sprintf(format, args...))
}

func (e ear) enter() func() {
	e.r.mu.Lock()
	if e.r.busy[e.rank] {
		e.r.tb.Errorf("two calls at once for rank %d", e.rank)
	}
	e.r.busy[e.rank] = true
	return func() {
		e.r.busy[e.rank] = false
		e.r.mu.Unlock()
	}
}

func (e ear) Apply(b *wire.Batch) {
	defer e.enter()()
	if b.Time == 0 && len(b.Events) == 0 && b.Bad == 1 {
		e.note("unreadable")
		return
	}
	name := fmt.Sprintf("%d.%d", int(b.Time)/100_000, int(b.Time)%100_000)
	e.r.known[e.rank] = append(e.r.known[e.rank], name)
	e.note("%s", name)
}

func (e ear) Forget(c cursor.Cause) {
	defer e.enter()()
	e.r.known[e.rank] = nil
	e.note("forget(%s)", c)
}

func (e ear) State(s cursor.State) {
	defer e.enter()()
	e.r.state[e.rank] = s
	e.note("%s", s)
}

// take returns what a rank's sink heard since the last take.
func (r *recorder) take(rank int) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	heard := strings.Join(r.heard[rank], " ")
	r.heard[rank] = nil
	return heard
}

func (r *recorder) stateOf(rank int) cursor.State {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.state[rank]
}

func (r *recorder) knownOf(rank int) []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.known[rank])
}

// rig is a feed with everything around it, in virtual time.
type rig struct {
	*recorder
	t        *testing.T
	net      *network
	pages    *pages
	stats    *Stats
	endpoint *scheduling.Endpoint
	config   Config
	options  Options
	feed     *Feed
}

// newRig returns a rig whose endpoint expects rank 0 at 5557, with a replay socket at 5657, and answers no questions.
func newRig(t *testing.T) *rig {
	r := &rig{
		recorder: newRecorder(t), t: t, net: newNetwork(t), pages: &pages{bodies: map[string]string{}}, stats: &Stats{},
		endpoint: &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.5:8000"}},
		config:   Config{Port: 5557, ReplayPort: 5657},
	}
	r.options = Options{Stats: r.stats, DialContext: r.net.dial}
	return r
}

// follow begins to follow and lets everything settle.
func (r *rig) follow() *rig {
	r.feed = Follow(r.endpoint, r.config, r.options, r.open)
	r.t.Cleanup(r.close)
	synctest.Wait()
	return r
}

func (r *rig) close() {
	if err := r.feed.Close(); err != nil {
		r.t.Error(err)
	}
	if held, bytes := r.stats.Held.Load(), r.stats.HeldBytes.Load(); held != 0 || bytes != 0 {
		r.t.Errorf("%d messages of %d bytes are held after Close", held, bytes)
	}
}

// expect compares what rank 0 heard since it was last asked.
func (r *rig) expect(want string) {
	r.t.Helper()
	r.expectOf(0, want)
}

func (r *rig) expectOf(rank int, want string) {
	r.t.Helper()
	if diff := cmp.Diff(want, r.take(rank)); diff != "" {
		r.t.Errorf("rank %d heard (-want +got):\n%s", rank, diff)
	}
}

func (r *rig) sleep(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func (r *rig) ready() bool {
	select {
	case <-r.feed.Ready():
		return true
	default:
		return false
	}
}

var clearAll = wire.Event{Kind: wire.Cleared}
