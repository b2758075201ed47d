package scheduling

// maxObjectiveMs bounds what a request may ask for: a day, in ms. More is a slip.
const maxObjectiveMs = 24 * 60 * 60 * 1000

// The ranks of an objective header's spellings: the higher one wins where a request has several.
const (
	objectiveAbsent = iota
	objectivePlain
	objectivePeer
	objectiveOwn
)

// ObjectiveOf is what a request's headers ask of its latency; ok is false where they ask nothing. Each of the two objectives
// has three spellings, of which the first that holds a usable value counts:
//
//	x-sluice-slo-ttft-ms   x-llm-d-slo-ttft-ms   x-slo-ttft-ms
//	x-sluice-slo-tpot-ms   x-llm-d-slo-tpot-ms   x-slo-tpot-ms
//
// A value is a decimal number of ms, above 0 and at most a day, such as 250 or 12.5. Any other value is as no header at all. Of a
// header that is there twice the last usable value counts. It allocates nothing.
func ObjectiveOf(r *Request) (o LatencyObjective, ok bool) {
	ttftRank, tpotRank := objectiveAbsent, objectiveAbsent
	for i := range r.Headers {
		into, seen := &o.TTFTMs, &ttftRank
		rank, tpot := objectiveHeader(r.Headers[i].Name)
		if tpot {
			into, seen = &o.TPOTMs, &tpotRank
		}
		if rank == objectiveAbsent || rank < *seen {
			continue
		}
		if ms, ok := milliseconds(r.Headers[i].Value); ok {
			*into, *seen = ms, rank
		}
	}
	return o, o.TTFTMs > 0 || o.TPOTMs > 0
}

// UnreadObjective reports whether one of these headers has a value that cannot be used, such as 500ms.
func UnreadObjective(r *Request) bool {
	for i := range r.Headers {
		if rank, _ := objectiveHeader(r.Headers[i].Name); rank != objectiveAbsent {
			if _, ok := milliseconds(r.Headers[i].Value); !ok {
				return true
			}
		}
	}
	return false
}

// objectiveHeader is the rank of a header's name, and whether it is of the time per output token.
func objectiveHeader(name string) (rank int, tpot bool) {
	switch name {
	case "x-sluice-slo-ttft-ms":
		return objectiveOwn, false
	case "x-llm-d-slo-ttft-ms":
		return objectivePeer, false
	case "x-slo-ttft-ms":
		return objectivePlain, false
	case "x-sluice-slo-tpot-ms":
		return objectiveOwn, true
	case "x-llm-d-slo-tpot-ms":
		return objectivePeer, true
	case "x-slo-tpot-ms":
		return objectivePlain, true
	}
	return objectiveAbsent, false
}

// mostDigits is how many digits of a number are read: as many as a float64 holds for sure.
const mostDigits = 15

// milliseconds reads digits with at most one point before, among or after them. Both parts of the division are exact, so that a
// number of up to mostDigits digits is read as the nearest one there is; further decimals are dropped.
func milliseconds(text []byte) (ms float64, ok bool) {
	number, scale := uint64(0), uint64(1)
	digits, point := 0, false
	for _, ch := range text {
		switch {
		case ch == '.' && !point:
			point = true
		case ch == '0' && number == 0 && !point: // a leading zero
		case ch < '0' || ch > '9', digits == mostDigits && !point:
			return 0, false
		case digits == mostDigits:
		default:
			number, digits = number*10+uint64(ch-'0'), digits+1
			if point {
				scale *= 10
			}
		}
	}
	ms = float64(number) / float64(scale)
	return ms, ms > 0 && ms <= maxObjectiveMs
}
