package extproc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

// Draft is a request that is on no stream.
type Draft struct {
	// Path is the request's path; its method is POST.
	Path string
	// Headers are its headers, names in lower case.
	Headers []scheduling.Header
	// Body is its body.
	Body []byte
	// Subset are the endpoints that the proxy would allow, in every form that it may name them in; all without any.
	Subset []string
}

// ErrDraft is what is wrong with a draft itself: an engine, or Sluice before it, would refuse it.
var ErrDraft = errors.New("the request would be refused")

// DryRun decides about a draft as about a request, but charges nothing and learns nothing (see scheduling.Request.Trial):
// no engine computes it. An engine may be asked for its tokens, where exact ones are configured. look may read the cycle until it
// returns; where nothing can be picked it has no Picks. The error is ErrDraft or ctx's.
func (s *Server) DryRun(ctx context.Context, d Draft, look func(c *scheduling.Cycle)) error {
	r := scheduling.Request{ID: s.nextID.Add(1), Operation: openai.OperationOf(d.Path), Headers: d.Headers, Choices: 1, Trial: true}
	if len(d.Body) > s.cfg.MaxRequestBodyBytes {
		return fmt.Errorf("%w: its body has %d bytes, more than maxRequestBodyBytes (%d)", ErrDraft, len(d.Body), s.cfg.MaxRequestBodyBytes)
	}
	if err := s.readDraft(&r, d.Body); err != nil {
		return err
	}
	if err := readable(d.Subset); err != nil {
		return err
	}
	snapshot, scheduler := s.cfg.Pool.Snapshot(), s.cfg.Scheduler()
	c := scheduler.Begin(snapshot, &r, s.cfg.Now())
	defer scheduler.End(c)
	if len(d.Subset) > 0 {
		wanted := subset{entries: d.Subset}
		c.Restrict(wanted.resolve(snapshot))
	}
	bounded := newDeadline(ctx, s.cfg.ProduceTimeout)
	scheduler.Produce(bounded, c)
	bounded.cancel()
	if err := ctx.Err(); err != nil {
		return err
	}
	scheduler.Preview(c)
	look(c)
	return nil
}

// draftFault is a fault of a draft that no request could have. It is an ErrDraft.
type draftFault struct{ words string }

func (f draftFault) Error() string { return f.words }

// Is implements what errors.Is asks.
func (draftFault) Is(target error) bool { return target == ErrDraft }

// readable refuses a subset that names what cannot be an endpoint. A proxy's hint leaves such an entry out, and somebody who
// wrote one would look for the reason in the endpoints.
func readable(subset []string) error {
	for i, entry := range subset {
		if _, err := netip.ParseAddrPort(entry); err == nil {
			continue
		}
		if _, err := netip.ParseAddr(strings.Trim(entry, "[]")); err != nil {
			return draftFault{fmt.Sprintf("subset[%d]: must be ip:port, or an ip for all its ports, got %q", i, entry)}
		}
	}
	return nil
}

// readDraft reads a draft's body as a stream's is read.
func (s *Server) readDraft(r *scheduling.Request, body []byte) error {
	if unread(r, body) {
		r.PromptBytes = len(body)
		return nil
	}
	info, err := s.scanner.Scan(r.Operation, body, r)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDraft, err)
	}
	complete(r, rewriteOf(r), info)
	return nil
}
