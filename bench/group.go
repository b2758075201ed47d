package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/engines"
	"github.com/sluice-epp/sluice/bench/report"
)

// The bodies that are cycled: so many distinct ones, in so many groups with a prefix in common.
const (
	distinctBodies = 64
	prefixGroups   = 8
)

// What a round sends at most beside what maxRoundTime allows, so that large bodies and long answers do not take all the time.
const (
	maxRoundBytes  = 512 << 20
	maxRoundChunks = 100_000
)

// perRound is how many requests a round of a load has: with fewer than there are to be at once there never were as many.
func (b *bench) perRound(l load) int {
	return max(l.concurrency, min(b.requests, maxRoundBytes/l.body, maxRoundChunks/l.chunks))
}

// field is what a group's sides share.
type field struct {
	load
	bodies [][]byte
	pool   *engines.Pool
}

// newField makes the bodies of a load and starts its engines, which publish events where the precise index is measured.
func newField(l load, events bool) (f field, err error) {
	f.load = l
	if f.bodies, err = (chat.Set{Bodies: distinctBodies, Groups: prefixGroups, Size: l.body}).Make(); err != nil {
		return f, err
	}
	f.pool, err = engines.Start(engines.Options{Engines: l.endpoints, Prompts: f.bodies, Groups: prefixGroups, Events: events})
	return f, err
}

// group measures every setup of a group, each in fresh processes.
func (b *bench) group(ctx context.Context, g group) (rows []report.Row, err error) {
	f, err := newField(g.load, slices.ContainsFunc(g.ways, func(w way) bool { return w.setup == setupPrecise }))
	if err != nil {
		return nil, err
	}
	var sides []*side
	defer func() {
		for _, s := range sides {
			err = errors.Join(err, s.stop())
		}
		err = errors.Join(err, f.pool.Close())
		if err == nil {
			rows = rowsOf(g.load, sides)
		}
	}()
	for _, w := range g.ways {
		s, err := b.start(ctx, f, w)
		if err != nil {
			return nil, fmt.Errorf("%s via %s: %w", w.setup, w.via, err)
		}
		sides = append(sides, s)
	}
	n := b.perRound(g.load)
	for range b.rounds {
		for _, s := range sides {
			if err := s.round(ctx, g.chunks, n); err != nil {
				return nil, fmt.Errorf("%s via %s: %w", s.setup, s.via, err)
			}
		}
	}
	for _, s := range sides {
		if s.check == nil {
			continue
		}
		if err := s.check(ctx); err != nil {
			return nil, fmt.Errorf("%s via %s: %w", s.setup, s.via, err)
		}
	}
	return nil, b.profile(ctx, g.load, sides)
}

// rowsOf puts the sides' rounds beside one another.
func rowsOf(l load, sides []*side) []report.Row {
	rounds := func(setup, via string) []report.Round {
		for _, s := range sides {
			if s.way == (way{setup, via}) {
				return s.rounds
			}
		}
		return nil
	}
	var rows []report.Row
	for _, s := range sides {
		row := report.Row{
			Setup: s.setup, Via: s.via, BodyBytes: l.body, Endpoints: l.endpoints, Chunks: l.chunks, Concurrency: l.concurrency,
			Rounds: s.rounds, None: rounds(setupNone, s.via), PeakRSS: s.peakRSS,
		}
		if s.setup != setupNull && s.setup != setupNone {
			nullWay := s.via
			if nullWay == report.ViaRouter {
				nullWay = report.ViaEnvoy
			}
			row.Null, row.NullNone = rounds(setupNull, nullWay), rounds(setupNone, nullWay)
		}
		rows = append(rows, row)
	}
	return rows
}

// profile saves a CPU profile of each picker in Go under the load, if that is asked for. It comes after the rounds, which
// it would disturb.
func (b *bench) profile(ctx context.Context, l load, sides []*side) error {
	if b.profiles == "" {
		return nil
	}
	if err := os.MkdirAll(b.profiles, 0o777); err != nil {
		return err
	}
	for _, s := range sides {
		if !s.goHeap {
			continue
		}
		name := fmt.Sprintf("%s-%s-%s-%d-%d-%d.pprof", s.via, s.setup, report.Size(l.body), l.endpoints, l.chunks, l.concurrency)
		n, err := s.profile(ctx, filepath.Join(b.profiles, name), l.chunks, b.profileTime)
		if err != nil {
			return err
		}
		b.say("%s: %d requests", name, n)
	}
	return nil
}
