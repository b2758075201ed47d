package record

import (
	"math"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// Ending is what is kept of how a request ended.
type Ending struct {
	// Reason says how the stream ended.
	Reason scheduling.EndReason
	// Status is the HTTP status; 0 where none was seen.
	Status int
	// Usage is what the engine counted.
	Usage scheduling.Usage
	// ServedBy is the address of the endpoint that served, where the proxy reported another one than the pick; else empty.
	ServedBy string
	// FirstToken is the time from the pick to the first token, negative where none was seen; Total that to the end.
	FirstToken, Total time.Duration
}

// EndingOf is the ending of a flight that is about to be released. It holds nothing of the flight's memory.
func EndingOf(f *scheduling.Flight, o scheduling.Outcome, firstToken, total time.Duration) Ending {
	e := Ending{Reason: o.Reason, Status: o.Status, Usage: o.Usage, FirstToken: firstToken, Total: total}
	if f.Endpoint != f.Picks[0] {
		e.ServedBy = f.Endpoint.Address
	}
	return e
}

// Record is the ending as a decision's record has it.
func (e *Ending) Record() *decisionv1.Outcome {
	to := &decisionv1.Outcome{
		Reason: e.Reason.String(), Status: uint32(max(0, e.Status)), ServedBy: e.ServedBy, TotalMs: ms(e.Total),
		PromptTokens: counted(e.Usage.PromptTokens), CachedTokens: counted(e.Usage.CachedTokens), CompletionTokens: counted(e.Usage.CompletionTokens),
	}
	if e.FirstToken >= 0 {
		first := ms(e.FirstToken)
		to.TtftMs = &first
	}
	return to
}

// EndingFrom is Record the other way round. Times that cannot be, as records from outside may have them, are 0 for the whole and
// none for a first token; a reason that is not known is that of a stream that went.
func EndingFrom(o *decisionv1.Outcome) Ending {
	e := Ending{
		Reason: reasonFrom(o.GetReason()), Status: int(o.GetStatus()), ServedBy: o.GetServedBy(), FirstToken: -1,
		Usage: scheduling.Usage{
			PromptTokens: countFrom(o.PromptTokens), CachedTokens: countFrom(o.CachedTokens), CompletionTokens: countFrom(o.CompletionTokens),
		},
	}
	e.Total, _ = durationFrom(o.GetTotalMs())
	if first, ok := durationFrom(o.GetTtftMs()); ok && o.TtftMs != nil {
		e.FirstToken = first
	}
	return e
}

func reasonFrom(name string) scheduling.EndReason {
	for r := scheduling.EndComplete; r <= scheduling.EndUnseen; r++ {
		if r.String() == name {
			return r
		}
	}
	return scheduling.EndDisconnect
}

func countFrom(n *uint64) int {
	if n == nil || *n > math.MaxInt32 {
		return -1
	}
	return int(*n)
}

func durationFrom(ms float64) (time.Duration, bool) {
	const most = float64(math.MaxInt64 / int64(time.Millisecond) / 2)
	if !(ms >= 0 && ms <= most) { // so that NaN is refused
		return 0, false
	}
	return time.Duration(ms * float64(time.Millisecond)), true
}

func ms(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }

// counted is what an engine counted; nil where it did not.
func counted(n int) *uint64 {
	if n < 0 {
		return nil
	}
	v := uint64(n)
	return &v
}
