package render

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// routes are the paths of the render routes, by operation; empty where there is none.
var routes = [...]string{
	scheduling.OperationChat:        "/v1/chat/completions/render",
	scheduling.OperationCompletions: "/v1/completions/render",
	scheduling.OperationResponses:   "/v1/responses/render",
	scheduling.OperationMessages:    "/v1/messages/render",
}

const tokenizePath = "/tokenize"

// Renders reports whether there is a render route for an operation.
func Renders(op scheduling.Operation) bool { return int(op) < len(routes) && routes[op] != "" }

// missingFor is for how long a route that a server does not have is not asked for again.
const missingFor = 5 * time.Minute

// Server is one server that renders, and what is known of it.
type Server struct {
	url      string
	breaker  breaker
	calls    atomic.Int32
	missing  [len(routes)]atomic.Int64 // until when a route counts as missing, Unix time in ns; by operation
	tokenize atomic.Int64              // the same of the tokenize route
	told     atomic.Bool               // that a route is missing was logged
	stranger atomic.Int64              // until when an unknown model is not logged again, Unix time in ns
}

func newServer(url string) *Server { return &Server{url: url} }

func has(missing *atomic.Int64, now time.Time) bool { return now.UnixNano() >= missing.Load() }

func lacks(missing *atomic.Int64, now time.Time) { missing.Store(now.Add(missingFor).UnixNano()) }

// Fleet is the servers that can be asked. It is safe for concurrent use.
type Fleet struct {
	mu      sync.Mutex // serialises Set
	servers atomic.Pointer[[]*Server]
}

// NewFleet returns a fleet of servers at base URLs, which have no slash at their end.
func NewFleet(urls ...string) *Fleet {
	f := &Fleet{}
	f.Set(urls)
	return f
}

// Set makes urls the fleet's servers. What is known of those that stay is kept; one that goes is forgotten.
func (f *Fleet) Set(urls []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	known := map[string]*Server{}
	if old := f.servers.Load(); old != nil {
		for _, s := range *old {
			known[s.url] = s
		}
	}
	next := map[string]*Server{}
	for _, url := range urls {
		if next[url] = known[url]; next[url] == nil {
			next[url] = newServer(url)
		}
	}
	servers := make([]*Server, 0, len(next))
	for _, url := range slices.Sorted(maps.Keys(next)) {
		servers = append(servers, next[url])
	}
	f.servers.Store(&servers)
}

// Pick is the server to ask: of two drawn at random, among those whose breaker lets calls through, the one with fewer
// calls under way. not, where it is not nil, is left out. The error is a *Failure: there is none, or all are open.
func (f *Fleet) Pick(random *scheduling.Rand, not *Server, now time.Time) (*Server, error) {
	servers := *f.servers.Load()
	if len(servers) == 0 || len(servers) == 1 && servers[0] == not {
		return nil, &Failure{Reason: ReasonNoServer}
	}
	first := usable(servers, random.IntN(len(servers)), not, now)
	if first == nil {
		return nil, &Failure{Reason: ReasonBreaker}
	}
	if second := usable(servers, random.IntN(len(servers)), not, now); second != nil && second.calls.Load() < first.calls.Load() {
		return second, nil
	}
	return first, nil
}

// usable is the first server from an index on, round the list, that lets calls through, or nil.
func usable(servers []*Server, from int, not *Server, now time.Time) *Server {
	for i := range servers {
		if s := servers[(from+i)%len(servers)]; s != not && s.breaker.state(now) != Open {
			return s
		}
	}
	return nil
}

// Census counts the servers by the state of their breaker, and the calls under way on all of them.
func (f *Fleet) Census(now time.Time) (states [3]int, calls int) {
	for _, s := range *f.servers.Load() {
		states[s.breaker.state(now)]++
		calls += int(s.calls.Load())
	}
	return states, calls
}
