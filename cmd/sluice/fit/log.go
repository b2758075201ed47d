package fit

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/server/decisionlog"
	simfit "github.com/sluice-epp/sluice/sim/fit"
)

// Log says which rows of a decision log count.
type Log struct {
	// Endpoint is the address or the name of the only endpoint that counts, Model the only model; empty for all.
	Endpoint, Model string
}

// Log takes the decisions of a log in: those of requests that were streamed, that came whole, and at whose pick nothing was in
// flight to the endpoint.
func (s *Samples) Log(ctx context.Context, rows iter.Seq2[*decisionv1.Decision, error], o Log) error {
	for d, err := range rows {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		s.Read++
		var skip *decisionlog.Skip
		switch {
		case errors.As(err, &skip):
			s.skip(skip.Reason)
		case err != nil:
			return err
		default:
			s.decision(d, o)
		}
	}
	return nil
}

func (s *Samples) decision(d *decisionv1.Decision, o Log) {
	out, e := d.GetOutcome(), picked(d)
	s.met(d.GetCandidates())
	switch {
	case out == nil || e == nil:
		s.skip(SkippedKind)
		return
	case !d.GetRequest().GetStream() || d.GetRequest().GetChoices() > 1 || out.GetReason() != "complete" || out.GetStatus() != 200 ||
		out.TtftMs == nil || out.PromptTokens == nil || out.CachedTokens == nil,
		out.GetServedBy() != "" && out.GetServedBy() != e.GetAddress():
		s.skip(SkippedKind)
		return
	case o.Endpoint != "" && o.Endpoint != e.GetAddress() && o.Endpoint != e.GetName(), o.Model != "" && o.Model != d.GetRequest().GetModel():
		s.skip(SkippedElse)
		return
	case len(e.GetInFlightLoads()) == 0 || e.GetInFlightLoads()[0].GetRequests() > 0:
		s.skip(SkippedBusy)
		return
	}
	sample := simfit.Sample{
		PromptTokens: bounded(out.GetPromptTokens()), CachedTokens: bounded(out.GetCachedTokens()),
		OutputTokens: bounded(out.GetCompletionTokens()), TTFT: out.GetTtftMs() / 1000,
	}
	if sample.OutputTokens > 1 {
		sample.TPOT = max(0, (out.GetTotalMs()-out.GetTtftMs())/1000/float64(sample.OutputTokens-1))
	}
	if sample.Validate() != nil {
		s.skip(SkippedOdd)
		return
	}
	s.keep(sample)
}

// maxEndpoints bounds how many endpoints of a log are remembered.
const maxEndpoints = 4096

func (s *Samples) met(all []*decisionv1.Candidate) {
	if s.endpoints == nil {
		s.endpoints = map[string]string{}
	}
	for _, e := range all {
		if len(s.endpoints) < maxEndpoints {
			s.endpoints[e.GetAddress()] = e.GetName()
		}
	}
}

// CheckEndpoint is an error that names the endpoints of the logs that were read, where none of them has that address or name.
func (s *Samples) CheckEndpoint(name string) error {
	var all []string
	for _, address := range slices.Sorted(maps.Keys(s.endpoints)) {
		called := s.endpoints[address]
		if name == address || name == called {
			return nil
		}
		if called != "" {
			address += " (" + called + ")"
		}
		all = append(all, address)
	}
	const most = 20
	if more := len(all) - most; more > 0 {
		all = append(all[:most], fmt.Sprintf("%d more", more))
	}
	if len(all) == 0 {
		return nil // what was wrong with the log is said elsewhere
	}
	return fmt.Errorf("the log has no endpoint %q; it has %s", name, strings.Join(all, ", "))
}

// picked is the endpoint that a decision's request was sent to; nil where there is none.
func picked(d *decisionv1.Decision) *decisionv1.Candidate {
	if len(d.GetPicks()) > 0 {
		for _, e := range d.GetCandidates() {
			if e.GetOrdinal() == d.GetPicks()[0] {
				return e
			}
		}
	}
	return nil
}

// bounded is a number of tokens, of which Validate refuses what is too large.
func bounded(n uint64) int { return int(min(n, 1<<40)) }
