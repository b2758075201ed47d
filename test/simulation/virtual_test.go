package simulation

import (
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// outcome is a run in figures; the times in seconds.
type outcome struct{ mean, p50, p90, hit float64 }

func outcomeOf(r *fleet.Result) outcome {
	s := r.Summarise(0, fleet.DefaultObjective)
	return outcome{s.TTFTMean, s.TTFTP50, s.TTFTP90, s.HitRate}
}

// arrivalNoise is by how much requests come late where sockets are in their way.
const arrivalNoise = 20 * time.Millisecond

// virtual plays a shape in virtual time, with so many seeds, and returns the mean outcome, and the one of each.
func virtual(t *testing.T, s shape, path string, seeds int, unheard bool) (mean outcome, each []outcome) {
	t.Helper()
	for seed := range seeds {
		r, err := fleet.Run(fleet.Config{
			Trace: s.trace.Jittered(arrivalNoise, rand.New(rand.NewPCG(uint64(seed), 3))), Engines: repeat(s.Params), Seed: uint64(seed) + 1,
			Sight:     fleet.Sight{EventDelay: 5 * time.Millisecond, ScrapeInterval: 50 * time.Millisecond, Unheard: unheard},
			NewPicker: func(v *fleet.View) (fleet.Picker, error) { return newPicker(v, path) },
		})
		if err != nil {
			t.Fatal(err)
		}
		if len(r.Samples) != len(s.trace.Requests) {
			t.Fatalf("%d of %d requests were served", len(r.Samples), len(s.trace.Requests))
		}
		o := outcomeOf(r)
		each = append(each, o)
		n := float64(seeds)
		mean = outcome{mean.mean + o.mean/n, mean.p50 + o.p50/n, mean.p90 + o.p90/n, mean.hit + o.hit/n}
	}
	return mean, each
}

func repeat(p sim.Params) []sim.Params {
	all := make([]sim.Params, engines)
	for i := range all {
		all[i] = p
	}
	return all
}

// newPicker is the scheduler that a configuration file describes.
func newPicker(v *fleet.View, path string) (fleet.Picker, error) {
	types := server.Plugins(server.Environment{
		Now: v.Now, Logger: slog.New(slog.DiscardHandler), Engines: v.Engines(), HashSeed: blockhash.SeedOf("simulation"), Transport: v,
		Follow: v.Follow,
	})
	_, s, err := config.Open(path, nil, types)
	if err != nil {
		return nil, err
	}
	return fleet.NewScheduled(v, s), nil
}
