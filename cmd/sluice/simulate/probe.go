package simulate

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/trace"
)

// probe is a small scenario in which a candidate shows how it behaves: prefixes that are shared, engines that queue and evict,
// late events.
func probe() *Scenario {
	b := trace.B2B{
		Customers: 12, UsersPerCustomer: 2, SystemTokens: 6000, QuestionTokens: 1200, AnswerTokens: 60, PerSecond: 8, Requests: 250,
		FreshQuestions: true,
	}
	s := &Scenario{
		Name: "probe", B2B: &b, Speed: 1, Pickers: 1, Objective: fleet.DefaultObjective,
		Sight:  fleet.Sight{EventDelay: 20 * time.Millisecond, ScrapeInterval: 50 * time.Millisecond},
		Shifts: []Shift{{At: 0.6, Prompts: Prompts{Mean: 9000, Most: 40_000, Rate: 1}}},
	}
	for i := range 4 {
		s.Engines = append(s.Engines, Engine{KVTokens: 60_000, Slower: 1 + float64(i)/2})
	}
	return s
}

// behave runs the probe and names what came out of it: where each request went, and how long it took. It is another name once the
// candidate, the scheduling code behind it or the engines' model have changed to any effect, so that results of a program that
// has moved on are not taken for those of this one.
func (c *Candidate) behave() error {
	r, _, err := probe().run(context.Background(), c, 1, nil)
	if err != nil {
		return err
	}
	h := sha256.New()
	for _, q := range r.Samples {
		_, _ = fmt.Fprintln(h, q.Endpoint, q.At, q.TTFT, q.TPOT, q.CachedTokens) // a hash takes everything
	}
	c.behaviour, c.probed = hex.EncodeToString(h.Sum(nil)[:8]), c.hash
	return nil
}
