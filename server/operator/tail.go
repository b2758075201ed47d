package operator

import (
	"slices"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/decisions"
)

// MaxTails is how many TailDecisions streams there are at a time at most: each makes records of its own, and a pick takes
// the time to tell each of them.
const MaxTails = 32

// Tails is the number of TailDecisions streams, and of those that were refused because there were MaxTails already.
func (s *Service) Tails() (open, refused int64) { return s.tails.Load(), s.refused.Load() }

// fewCandidates are how many candidates a decision has that is not sent in full: its pick, and what a gate compared.
const fewCandidates = 3

// TailDecisions sends decisions as they are made, until the reader goes or the service ends.
func (s *Service) TailDecisions(r *schedulerv1.TailDecisionsRequest, stream grpc.ServerStreamingServer[schedulerv1.TailDecisionsResponse]) error {
	defer s.tails.Add(-1)
	if s.tails.Add(1) > MaxTails {
		s.refused.Add(1)
		return status.Errorf(codes.ResourceExhausted, "%d clients follow the decisions already", MaxTails)
	}
	w := s.config.Decisions.Watch()
	defer w.Close()
	t := tail{request: r, stream: stream}
	recent, _ := s.config.Decisions.Find("", int(min(r.GetRecent(), maxExplanations)))
	sent := make(map[uint64]bool, len(recent)) // of which w may tell again
	for _, e := range slices.Backward(recent) {
		sent[e.Decision.GetId()] = true
		if over, err := t.send(e, 0); over || err != nil {
			return err
		}
	}
	for {
		select {
		case id := <-w.IDs():
			if sent[id] {
				continue
			}
			e, ok := s.config.Decisions.Get(id)
			missed := w.Missed()
			if !ok {
				t.missed += 1 + missed
				continue
			}
			if over, err := t.send(e, missed); over || err != nil {
				return err
			}
		case <-stream.Context().Done():
			return nil
		case <-s.over.Done():
			return nil
		}
	}
}

// tail is one reader.
type tail struct {
	request *schedulerv1.TailDecisionsRequest
	stream  grpc.ServerStreamingServer[schedulerv1.TailDecisionsResponse]
	missed  uint64 // not told of yet
	sent    uint32
}

// send sends a decision, if it is one of those that are wanted; over says that there were enough.
func (t *tail) send(e decisions.Entry, missed uint64) (over bool, err error) {
	t.missed += missed
	if !wanted(t.request, e.Decision) {
		return false, nil
	}
	x, err := explanation(e, false)
	if err != nil {
		return false, err
	}
	x.Decision.Outcome = nil // it would come for some and not for others
	if !t.request.GetFull() {
		shorten(x, fewCandidates)
	}
	if err := t.stream.Send(&schedulerv1.TailDecisionsResponse{Explanation: x, Missed: t.missed}); err != nil {
		return false, err
	}
	t.missed = 0
	t.sent++
	return t.sent == t.request.GetLimit(), nil
}

func wanted(r *schedulerv1.TailDecisionsRequest, d *decisionv1.Decision) bool {
	if r.GetModel() != "" && r.GetModel() != d.GetRequest().GetModel() {
		return false
	}
	if r.GetEndpoint() != "" && !pickedIs(d, r.GetEndpoint()) {
		return false
	}
	if v := r.GetVerdicts(); len(v) > 0 && !slices.ContainsFunc(d.GetGates(), func(g *decisionv1.GateReport) bool { return slices.Contains(v, g.GetVerdict()) }) {
		return false
	}
	tokens := uint64(0)
	for _, p := range d.GetRequest().GetTokenizedPrompts() {
		tokens = max(tokens, p.GetTokens())
	}
	return tokens >= r.GetMinPromptTokens()
}

// pickedIs reports whether the first pick has an address or a name.
func pickedIs(d *decisionv1.Decision, endpoint string) bool {
	return len(d.GetPicks()) > 0 && slices.ContainsFunc(d.GetCandidates(), func(e *decisionv1.Candidate) bool {
		return e.GetOrdinal() == d.GetPicks()[0] && (e.GetAddress() == endpoint || e.GetName() == endpoint)
	})
}
