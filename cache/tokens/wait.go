package tokens

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-epp/sluice/cache/tokens/memo"
	"github.com/sluice-epp/sluice/cache/tokens/render"
)

// wait is a request that waits for a job.
type wait struct {
	job    *job
	starts bool          // the job is the request's own
	until  time.Time     // the end of its patience
	limit  time.Duration // how much that was
	blame  bool          // the job's servers are to be blamed if it takes too long
}

// errOverdue says why nobody waits for a job any more.
var errOverdue = errors.New("the prompt's length is estimated: others wait in vain for its tokens")

// wait waits for the job. One that somebody has waited for in vain for as long as anybody would is not waited for again:
// prompts that are the same would each pay for a server that hangs, and it would be blamed for one of them only.
func (w *wait) wait(ctx context.Context, at *attempt) (p *memo.Prompt, source string, err error) {
	j := w.job
	if j.overdue.Load() {
		if p = j.result(); p == nil {
			at.job = j
			return nil, render.ReasonTimeout.String(), errOverdue
		}
	}
	timer := time.NewTimer(time.Until(w.until))
	defer timer.Stop()
	reason, blame := render.ReasonTimeout, w.blame
	select {
	case <-j.done:
		at.own = j.prompt
		if w.starts {
			j.call.Expire(false) // a transport may be reading the body still
		}
		return j.prompt, j.source, faultOf(j.err)
	case <-timer.C:
		err = fmt.Errorf("the prompt's length is estimated: its tokens did not come within %v", w.limit.Round(time.Millisecond))
	case <-ctx.Done():
		blame = false
		err = fmt.Errorf("the prompt's length is estimated: %w", context.Cause(ctx))
		if errors.Is(ctx.Err(), context.Canceled) {
			reason = render.ReasonCanceled
		}
	}
	at.job = j
	if blame {
		j.overdue.Store(true)
	}
	if w.starts && !j.call.Expire(blame) {
		j.cancel()
	}
	return nil, reason.String(), err
}

// faultOf is what a decision says of a job's failure; nil where it is the request's own.
func faultOf(err error) error {
	var f *render.Failure
	if err == nil || errors.As(err, &f) && f.OfRequest() {
		return nil
	}
	return fmt.Errorf("the prompt's length is estimated: %w", err)
}

// left is how much of a time may be waited: the producers behind this one need some of it.
func left(remaining time.Duration) time.Duration { return remaining - remaining/8 }
