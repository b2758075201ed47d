package extproc

import "errors"

// EndStream says when a stream ends. A stream that ends early costs no message per piece of the answer any more; what is not
// seen then is estimated, as for a proxy that ends its calls early itself.
type EndStream uint8

// The moments. Closing a call in good order is safe for the proxy where it keeps what it sends until it is answered. In full
// duplex mode it does not: a piece of the answer that is on its way when the call ends is lost. The answer may begin at any
// time after the pick, so where its body comes in that mode no stream ends early, nor where the request's comes piece by
// piece after the pick.
const (
	// EndAfterResponse follows every answer to its end.
	EndAfterResponse EndStream = iota
	// EndAfterFirstToken ends the stream when the first token was seen. Lost to this process are the answer's
	// usage and end: prompt tokens are released by then, the rest by estimate.
	EndAfterFirstToken
	// EndAfterPick ends the stream when the whole request was sent on. Lost are the status, the first token's time and the
	// report of who served, too.
	EndAfterPick
)

// errOver ends a stream in good order.
var errOver = errors.New("nothing more is to be learnt on this stream")

// picked ends the stream after the pick, where that is configured.
func (st *stream) picked() error {
	if st.request.passing {
		return nil
	}
	return st.endAt(EndAfterPick)
}

// learnt ends the stream after the first token, where that is configured.
func (st *stream) learnt() error {
	if st.response.firstTokenAt == 0 {
		return nil
	}
	return st.endAt(EndAfterFirstToken)
}

// endAt ends the stream at a moment that has come, where it is the configured one and the proxy keeps the answer's pieces
// until they are answered.
func (st *stream) endAt(moment EndStream) error {
	keeps := st.responseMode != modeFullDuplex && st.responseMode != modeGRPC && st.requestMode != modeGRPC
	if st.server.cfg.EndStream != moment || st.flight == nil || !keeps {
		return nil
	}
	st.hold()
	return errOver
}
