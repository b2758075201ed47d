package operator

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/server/decisions"
)

// The bounds of an answer. gRPC's clients take 4 MiB unless told otherwise.
const (
	maxExplanations = 100
	maxAnswerBytes  = 3 << 20
)

// explaining is how many calls of Explain work at a time: each decides recorded decisions again, many times over.
const explaining = 4

// Explain returns recorded decisions with what tipped each of them.
func (s *Service) Explain(ctx context.Context, r *schedulerv1.ExplainRequest) (*schedulerv1.ExplainResponse, error) {
	if r.GetId() != 0 && r.GetRequestId() != "" {
		return nil, status.Error(codes.InvalidArgument, "id and request_id: give one of them")
	}
	select {
	case s.working <- struct{}{}:
		defer func() { <-s.working }()
	case <-ctx.Done():
		return nil, status.FromContextError(ctx.Err()).Err()
	}
	limit := int(min(r.GetLimit(), maxExplanations))
	if limit == 0 && r.GetRequestId() != "" {
		limit = maxExplanations
	}
	var found []decisions.Entry
	left := 0
	if r.GetId() != 0 {
		if e, ok := s.config.Decisions.Get(r.GetId()); ok {
			found = append(found, e)
		}
	} else {
		found, left = s.config.Decisions.Find(r.GetRequestId(), max(1, limit))
	}
	if len(found) == 0 {
		return nil, s.notFound(r)
	}
	answer := &schedulerv1.ExplainResponse{LeftOut: uint32(left)}
	bytes := 0
	for i, e := range found {
		if err := ctx.Err(); err != nil {
			return nil, status.FromContextError(err).Err()
		}
		x, err := explanation(e, true)
		if err != nil {
			return nil, status.Error(codes.Internal, err.Error())
		}
		shorten(x, int(r.GetMaxCandidates()))
		if bytes += proto.Size(x); i > 0 && bytes > maxAnswerBytes {
			answer.LeftOut += uint32(len(found) - i)
			break
		}
		answer.Explanations = append(answer.Explanations, x)
	}
	return answer, nil
}

// notFound says what is kept instead.
func (s *Service) notFound(r *schedulerv1.ExplainRequest) error {
	oldest, newest, n := s.config.Decisions.Span()
	if n == 0 {
		return status.Error(codes.NotFound, "there was no decision yet")
	}
	_, room, _ := s.config.Decisions.Size()
	kept := fmt.Sprintf("%d are kept, %d to %d; at most %d (telemetry.maxDecisionBytes)", n, oldest, newest, room)
	switch id := r.GetId(); {
	case id > newest:
		return status.Errorf(codes.NotFound, "decision %d is not there: the newest is %d; %s", id, newest, kept)
	case id != 0:
		return status.Errorf(codes.NotFound, "decision %d is not there: %s", id, kept)
	}
	text := fmt.Sprintf("no decision carries the x-request-id %q: %s", r.GetRequestId(), kept)
	if near := s.config.Decisions.Near(r.GetRequestId()); len(near) > 0 {
		text += Near + strings.Join(near, ", ")
	}
	return status.Error(codes.NotFound, text)
}

// Near stands in an error of Explain before the request ids that are like one that was not found.
const Near = "; near it: "

// explanation is a decision in words; with what would have made it another one where flips is set.
func explanation(e decisions.Entry, flips bool) (*schedulerv1.Explanation, error) {
	d := e.Decision
	x := &schedulerv1.Explanation{Decision: d, Reason: explain.Reason(d), Left: left(d)}
	if !flips {
		return x, nil
	}
	found, err := explain.Flips(e.Scheduler, d)
	if err != nil {
		return nil, fmt.Errorf("deciding again: %w", err)
	}
	for _, f := range found {
		to := &schedulerv1.Flip{
			Input: inputs[f.Input], Plugin: f.Scorer, From: f.From, To: f.To, Pick: uint32(f.Pick), Words: f.Words(d), Size: f.Size(),
		}
		if f.Ordinal >= 0 {
			ordinal := uint32(f.Ordinal)
			to.Ordinal = &ordinal
		}
		x.Flips = append(x.Flips, to)
	}
	return x, nil
}

var inputs = map[explain.Input]schedulerv1.Input{
	explain.InFlight: schedulerv1.Input_INPUT_TOKENS_IN_FLIGHT, explain.Cached: schedulerv1.Input_INPUT_CACHED_BLOCKS,
	explain.Weight: schedulerv1.Input_INPUT_WEIGHT, explain.Tie: schedulerv1.Input_INPUT_TIE,
	explain.PredictedTTFT: schedulerv1.Input_INPUT_PREDICTED_TTFT,
}

// left are the candidates after each filter.
func left(d *decisionv1.Decision) []*schedulerv1.Left {
	var there []uint32
	out := map[string][]uint32{}
	for _, e := range d.GetCandidates() {
		switch e.GetExclusion() {
		case decisionv1.Exclusion_EXCLUSION_STATE, decisionv1.Exclusion_EXCLUSION_SUBSET:
			continue
		case decisionv1.Exclusion_EXCLUSION_FILTER:
			out[e.GetFilteredBy()] = append(out[e.GetFilteredBy()], e.GetOrdinal())
		case decisionv1.Exclusion_EXCLUSION_UNSPECIFIED:
		}
		there = append(there, e.GetOrdinal())
	}
	var all []*schedulerv1.Left
	for _, step := range d.GetFilterSteps() {
		gone := out[step.GetFilter()]
		there = slices.DeleteFunc(slices.Clone(there), func(o uint32) bool { return slices.Contains(gone, o) })
		all = append(all, &schedulerv1.Left{Filter: step.GetFilter(), Ordinals: there})
	}
	return all
}

// shorten leaves the candidates out that say least, beyond a number that is not 0.
func shorten(x *schedulerv1.Explanation, limit int) {
	d := x.GetDecision()
	if limit == 0 || len(d.GetCandidates()) <= limit {
		return
	}
	first := map[uint32]int{}
	for i, pick := range d.GetPicks() {
		first[pick] = len(d.GetPicks()) - i + 1
	}
	for ordinal := range explain.Compared(d) {
		first[ordinal] = max(1, first[ordinal])
	}
	slices.SortStableFunc(d.Candidates, func(a, b *decisionv1.Candidate) int {
		if c := cmp.Compare(first[b.GetOrdinal()], first[a.GetOrdinal()]); c != 0 {
			return c
		}
		return cmp.Compare(b.GetTotal(), a.GetTotal())
	})
	x.CandidatesLeftOut = uint32(len(d.Candidates) - limit)
	d.Candidates = d.Candidates[:limit]
	slices.SortFunc(d.Candidates, func(a, b *decisionv1.Candidate) int { return cmp.Compare(a.GetOrdinal(), b.GetOrdinal()) })
}
