package lab

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/sim"
)

// Audit is what Sluice's own comparison of predicted and reported cached tokens has come to, of its precise index.
type Audit struct{ Predicted, Reported, Exact, Over, Under, Unconfirmed int }

// Audit reads the comparison so far.
func (s *Sluice) Audit(t testing.TB) Audit {
	t.Helper()
	const precise = `index="precise"`
	m := s.Metrics(t)
	of := func(outcome string) int {
		return int(m.Total(t, "sluice_prefix_cache_predictions_total", precise, fmt.Sprintf("outcome=%q", outcome)))
	}
	return Audit{
		Predicted: int(m.Total(t, "sluice_prefix_cache_predicted_tokens_total", precise)),
		Reported:  int(m.Total(t, "sluice_prefix_cache_reported_tokens_total", precise)),
		Exact:     of("exact"), Over: of("over"), Under: of("under"), Unconfirmed: of("unconfirmed"),
	}
}

// Requests is the number of requests that were compared.
func (a Audit) Requests() int { return a.Exact + a.Over + a.Under + a.Unconfirmed }

// Minus is what came after b.
func (a Audit) Minus(b Audit) Audit {
	return Audit{
		a.Predicted - b.Predicted, a.Reported - b.Reported, a.Exact - b.Exact, a.Over - b.Over, a.Under - b.Under,
		a.Unconfirmed - b.Unconfirmed,
	}
}

// Decision is what Sluice says of a pick in the header of an answer.
type Decision struct {
	// Address is the picked endpoint.
	Address string
	// Cached is what of the prompt it is taken to have in its cache, Total the prompt's whole blocks, both in tokens; -1
	// where nothing is said of that.
	Cached, Total int
}

// ReadDecision reads the decision header, which Sluice has to be configured to send.
func ReadDecision(t testing.TB, a Answer) Decision {
	t.Helper()
	header := a.Header.Get("x-sluice-decision")
	d := Decision{Cached: -1, Total: -1}
	for i, field := range strings.Fields(header) {
		if i == 0 {
			d.Address = field
		} else if v, ok := strings.CutPrefix(field, "cached="); ok {
			if _, err := fmt.Sscanf(v, "%d/%d", &d.Cached, &d.Total); err != nil {
				t.Fatalf("decision %q: %v", header, err)
			}
		}
	}
	if _, _, err := net.SplitHostPort(d.Address); err != nil {
		t.Fatalf("decision %q (status %d): %v", header, a.Status, err)
	}
	return d
}

// CachedBlocks is the number of different blocks that the engines hold, each counted for every engine and every kind of
// memory that has it, as Sluice counts what it knows of them.
func (l *Lab) CachedBlocks() (n int) {
	for _, e := range l.Engines {
		for _, m := range []sim.Medium{sim.GPU, sim.CPU} {
			n += len(e.Cached(m))
		}
	}
	return n
}
