package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/proxy"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/bench/subject"
)

// The bodies that are cycled: so many distinct ones, in so many groups with a prefix in common.
const (
	distinctBodies = 64
	prefixGroups   = 8
)

// connections is how many HTTP/2 connections the streams share: an Envoy opens one per worker.
const connections = 2

// bytesPerToken is about what the bodies' text has; usage is made up from it.
const bytesPerToken = 4

// load is what all servers of a row are sent.
type load struct {
	size      int
	exchanges []*proxy.Exchange
}

func (b *bench) load(size int) (load, error) {
	bodies, err := chat.Set{Bodies: distinctBodies, Groups: prefixGroups, Size: size}.Make()
	if err != nil {
		return load{}, err
	}
	l := load{size: size}
	answer := chat.Answer(b.chunks, size/bytesPerToken)
	for _, body := range bodies {
		x, err := proxy.NewExchange(body, answer)
		if err != nil {
			return load{}, err
		}
		l.exchanges = append(l.exchanges, x)
	}
	return l, nil
}

// row measures Sluice with some endpoints beside the null server, each in a fresh process.
func (b *bench) row(ctx context.Context, l load, endpoints []string) (row report.Row, err error) {
	row = report.Row{BodyBytes: l.size, Endpoints: len(endpoints)}
	null, err := b.start(ctx, l, b.null, "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0")
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, null.stop(&row.PeakRSSNull)) }()
	args := []string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	for _, e := range endpoints {
		args = append(args, "--endpoint", e)
	}
	sluice, err := b.start(ctx, l, b.sluice, args...)
	if err != nil {
		return row, err
	}
	defer func() { err = errors.Join(err, sluice.stop(&row.PeakRSS)) }()
	for range b.rounds {
		for _, s := range []struct {
			of     *measured
			rounds *[]report.Round
		}{{null, &row.Null}, {sluice, &row.Rounds}} {
			r, err := s.of.round(ctx, b.requests)
			if err != nil {
				return row, err
			}
			*s.rounds = append(*s.rounds, r)
		}
	}
	return row, b.profile(ctx, row, null, sluice)
}

// profile saves a CPU profile of each server under the row's load, if that is asked for. It comes after the rounds, which
// it would disturb.
func (b *bench) profile(ctx context.Context, row report.Row, servers ...*measured) error {
	if b.profiles == "" {
		return nil
	}
	if err := os.MkdirAll(b.profiles, 0o777); err != nil {
		return err
	}
	for _, m := range servers {
		name := fmt.Sprintf("stream-%s-%s-%d.pprof", filepath.Base(m.binary), report.Size(row.BodyBytes), row.Endpoints)
		n, err := m.profile(ctx, filepath.Join(b.profiles, name), b.profileTime)
		if err != nil {
			return err
		}
		b.say("%s: %d requests", name, n)
	}
	return nil
}

// measured is a server, and what drives it.
type measured struct {
	*subject.Process
	binary      string
	client      *proxy.Client
	load        load
	concurrency int
	page        subject.Heap  // what reading the metrics page allocates
	last        time.Duration // the last reading of the CPU clock
}

// start starts a server and warms it up.
func (b *bench) start(ctx context.Context, l load, binary string, args ...string) (_ *measured, err error) {
	p, err := subject.Start(ctx, binary, args...)
	if err != nil {
		return nil, err
	}
	m := &measured{Process: p, binary: binary, load: l, concurrency: b.concurrency}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.stop(nil))
		}
	}()
	if m.client, err = proxy.Dial(p.Address, connections); err != nil {
		return nil, err
	}
	// Every body at least twice, so that the prefix index is as full as it will be.
	if _, err = m.run(ctx, max(2*distinctBodies, b.requests/2)); err != nil {
		return nil, err
	}
	m.page, err = p.PageHeap(ctx)
	return m, err
}

// run sends requests; where the server has died meanwhile the error says so.
func (m *measured) run(ctx context.Context, n int) ([]time.Duration, error) {
	waits, err := m.client.Run(ctx, m.load.exchanges, m.concurrency, proxy.Times(n))
	if err != nil {
		return nil, errors.Join(err, m.Err())
	}
	return waits, nil
}

// round measures n requests.
func (m *measured) round(ctx context.Context, n int) (r report.Round, err error) {
	heap, err := m.Heap(ctx)
	if err != nil {
		return r, err
	}
	cpu, err := m.settled(ctx)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	waits, err := m.run(ctx, n)
	if err != nil {
		return r, err
	}
	wall := time.Since(begin)
	if m.last, err = m.settled(ctx); err != nil {
		return r, err
	}
	after, err := m.Heap(ctx)
	if err != nil {
		return r, err
	}
	allocated := after.Minus(heap).Minus(m.page)
	per := float64(n)
	return report.Round{
		CPUMicros:      report.Micros(m.last-cpu) / per,
		P50Micros:      report.Micros(report.Quantile(waits, 0.50)),
		P99Micros:      report.Micros(report.Quantile(waits, 0.99)),
		Allocations:    allocated.Objects / per,
		AllocatedBytes: allocated.Bytes / per,
		PerSecond:      per / wall.Seconds(),
	}, nil
}

// How long a server gets to finish what the client no longer waits for, and how long it must use no CPU to have done so.
const (
	settleTime = 100 * time.Millisecond
	quietTime  = 3 * time.Millisecond
)

// settled reads the CPU clock once the server has come to rest: the ends of the last streams belong to their round.
func (m *measured) settled(ctx context.Context) (time.Duration, error) {
	poll := time.NewTicker(quietTime)
	defer poll.Stop()
	before, err := m.CPU()
	for range settleTime / quietTime {
		if err != nil {
			return 0, err
		}
		select {
		case <-ctx.Done():
			return 0, ctx.Err()
		case <-poll.C:
		}
		var now time.Duration
		if now, err = m.CPU(); now == before {
			break
		}
		before = now
	}
	return before, err
}

// profile keeps the server busy while it is profiled, and returns how many requests it served meanwhile.
func (m *measured) profile(ctx context.Context, file string, d time.Duration) (requests int, err error) {
	f, err := os.Create(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var over atomic.Bool
	profiled := make(chan error, 1)
	go func() {
		err := m.Profile(ctx, d, f)
		over.Store(true)
		profiled <- err
	}()
	waits, err := m.client.Run(ctx, m.load.exchanges, m.concurrency, func() bool { return !over.Load() })
	return len(waits), errors.Join(err, m.Err(), <-profiled)
}

// stop ends the server. The CPU time that getrusage then reports for its whole life has to agree with the clock that the
// rounds were measured by.
func (m *measured) stop(peakRSS *int64) error {
	var err error
	if m.client != nil {
		err = m.client.Close()
	}
	died := m.Err()
	usage, usageErr := m.Stop()
	if peakRSS != nil {
		*peakRSS = usage.PeakRSS
	}
	if usageErr == nil && usage.CPU+time.Millisecond < m.last {
		usageErr = fmt.Errorf("%s used %v of CPU by getrusage, %v by its clock", filepath.Base(m.binary), usage.CPU, m.last)
	}
	return errors.Join(err, died, usageErr)
}
