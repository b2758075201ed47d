package operator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/server/decisions"
	"github.com/sluice-epp/sluice/server/extproc"
)

// usualPath is the path of a draft that names none.
const usualPath = "/v1/chat/completions"

// DryRun decides about a request that is not there: it charges nothing and learns nothing.
func (s *Service) DryRun(ctx context.Context, r *schedulerv1.DryRunRequest) (*schedulerv1.DryRunResponse, error) {
	d, err := s.try(ctx, r.GetPath(), r.GetHeaders(), r.GetBody(), r.GetBodyText(), r.GetSubset())
	if err != nil {
		return nil, err
	}
	x, err := explanation(d, true)
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	shorten(x, int(r.GetMaxCandidates()))
	return &schedulerv1.DryRunResponse{Explanation: x}, nil
}

// LookupPrefix says what each endpoint's cache is believed to hold of a prompt.
func (s *Service) LookupPrefix(ctx context.Context, r *schedulerv1.LookupPrefixRequest) (*schedulerv1.LookupPrefixResponse, error) {
	e, err := s.try(ctx, r.GetPath(), nil, r.GetBody(), r.GetBodyText(), nil)
	if err != nil {
		return nil, err
	}
	d := e.Decision
	answer := &schedulerv1.LookupPrefixResponse{TokenizedPrompts: d.GetRequest().GetTokenizedPrompts(), Faults: d.GetFaults()}
	for _, c := range d.GetCandidates() {
		for _, m := range c.GetPrefixCacheMatches() {
			if m.GetCachedBlockCount() > 0 {
				answer.Holders = append(answer.Holders, &schedulerv1.PrefixHolder{Address: c.GetAddress(), Ordinal: c.GetOrdinal(), Match: m})
			}
		}
	}
	slices.SortStableFunc(answer.Holders, func(a, b *schedulerv1.PrefixHolder) int {
		return int(b.GetMatch().GetCachedBlockCount() - a.GetMatch().GetCachedBlockCount())
	})
	return answer, nil
}

// try decides about a draft.
func (s *Service) try(ctx context.Context, path string, headers []*schedulerv1.Header, body []byte, text string, subset []string) (decisions.Entry, error) {
	if len(body) > 0 && text != "" {
		return decisions.Entry{}, status.Error(codes.InvalidArgument, "body and body_text: give one of them")
	}
	if text != "" {
		body = []byte(text)
	}
	if path == "" {
		path = usualPath
	}
	draft := extproc.Draft{Path: path, Body: body, Subset: subset}
	requestID := ""
	for _, h := range headers {
		name := strings.ToLower(h.GetName())
		draft.Headers = append(draft.Headers, scheduling.Header{Name: name, Value: []byte(h.GetValue())})
		if name == "x-request-id" {
			requestID = h.GetValue()
		}
	}
	var e decisions.Entry
	err := s.config.DryRun(ctx, draft, func(c *scheduling.Cycle) {
		e.Scheduler = c.Scheduler()
		e.Decision = record.Of(e.Scheduler, c, record.Meta{
			ClientRequestID: requestID, UnixNano: time.Now().UnixNano(), ConfigHash: e.Scheduler.ConfigHash(),
		})
	})
	switch {
	case errors.Is(err, extproc.ErrDraft):
		return e, status.Error(codes.InvalidArgument, err.Error())
	case err != nil:
		return e, status.FromContextError(err).Err()
	}
	return e, nil
}
