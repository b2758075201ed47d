package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/bench/proxy"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/bench/subject"
)

// side is one setup on one way under a load: its processes, and what drives them.
type side struct {
	way
	picker *subject.Process // the ext_proc server or the router; nil for setupNone
	envoy  *subject.Process // nil but via Envoy
	goHeap bool             // the picker tells its allocations and its profile
	// run sends requests whose answers have so many chunks, while more returns true, and returns how long each waited.
	run func(ctx context.Context, chunks int, more func() bool) ([]time.Duration, error)
	// check looks after the rounds whether what was measured is what should have been; it may be nil.
	check func(context.Context) error

	closing []func() error           // what drives it, to be closed before the processes end
	page    subject.Heap             // what reading the metrics page allocates
	last    map[string]time.Duration // the last reading of each process's CPU clock

	rounds  []report.Round
	peakRSS int64
}

// processes are those that are measured.
func (s *side) processes() (all []*subject.Process) {
	for _, p := range []*subject.Process{s.picker, s.envoy} {
		if p != nil {
			all = append(all, p)
		}
	}
	return all
}

// maxRoundTime is how long a round sends requests at most: one setup may take a hundred times as long as another.
const maxRoundTime = 10 * time.Second

// send sends n requests, or what is sent in maxRoundTime; where a server has died meanwhile the error says so.
func (s *side) send(ctx context.Context, chunks, n int) ([]time.Duration, error) {
	begin, more := time.Now(), proxy.Times(n)
	waits, err := s.run(ctx, chunks, func() bool { return more() && time.Since(begin) < maxRoundTime })
	if err != nil {
		errs := []error{err}
		for _, p := range s.processes() {
			errs = append(errs, p.Err())
		}
		return nil, errors.Join(errs...)
	}
	return waits, nil
}

// round measures n requests, and where answers are long as many with short ones, from whose difference the chunks' part is
// known.
func (s *side) round(ctx context.Context, chunks, n int) error {
	r, err := s.measure(ctx, chunks, n)
	if err != nil {
		return err
	}
	if chunks > usualChunks {
		short, err := s.measure(ctx, usualChunks, n)
		if err != nil {
			return err
		}
		r.ChunkMicros = (r.CPUMicros - short.CPUMicros) / float64(chunks-usualChunks)
	}
	s.rounds = append(s.rounds, r)
	return nil
}

func (s *side) measure(ctx context.Context, chunks, n int) (r report.Round, err error) {
	heap, err := s.heap(ctx)
	if err != nil {
		return r, err
	}
	before, err := s.settled(ctx)
	if err != nil {
		return r, err
	}
	begin := time.Now()
	waits, err := s.send(ctx, chunks, n)
	if err != nil {
		return r, err
	}
	wall := time.Since(begin)
	if s.last, err = s.settled(ctx); err != nil {
		return r, err
	}
	after, err := s.heap(ctx)
	if err != nil {
		return r, err
	}
	allocated := after.Minus(heap).Minus(s.page)
	per := float64(len(waits))
	used := func(p *subject.Process) float64 {
		if p == nil {
			return 0
		}
		return report.Micros(s.last[p.Name()]-before[p.Name()]) / per
	}
	return report.Round{
		CPUMicros:      used(s.picker),
		EnvoyMicros:    used(s.envoy),
		P50Micros:      report.Micros(report.Quantile(waits, 0.50)),
		P99Micros:      report.Micros(report.Quantile(waits, 0.99)),
		Allocations:    allocated.Objects / per,
		AllocatedBytes: allocated.Bytes / per,
		PerSecond:      per / wall.Seconds(),
	}, nil
}

// heap reads the picker's counters, where it has any.
func (s *side) heap(ctx context.Context) (subject.Heap, error) {
	if !s.goHeap {
		return subject.Heap{}, nil
	}
	return s.picker.Heap(ctx)
}

// How long the processes get to finish what the client no longer waits for, and how long they must use no CPU to have done
// so.
const (
	settleTime = 100 * time.Millisecond
	quietTime  = 3 * time.Millisecond
)

// settled reads the CPU clocks, by the processes' names, once they have come to rest: the ends of the last streams belong
// to their round.
func (s *side) settled(ctx context.Context) (map[string]time.Duration, error) {
	poll := time.NewTicker(quietTime)
	defer poll.Stop()
	before, total, err := s.clocks()
	for range settleTime / quietTime {
		if err != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-poll.C:
		}
		previous := total
		if before, total, err = s.clocks(); total == previous {
			break
		}
	}
	return before, err
}

func (s *side) clocks() (each map[string]time.Duration, total time.Duration, err error) {
	each = map[string]time.Duration{}
	for _, p := range s.processes() {
		t, err := p.CPU()
		if err != nil {
			return nil, 0, err
		}
		each[p.Name()] = t
		total += t
	}
	return each, total, nil
}

// profile keeps the picker busy while it is profiled, and returns how many requests it served meanwhile.
func (s *side) profile(ctx context.Context, file string, chunks int, d time.Duration) (requests int, err error) {
	f, err := os.Create(file)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	var over atomic.Bool
	profiled := make(chan error, 1)
	go func() {
		err := s.picker.Profile(ctx, d, f)
		over.Store(true)
		profiled <- err
	}()
	waits, err := s.run(ctx, chunks, func() bool { return !over.Load() })
	return len(waits), errors.Join(err, s.picker.Err(), <-profiled)
}

// stop ends what drives the side and its processes. The CPU time that getrusage then reports for a process's whole life has
// to agree with the clock that the rounds were measured by.
func (s *side) stop() error {
	var errs []error
	for _, c := range s.closing {
		errs = append(errs, c())
	}
	for _, p := range []*subject.Process{s.envoy, s.picker} { // Envoy first: it would miss its picker
		if p == nil {
			continue
		}
		died := p.Err()
		usage, err := p.Stop()
		if err == nil && usage.CPU+time.Millisecond < s.last[p.Name()] {
			err = fmt.Errorf("%s used %v of CPU by getrusage, %v by its clock", p.Name(), usage.CPU, s.last[p.Name()])
		}
		if p == s.picker {
			s.peakRSS = usage.PeakRSS
		}
		errs = append(errs, died, err)
	}
	return errors.Join(errs...)
}
