package sim_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/sim"
)

func pooledParams() sim.Params {
	p := sim.DefaultParams()
	p.BlockSize, p.NumBlocks, p.MaxModelLen = 4, 10, 40
	return p
}

// play runs an engine's steps until it has nothing to run, and returns when the last one ended.
func play(e *sim.Engine, now time.Duration) time.Duration {
	for {
		end, ok := e.Begin(now)
		if !ok {
			return now
		}
		now = end
		e.Complete()
	}
}

func text(n int, first uint32) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = first + uint32(i)
	}
	return t
}

// What one engine has computed the others find, and it takes no time.
func TestPooledEnginesShareWhatTheyComputed(t *testing.T) {
	engines, err := sim.NewPooled([]sim.Params{pooledParams(), pooledParams(), pooledParams()})
	if err != nil {
		t.Fatal(err)
	}
	prompt := text(24, 1)
	if n := engines[2].Reusable(prompt); n != 0 {
		t.Errorf("%d tokens in an empty pool", n)
	}
	first := &sim.Job{Prompt: prompt, Output: text(1, 1000)}
	if err := engines[0].Submit(0, first); err != nil {
		t.Fatal(err)
	}
	now := play(engines[0], 0)
	for i, e := range engines {
		if n := e.Reusable(prompt); n != 20 { // the last token is always computed
			t.Errorf("engine %d finds %d tokens", i, n)
		}
		if n := e.Reusable(prompt[:21]); n != 20 {
			t.Errorf("engine %d finds %d tokens of a part", i, n)
		}
		if n := e.Reusable(text(24, 2)); n != 0 {
			t.Errorf("engine %d finds %d tokens of another text", i, n)
		}
	}
	second := &sim.Job{Prompt: prompt, Output: text(1, 2000)}
	if err := engines[1].Submit(now, second); err != nil {
		t.Fatal(err)
	}
	play(engines[1], now)
	if p := second.Progress(); p.Cached != 20 || p.Loaded != 0 {
		t.Errorf("the second engine found %d tokens and loaded %d", p.Cached, p.Loaded)
	}
	if s := engines[2].Stats(); s.TotalBlocks != 30 || s.FreeBlocks != 30 {
		t.Errorf("a pool of %d blocks, %d of them free", s.TotalBlocks, s.FreeBlocks)
	}
}

// One engine may use the room of all, and those whom it leaves none wait until it is done.
func TestPooledEnginesShareTheirRoom(t *testing.T) {
	engines, err := sim.NewPooled([]sim.Params{pooledParams(), pooledParams()})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 2 {
		if err := engines[0].Submit(0, &sim.Job{Prompt: text(39, uint32(1000*i)), Output: text(1, 5000)}); err != nil {
			t.Fatal(err)
		}
	}
	end, ok := engines[0].Begin(0)
	if s := engines[0].Stats(); !ok || s.Running != 2 || s.FreeBlocks != 0 {
		t.Fatalf("%v: %+v", ok, s)
	}
	late := &sim.Job{Prompt: text(4, 9000), Output: text(1, 9100)}
	if err := engines[1].Submit(0, late); err != nil {
		t.Fatal(err)
	}
	if _, ok := engines[1].Begin(0); ok {
		t.Error("it found room where there is none")
	}
	engines[0].Complete()
	if play(engines[1], end); late.Progress().Finished == 0 {
		t.Error("it does not go on")
	}
}

func TestFaultsOfAPool(t *testing.T) {
	for want, change := range map[string]func(*sim.Params){
		"engine 1: blockSize 8":    func(p *sim.Params) { p.BlockSize = 8 },
		"hashSeed 7":               func(p *sim.Params) { p.HashSeed = 7 },
		"engine 1: offloadBlocks":  func(p *sim.Params) { p.OffloadBlocks = 1 },
		"engine 1: maxBatched":     func(p *sim.Params) { p.MaxBatchedTokens = 0 },
		"numBlocks of all until h": func(p *sim.Params) { p.NumBlocks = sim.MaxBlocks },
	} {
		p := pooledParams()
		change(&p)
		if _, err := sim.NewPooled([]sim.Params{pooledParams(), p}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", want, err)
		}
	}
}
