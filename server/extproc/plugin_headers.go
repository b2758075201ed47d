package extproc

import (
	"fmt"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
)

// pluginHeaders appends the headers that plugins add to an answer. An answer that is an error gets none: whoever comes back
// with it would come back to what failed. A plugin that fails costs its header, not the answer.
func (st *stream) pluginHeaders(set []*corev3.HeaderValueOption) (all []*corev3.HeaderValueOption) {
	all = set
	if st.flight == nil || st.response.status >= 400 {
		return all
	}
	defer func() {
		if r := recover(); r != nil {
			st.server.cfg.Observer.Noted(NotePanic)
			st.server.cfg.Logger.Error("panic while adding a header to an answer", "panic", fmt.Sprint(r))
		}
	}()
	for _, a := range st.flight.Scheduler().Answerers() {
		if name, value := a.AnswerHeader(st.flight); name != "" {
			all = append(all, setHeader(name, []byte(value)))
		}
	}
	return all
}

// unanswered notes a flight to whose answer plugins would have added a header, had the proxy shown the answer's headers.
func (st *stream) unanswered() {
	if st.flight == nil || len(st.flight.Scheduler().Answerers()) == 0 {
		return
	}
	st.server.sayMute.Do(func() {
		st.server.cfg.Logger.Warn("the headers of answers do not come here, so that nothing can be added to them, such as session tokens; "+
			"set the proxy's response_header_mode to SEND, and server.endStream to afterResponse",
			"request_body_mode", st.requestMode.String(), "response_body_mode", st.responseMode.String())
	})
	st.server.cfg.Observer.Noted(NoteUnanswered)
}
