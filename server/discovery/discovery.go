package discovery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Source finds endpoints. Run publishes the whole set that the source knows whenever it changes, until ctx ends; it
// returns nil then, and an error only where it can find nothing any more. A published slice belongs to the receiver. An
// empty set is a set: a source that does not know publishes nothing.
type Source interface {
	Run(ctx context.Context, publish func([]scheduling.EndpointSpec)) error
}

// Options are what discovery and its sources are set up with. A field that is zero or less means its default, EmptyGrace
// apart.
type Options struct {
	// Logger gets what goes wrong and what changes; by default nothing is logged.
	Logger *slog.Logger
	// Stats is where the numbers are kept; share one between the sources and the Discovery.
	Stats *Stats
	// MaxEndpoints bounds the merged set (4096). What exceeds it is refused and counted; endpoints that are in the pool
	// go first.
	MaxEndpoints int
	// ReadyTimeout is how long Ready waits for sources that have published nothing (10 s).
	ReadyTimeout time.Duration

	// Resolver looks names up; the default is Go's own, which reads resolv.conf and the hosts file.
	Resolver Resolver
	// ResolveInterval is the time between two look-ups of a name, spread by a tenth (5 s): the TTL of an answer is not
	// visible through the resolver.
	ResolveInterval time.Duration
	// ResolveTimeout bounds one round of look-ups (5 s).
	ResolveTimeout time.Duration
	// EmptyGrace is how long a name must be answered with nothing before its endpoints are removed. Zero is a value: at
	// the first such answer.
	EmptyGrace time.Duration

	// Debounce and Recheck are those of filewatch, for endpoints files.
	Debounce, Recheck time.Duration

	now func() time.Time // for tests
}

func (o Options) withDefaults() *Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stats == nil {
		o.Stats = new(Stats)
	}
	if o.Resolver == nil {
		o.Resolver = newResolver(new(net.Dialer).DialContext)
	}
	if o.MaxEndpoints <= 0 {
		o.MaxEndpoints = 4096
	}
	if o.now == nil {
		o.now = time.Now
	}
	for _, d := range []struct {
		field *time.Duration
		value time.Duration
	}{
		{&o.ReadyTimeout, 10 * time.Second},
		{&o.ResolveInterval, 5 * time.Second},
		{&o.ResolveTimeout, 5 * time.Second},
	} {
		if *d.field <= 0 {
			*d.field = d.value
		}
	}
	return &o
}

// Discovery merges what sources publish into one set and keeps a pool at it.
type Discovery struct {
	o       *Options
	pool    *scheduling.Pool
	sources []Source
	ready   chan struct{}

	mu        sync.Mutex // guards what follows, and orders updates of the pool
	started   bool
	published int // sources that have published
	complete  bool
	sets      [][]scheduling.EndpointSpec // by source; nil until it has published
	last      summary
}

// New returns a discovery that keeps pool at what sources publish. Of two endpoints with one address, the one of the
// earlier source counts.
func New(pool *scheduling.Pool, o Options, sources ...Source) *Discovery {
	return &Discovery{
		o:       o.withDefaults(),
		pool:    pool,
		sources: sources,
		ready:   make(chan struct{}),
		sets:    make([][]scheduling.EndpointSpec, len(sources)),
	}
}

// Ready is closed once every source has published and the pool holds the result, or ReadyTimeout has passed. Until then
// nothing is taken out of the pool, so that a Discovery may take a pool over from another.
func (d *Discovery) Ready() <-chan struct{} { return d.ready }

// Run runs the sources until ctx ends and everything that was started has ended. A source that fails is logged and its
// last set stays; the failures are returned at the end. Run may be called once.
func (d *Discovery) Run(ctx context.Context) error {
	d.mu.Lock()
	again := d.started
	d.started = true
	d.mu.Unlock()
	if again {
		return errors.New("discovery: is run twice")
	}
	var group sync.WaitGroup
	failures := make([]error, len(d.sources))
	for i, source := range d.sources {
		group.Go(func() {
			err := source.Run(ctx, func(specs []scheduling.EndpointSpec) { d.publish(ctx, i, specs) })
			if err != nil && ctx.Err() == nil {
				failures[i] = fmt.Errorf("discovery: %s: %w", nameOf(source), err)
				d.o.Logger.Error("endpoint source failed, its last endpoints stay", "source", nameOf(source), "error", err)
			}
		})
	}
	timer := time.NewTimer(d.o.ReadyTimeout)
	defer timer.Stop()
	if len(d.sources) == 0 {
		d.finish()
	}
	select {
	case <-ctx.Done():
	case <-d.ready:
	case <-timer.C:
		d.finish()
	}
	<-ctx.Done()
	group.Wait()
	return errors.Join(failures...)
}

func nameOf(s Source) string {
	if n, ok := s.(fmt.Stringer); ok {
		return n.String()
	}
	return fmt.Sprintf("%T", s)
}

// publish takes over the set of one source.
func (d *Discovery) publish(ctx context.Context, i int, specs []scheduling.EndpointSpec) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if ctx.Err() != nil {
		return
	}
	if d.sets[i] == nil {
		d.published++
		if specs == nil {
			specs = []scheduling.EndpointSpec{}
		}
	}
	d.sets[i] = specs
	d.o.Stats.Updates.Add(1)
	if d.published == len(d.sources) && !d.complete {
		d.finishLocked()
		return
	}
	d.apply()
}

// finish ends the time in which nothing is taken out of the pool.
func (d *Discovery) finish() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.complete {
		d.finishLocked()
	}
}

func (d *Discovery) finishLocked() {
	d.complete = true
	if missing := len(d.sources) - d.published; missing > 0 {
		d.o.Logger.Warn("starting without some endpoint sources", "missing", missing, "waited", d.o.ReadyTimeout)
	}
	d.apply()
	close(d.ready)
}

// apply brings the pool to the merged set.
func (d *Discovery) apply() {
	before := d.pool.Snapshot()
	specs, sum := merge(d.sets, before, d.o.MaxEndpoints, !d.complete)
	after := d.pool.Update(specs)
	stats := d.o.Stats
	stats.Endpoints.Store(int64(after.Len()))
	stats.Duplicates.Store(int64(sum.duplicates))
	stats.Refused.Store(int64(sum.refused))
	stats.Invalid.Store(int64(sum.invalid))
	if after.Version != before.Version {
		d.o.Logger.Info("endpoints changed", "endpoints", after.Len(), "ready", after.Ready.Len(), "version", after.Version)
	}
	if sum == d.last {
		return
	}
	d.last = sum
	if sum.refused > 0 {
		d.o.Logger.Error("too many endpoints, the excess is refused",
			"limit", d.o.MaxEndpoints, "refused", sum.refused, "first", sum.firstRefused)
	}
	if sum.duplicates > 0 {
		d.o.Logger.Warn("endpoints are listed more than once, the first counts",
			"duplicates", sum.duplicates, "first", sum.firstDuplicate)
	}
	if sum.invalid > 0 {
		d.o.Logger.Error("endpoints without an ip:port are left out", "invalid", sum.invalid, "first", sum.firstInvalid)
	}
}
