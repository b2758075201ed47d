package scheduling

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// EndpointState says whether an endpoint may be picked.
type EndpointState uint8

// The states of an endpoint. One that is not ready stays the same instance: what is in flight on it still counts.
const (
	EndpointReady    EndpointState = iota
	EndpointNotReady               // known, but not to be picked
	EndpointDraining               // finishing what it has; not to be picked
)

var endpointStateNames = [...]string{"ready", "not_ready", "draining"}

// String is the state's name as metrics and records show it.
func (s EndpointState) String() string {
	if int(s) < len(endpointStateNames) {
		return endpointStateNames[s]
	}
	return "unknown"
}

// EndpointSpec is what discovery knows of an endpoint. UID and Address together are its identity: as long as both stay,
// it is the same instance; when it goes and comes back, or returns under another UID, it is a new one that knows nothing.
type EndpointSpec struct {
	// UID tells two lives of one address apart (a pod's uid); sources without such a thing leave it empty.
	UID string
	// Address is the "ip:port" (IPv6 in brackets) that the proxy is told.
	Address string
	// Name is what people call it (a host name, a pod name); the address where discovery has no other.
	Name string
	// Labels are the endpoint's labels; the pool keeps the map and nobody may change it afterwards.
	Labels map[string]string
	// Engine names the engine's metric and event dialect: "vllm" (also when empty), "sglang", "trtllm", "triton".
	Engine string
	// MetricsURL is where its metrics page is read; empty means the engine's usual path at ADDRESS.
	MetricsURL string
	// Rank is the data-parallel rank that this address serves; 0 without data parallelism.
	Rank int
	// KVEvents says where the engine publishes its KV events.
	KVEvents KVEvents
	// State says whether it may be picked.
	State EndpointState
}

// KVEvents says where an endpoint's engine publishes the changes of its KV cache (vLLM's and SGLang's ZeroMQ events). A
// field that is zero leaves it to what the engine says of itself and to the defaults of the plugin that reads events.
type KVEvents struct {
	// Port is the TCP port of the publisher of the address's first rank, which is the endpoint's Rank; its next rank, where
	// there are several behind the address, publishes at Port + 1. Negative: the engine publishes none. A default that
	// takes the place of 0 is the port of rank 0, and the endpoint's Rank is added to it.
	Port int
	// ReplayPort is the TCP port of the first rank's replay socket, in the same way; negative: it has none.
	ReplayPort int
	// Ranks is the number of data-parallel ranks behind the address.
	Ranks int
	// Topic is the prefix of the topics to subscribe to.
	Topic string
	// Bind says that the engine connects to this process's event listener instead of listening itself.
	Bind bool
	// NoDiscovery says that the engine is not to be asked where it publishes.
	NoDiscovery bool
}

func (s *EndpointSpec) sameAs(o *EndpointSpec) bool {
	return s.Name == o.Name && s.Engine == o.Engine && s.MetricsURL == o.MetricsURL && s.Rank == o.Rank &&
		s.KVEvents == o.KVEvents && s.State == o.State && maps.Equal(s.Labels, o.Labels)
}

// Endpoint is one instance of an engine. It is immutable: a changed label or state makes a new value with the same
// Ordinal and Generation.
type Endpoint struct {
	EndpointSpec
	// Ordinal is the instance's index in every column and set, stable for its life. A later instance may get it again.
	Ordinal int
	// Generation grows with every instance that the pool has seen; (Ordinal, Generation) names one instance for ever.
	Generation uint64
}

// Snapshot is the set of endpoints at one moment. It is immutable.
type Snapshot struct {
	// Version grows with every change.
	Version uint64
	// Endpoints is indexed by ordinal; it has nil holes where an ordinal is free.
	Endpoints []*Endpoint
	// Ready holds the ordinals that may be picked.
	Ready Set

	byAddress map[string]*Endpoint
}

// ByAddress returns the endpoint with an "ip:port" address, or nil.
func (s *Snapshot) ByAddress(address string) *Endpoint { return s.byAddress[address] }

// Holds reports whether the snapshot still has this very instance.
func (s *Snapshot) Holds(ordinal int, generation uint64) bool {
	return uint(ordinal) < uint(len(s.Endpoints)) && s.Endpoints[ordinal] != nil && s.Endpoints[ordinal].Generation == generation
}

