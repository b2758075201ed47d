package metrics

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// poller reads the pages of a snapshot's endpoints again and again, each from a goroutine of its own: one that hangs
// holds up nobody else, and no endpoint is asked twice at once. There are as many goroutines as endpoints.
type poller struct {
	store    *Store
	settings settings

	interval atomic.Int64 // in ns; follows the number of endpoints

	mu     sync.Mutex // guards what follows
	loops  map[int]*loop
	closed bool
	wg     sync.WaitGroup
}

// settings are a plugin's parameters, complete.
type settings struct {
	pace     pace
	interval time.Duration // 0: by pace
	timeout  time.Duration
	stale    time.Duration // 0: by interval
	path     string        // empty: the dialect's
	fallback *dialect
	maxBytes int64
}

// target is what decides how an endpoint is read; while it stays the same, so does its loop.
type target struct {
	record  *record
	dialect *dialect
	url     string
	ready   bool
}

// loop reads one endpoint.
type loop struct {
	target
	request *http.Request
	cancel  context.CancelFunc
	phase   float64
}

func newPoller(s *Store, settings settings) *poller {
	p := &poller{store: s, settings: settings, loops: make(map[int]*loop)}
	p.interval.Store(int64(settings.intervalFor(1)))
	s.join(p)
	return p
}

func (t *settings) intervalFor(endpoints int) time.Duration {
	if t.interval > 0 {
		return t.interval
	}
	return t.pace.interval(endpoints)
}

// staleAfter is how old a reading may be. A configured limit gives way to the interval where that grew with the pool: an
// endpoint that answers every time must not be unknown in between.
func (p *poller) staleAfter() time.Duration {
	interval := time.Duration(p.interval.Load())
	if p.settings.stale > 0 {
		return max(p.settings.stale, 2*interval)
	}
	return max(5*time.Second, 10*interval)
}

// follow reads a snapshot's endpoints from now on, and no others. It does not wait for anything.
func (p *poller) follow(snapshot *scheduling.Snapshot) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	records := p.store.follow(snapshot)
	p.interval.Store(int64(p.settings.intervalFor(snapshot.Len())))
	if p.store.fed {
		return
	}
	for ordinal, l := range p.loops {
		if ordinal >= len(records) || records[ordinal] != l.record {
			p.stop(ordinal)
		}
	}
	for ordinal, r := range records {
		if r != nil && ordinal < len(snapshot.Endpoints) && snapshot.Endpoints[ordinal] != nil {
			p.watch(snapshot.Endpoints[ordinal], r)
		}
	}
}

func (p *poller) stop(ordinal int) {
	p.loops[ordinal].cancel()
	delete(p.loops, ordinal)
}

// watch starts an endpoint's loop, unless it runs already as it should.
func (p *poller) watch(e *scheduling.Endpoint, r *record) {
	t := target{record: r, dialect: dialectNamed(e.Engine, p.settings.fallback), url: e.MetricsURL,
		ready: e.State == scheduling.EndpointReady}
	if t.url == "" {
		path := p.settings.path
		if path == "" {
			path = t.dialect.path
		}
		t.url = "http://" + e.Address + path
	}
	if old := p.loops[e.Ordinal]; old != nil {
		if old.target == t {
			return
		}
		p.stop(e.Ordinal)
		r.forgive()
	}
	ctx, cancel := context.WithCancel(context.Background())
	l := &loop{target: t, cancel: cancel, phase: phaseOf(e.Ordinal, p.store.offset)}
	p.loops[e.Ordinal] = l
	var err error
	if l.request, err = newRequest(t.url); err != nil {
		p.store.logger.Warn("engine metrics cannot be read", "endpoint", e.Address, "error", err)
		cancel()
		return // the loop stays on the books, so that this is said once
	}
	p.wg.Go(func() { p.run(ctx, l) })
}

// run reads an endpoint until ctx is over.
func (p *poller) run(ctx context.Context, l *loop) {
	timer := time.NewTimer(p.firstPause(l))
	defer timer.Stop()
	if own := p.store.own; own != nil {
		defer own.forget(l.request.URL)
	}
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		if ctx.Err() != nil { // at the same moment
			return
		}
		if l.record.begin(p.store.now(), time.Duration(p.interval.Load())/2) {
			p.scrape(ctx, l)
		}
		timer.Reset(p.pause(l))
	}
}

// firstPause is the time until an endpoint is read for the first time. One that nobody has read yet is read within the
// shortest interval that so many endpoints allow, however seldom this plugin reads afterwards.
func (p *poller) firstPause(l *loop) time.Duration {
	if l.record.last.Load() != nil {
		return p.pause(l)
	}
	interval := time.Duration(p.interval.Load())
	p.mu.Lock()
	spread := min(interval, loadPace.interval(len(p.loops)))
	p.mu.Unlock()
	return time.Duration(l.phase * float64(spread))
}

// pause is the time until an endpoint is read again.
func (p *poller) pause(l *loop) time.Duration {
	now, interval := p.store.now(), time.Duration(p.interval.Load())
	at := nextAt(now, interval, backoff(interval, l.record.failed()), l.phase)
	jitter := time.Duration(p.store.random() * float64(interval/32))
	return onTick(at+jitter, interval) - now
}

// scrape reads an endpoint's page once. The record is claimed, and given back at the end.
func (p *poller) scrape(ctx context.Context, l *loop) {
	s := p.store
	ctx, cancel := context.WithTimeout(ctx, p.settings.timeout)
	defer cancel()
	w, _ := workspaces.Get().(*workspace)
	w.scanner.reset(l.dialect)
	start := s.now()
	read, err := w.fetch(s.transport, l.request.WithContext(ctx), p.settings.maxBytes)
	if err == nil && !w.scanner.found {
		err = failed(ResultUnknownPage, "no metric of %s on the page", l.dialect.name)
	}
	result := resultOf(err, ResultBroken)
	if result == ResultOK && l.record.gone.Load() {
		result = ResultGone
	}
	if result == ResultOK {
		s.accept(l.record, &w.scanner)
	}
	workspaces.Put(w)
	s.stats.scraped(result, s.now()-start, read)
	before, failures := l.record.end(result)
	p.report(ctx, l, err, before, failures)
}

// accept takes a scanned page over.
func (s *Store) accept(r *record, scanned *scanner) {
	s.stats.malformed.Add(int64(scanned.malformed))
	next := scanned.reading(s.now(), r.last.Load())
	s.stats.droppedAdapters.Add(int64(next.Adapters.Dropped))
	for _, cause := range r.take(next) {
		s.announceLoss(r, cause)
	}
}

// reportAfter is how many scrapes in a row must fail before it is worth a line.
const reportAfter = 3

func (p *poller) report(ctx context.Context, l *loop, err error, before, failures int) {
	switch {
	case failures == reportAfter && before < failures:
		level := slog.LevelWarn
		if !l.ready { // an engine that still starts has no page to read
			level = slog.LevelDebug
		}
		p.store.logger.Log(ctx, level, "engine metrics cannot be read", "endpoint", l.record.address, "url", l.request.URL.Redacted(),
			"failures", failures, "error", err)
	case failures == 0 && before >= reportAfter:
		p.store.logger.Info("engine metrics are read again", "endpoint", l.record.address)
	}
}

// close ends every loop and returns once they are gone.
func (p *poller) close() {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return
	}
	p.closed = true
	for ordinal := range p.loops {
		p.stop(ordinal)
	}
	p.mu.Unlock()
	p.wg.Wait()
	p.store.leave(p)
}
