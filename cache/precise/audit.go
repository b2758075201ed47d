package precise

import "sync/atomic"

// audit compares, request by request, the cached tokens that were predicted at the pick with those that the engine
// reported. An engine recomputes the last token of a prompt that it has whole, so it reports at most
// ⌊(tokens − 1) / block size⌋ blocks; predictions follow that.
type audit struct {
	predicted, reported atomic.Int64 // tokens
	outcomes            [3]atomic.Int64
}

// The outcomes of a prediction.
const (
	predictedExactly = iota
	predictedTooMuch
	predictedTooLittle
)

var outcomeNames = [...]string{predictedExactly: "exact", predictedTooMuch: "over", predictedTooLittle: "under"}

func (a *audit) note(predicted, reported int) {
	a.predicted.Add(int64(predicted))
	a.reported.Add(int64(reported))
	outcome := predictedExactly
	if predicted > reported {
		outcome = predictedTooMuch
	} else if predicted < reported {
		outcome = predictedTooLittle
	}
	a.outcomes[outcome].Add(1)
}
