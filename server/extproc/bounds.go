package extproc

import (
	"fmt"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"

	"github.com/sluice-epp/sluice/scheduling"
)

// streamBytes is what an open stream counts for beside its headers and body: its goroutines, and what gRPC holds of it. It is
// what one was measured to take, rounded up.
const streamBytes = 20 << 10

// memory counts the bytes that the requests being served hold together.
type memory struct{ used atomic.Int64 }

// keep counts bytes that the stream holds from now on; they go with its body where ofBody is set, else with the stream. The
// error sheds the request: there is no room for them.
func (st *stream) keep(bytes int, ofBody bool) error {
	if ofBody {
		st.bodyBytes += bytes
	} else {
		st.ownBytes += bytes
	}
	limit := int64(st.server.cfg.MaxBufferedBytes)
	if st.server.memory.used.Add(int64(bytes)) <= limit {
		return nil
	}
	// Nobody else is refused for want of what is given back in a moment.
	st.server.memory.used.Add(-int64(bytes))
	if ofBody {
		st.bodyBytes -= bytes
	} else {
		st.ownBytes -= bytes
	}
	return &immediate{status: 429, reason: ReasonShedMemory, message: fmt.Sprintf(
		"the requests that this endpoint picker serves hold its maxBufferedBytes (%d) already", limit)}
}

// letGo says that the body is held no longer, and with everything that nothing is.
func (st *stream) letGo(everything bool) {
	bytes := st.bodyBytes
	st.bodyBytes = 0
	if everything {
		bytes += st.ownBytes
		st.ownBytes = 0
	}
	if bytes > 0 {
		st.server.memory.used.Add(-int64(bytes))
	}
}

// room refuses a request whose declared body would not fit at the moment, before any of it was sent.
func (st *stream) room(declared int) error {
	switch {
	case st.requestMode == modeNone, st.requestMode == modeStreamed, st.requestMode == modeGRPC:
		return nil
	case st.requestMode == modeFullDuplex && st.request.Operation == scheduling.OperationOther: // it passes
		return nil
	}
	used, limit := st.server.memory.used.Load(), int64(st.server.cfg.MaxBufferedBytes)
	if used+int64(declared) <= limit {
		return nil
	}
	return &immediate{status: 429, reason: ReasonShedMemory, message: fmt.Sprintf(
		"a request body of %d bytes does not fit into this endpoint picker's maxBufferedBytes (%d), of which %d are taken",
		declared, limit, used)}
}

// admit reads the request's headers, unless they or what is being served already exceed a bound.
func (st *stream) admit(m *corev3.HeaderMap) error {
	r, cfg := &st.request, &st.server.cfg
	headers := m.GetHeaders()
	bytes := 0
	for _, h := range headers {
		bytes += len(h.GetKey()) + len(h.GetRawValue()) + len(h.GetValue())
	}
	if len(headers) > cfg.MaxRequestHeaders || bytes > cfg.MaxRequestHeaderBytes {
		// The one that says how the client wants to be told.
		r.Headers = append(r.Headers, scheduling.Header{Name: "content-type", Value: headerOf(m, "content-type")})
		return &immediate{status: 431, reason: ReasonHeadersTooLarge, message: fmt.Sprintf(
			"%d request headers of %d bytes are more than this endpoint picker's maxRequestHeaders (%d) or maxRequestHeaderBytes (%d)",
			len(headers), bytes, cfg.MaxRequestHeaders, cfg.MaxRequestHeaderBytes)}
	}
	r.Headers = readHeaders(m, r.Headers)
	if !st.enter() {
		return &immediate{status: 429, reason: ReasonShed, message: fmt.Sprintf(
			"this endpoint picker serves maxOpenStreams (%d) requests at a time", cfg.MaxOpenStreams)}
	}
	return st.keep(streamBytes+bytes, false)
}

// enter makes the stream one of those that are served, if there is room for one more; leave ends that.
func (st *stream) enter() bool {
	s := st.server
	if s.served.Add(1) > int64(s.cfg.MaxOpenStreams) {
		s.served.Add(-1)
		return false
	}
	st.served = true
	return true
}

// leave lets another stream in.
func (st *stream) leave() {
	if st.served {
		st.served = false
		st.server.served.Add(-1)
	}
}

// BufferedBytes is the memory that the requests being served hold, in bytes as Config.MaxBufferedBytes counts them.
func (s *Server) BufferedBytes() int64 { return s.memory.used.Load() }
