package e2e

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

// Conversations of several turns stay with the engine that holds them, and of every request Sluice says beforehand how
// many tokens the engine will report as cached, those of its own answers included.
func TestPreciseConversations(t *testing.T) {
	p := newPrecise(t, lab.Plan{Engine: events(sim.Params{}, engine.KVEvents{})})
	var all []*talk
	for i := range 6 {
		all = append(all, newTalk(fmt.Sprint("conversation ", i), 300+5*i))
	}
	used := map[string]int{}
	for turn := range 4 {
		for _, c := range all {
			got := p.next(t, c)
			if turn == 0 {
				used[got.engine]++
			} else if got.engine != c.home || got.cached < c.held {
				t.Errorf("%s, turn %d: %s has %d tokens cached, %s holds %d", c.name, turn, got.engine, got.cached, c.home, c.held)
			}
			c.home = got.engine
			c.held = (len(c.prompt) - 1) / blockSize * blockSize
		}
	}
	if len(used) != 3 {
		t.Errorf("the conversations began on %v, want all three engines used", used)
	}
}

// A cache that is too small for what is asked evicts, and Sluice knows what: tails go first, so that beginnings are still
// found.
func TestPreciseEvictions(t *testing.T) {
	p := newPrecise(t, lab.Plan{Engines: 2, Engine: events(sim.Params{NumBlocks: 64}, engine.KVEvents{})})
	chance := rand.New(rand.NewPCG(4, 2))
	whole, part, none := 0, 0, 0
	for i := range 40 {
		name := fmt.Sprint("text ", chance.IntN(6))
		got := p.exactly(t, name, continueIDs(ids(name, 150+chance.IntN(150)), 20), p.Engines[i%2])
		switch most := (got.prompt - 1) / blockSize * blockSize; {
		case got.cached == most:
			whole++
		case got.cached > 0:
			part++
		default:
			none++
		}
	}
	if whole < 4 || part < 4 || none < 4 {
		t.Errorf("%d prompts were cached whole, %d in part, %d not at all: want some of each", whole, part, none)
	}
}

// C34: a reset is told with the next step: the first request is believed to be cached, all later ones are predicted.
func TestC34_Reset(t *testing.T) {
	p := newPrecise(t, lab.Plan{Engines: 2, Engine: events(sim.Params{}, engine.KVEvents{})})
	one := p.Engines[0]
	prompt, second := continueIDs(ids("reset", 400), 20), continueIDs(ids("second", 400), 20)
	for round := range 3 {
		if round > 0 {
			p.reset(t, one)
			if got := p.ask(t, prompt, one); got.cached != 0 || got.predicted != 24*blockSize {
				t.Errorf("round %d: after the reset %d tokens are cached, want none; %d predicted, want all whole blocks", round, got.cached, got.predicted)
			}
		}
		for i := range 3 {
			first, again := p.exactly(t, fmt.Sprintf("round %d, request %d", round, i), prompt, one), 24*blockSize
			if round+i > 0 && first.cached != again {
				t.Errorf("round %d, request %d: %d tokens cached", round, i, first.cached)
			}
			if got := p.exactly(t, fmt.Sprintf("round %d, the second text, request %d", round, i), second, one); (got.cached == again) != (i > 0) {
				t.Errorf("round %d, the second text, request %d: %d tokens cached", round, i, got.cached)
			}
		}
		p.exactly(t, "the other engine", prompt, p.Engines[1])
	}
}

// C15, C28: the same tokens under another salt, or of another adapter, are other blocks.
func TestC15_SaltsAndAdapters(t *testing.T) {
	c := events(sim.Params{}, engine.KVEvents{})
	c.Adapters, c.Models = []string{"sql", "chat"}, []string{"sim", "alias"}
	p := newPrecise(t, lab.Plan{Engines: 2, Engine: c})
	prompt, firsts := ids("namespaces", 330), 0
	for round := range 3 {
		for i, model := range []string{"sim", "sql", "chat", "alias"} {
			for _, salt := range []string{"", "a", "b"} {
				body := continueIDs(prompt, 20, "model", model)
				if salt != "" {
					body["cache_salt"] = salt
				}
				got := p.exactly(t, fmt.Sprintf("round %d of %s salted %q", round, model, salt), body, nil)
				if cached := got.cached > 0; cached != (round > 0 || i == 3) { // an alias names the same model
					t.Errorf("round %d of %s salted %q: %d tokens cached", round, model, salt, got.cached)
				}
				if got.cached == 0 {
					firsts++
				}
			}
		}
	}
	if firsts != 9 {
		t.Errorf("%d of 9 namespaces began with nothing", firsts)
	}
}