// Len is the number of endpoints, ready or not.
func (s *Snapshot) Len() int { return len(s.byAddress) }

// Pool holds the current snapshot and gives endpoints their ordinals and generations. Reading is lock-free.
type Pool struct {
	current atomic.Pointer[Snapshot]
	mu      sync.Mutex // serialises Update; guards what follows
	nextGen uint64
	watch   []func(*Snapshot)
}

// NewPool returns a pool without endpoints.
func NewPool() *Pool {
	p := &Pool{}
	p.current.Store(&Snapshot{byAddress: map[string]*Endpoint{}})
	return p
}

// Snapshot is the current set of endpoints; never nil.
func (p *Pool) Snapshot() *Snapshot { return p.current.Load() }

// Watch calls f with the current snapshot and, from then on, with every new one, in order. f must not call the pool's
// Update or Watch, and should return soon: an update waits for it. The returned function ends the watch.
func (p *Pool) Watch(f func(*Snapshot)) (stop func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.watch, func(f func(*Snapshot)) bool { return f == nil })
	if i < 0 {
		i = len(p.watch)
		p.watch = append(p.watch, nil)
	}
	p.watch[i] = f
	f(p.current.Load())
	return sync.OnceFunc(func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.watch[i] = nil
	})
}

// Update makes specs the whole set of endpoints. Of two specs with one address the later wins. An address that stays
// with the same UID keeps its instance; every other spec becomes a new instance, on the lowest free ordinal. It returns
// the snapshot in force afterwards.
func (p *Pool) Update(specs []EndpointSpec) *Snapshot {
	p.mu.Lock()
	defer p.mu.Unlock()
	old := p.current.Load()
	next, changed := p.next(old, specs)
	if !changed {
		return old
	}
	p.current.Store(next)
	for _, f := range p.watch {
		if f != nil {
			f(next)
		}
	}
	return next
}

// next builds the snapshot that follows old; changed is false where it would hold the same.
func (p *Pool) next(old *Snapshot, specs []EndpointSpec) (next *Snapshot, changed bool) {
	wanted := make(map[string]*EndpointSpec, len(specs))
	order := make([]string, 0, len(specs))
	for i := range specs {
		if wanted[specs[i].Address] == nil {
			order = append(order, specs[i].Address)
		}
		wanted[specs[i].Address] = &specs[i]
	}
	next = &Snapshot{
		Version:   old.Version + 1,
		Endpoints: make([]*Endpoint, len(old.Endpoints), max(len(old.Endpoints), len(wanted))),
		byAddress: make(map[string]*Endpoint, len(wanted)),
	}
	for i, e := range old.Endpoints {
		if e == nil {
			continue
		}
		spec := wanted[e.Address]
		switch {
		case spec == nil || spec.UID != e.UID:
			changed = true
			continue
		case !spec.sameAs(&e.EndpointSpec):
			changed = true
			e = &Endpoint{EndpointSpec: *spec, Ordinal: e.Ordinal, Generation: e.Generation}
		}
		next.Endpoints[i] = e
		next.byAddress[e.Address] = e
	}
	free := 0
	for _, address := range order {
		if next.byAddress[address] != nil {
			continue
		}
		changed = true
		for free < len(next.Endpoints) && next.Endpoints[free] != nil {
			free++
		}
		if free == len(next.Endpoints) {
			next.Endpoints = append(next.Endpoints, nil)
		}
		p.nextGen++
		e := &Endpoint{EndpointSpec: *wanted[address], Ordinal: free, Generation: p.nextGen}
		next.Endpoints[free] = e
		next.byAddress[address] = e
	}
	next.finish()
	return next, changed
}

// finish drops trailing holes and fills the ready set.
func (s *Snapshot) finish() {
	n := len(s.Endpoints)
	for n > 0 && s.Endpoints[n-1] == nil {
		n--
	}
	s.Endpoints = slices.Clip(s.Endpoints[:n])
	s.Ready = NewSet(n)
	for i, e := range s.Endpoints {
		if e != nil && e.State == EndpointReady {
			s.Ready.Add(i)
		}
	}
}
