package extproc

import (
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/transport"
)

// pickAtFirstPiece answers the headers and sends the first piece of a passing body back.
func (st *stream) pickAtFirstPiece(b *extprocv3.HttpBody) error {
	r := &st.request
	bodyBytes := max(st.declaredLength(), r.size)
	st.dropBody() // the message has it still
	r.size = 0
	if err := st.pickAtHeaders(bodyBytes); err != nil {
		return err
	}
	return st.passOn(b)
}

// passOn sends a piece of a passing body back.
func (st *stream) passOn(b *extprocv3.HttpBody) error {
	r := &st.request
	if r.over {
		st.server.cfg.Observer.Noted(NoteDuplicateEnd)
		return nil
	}
	r.over = b.GetEndOfStream()
	// A client that is answered already is in a conversation, which may go on for long.
	if r.size += len(b.GetBody()); r.size > st.server.cfg.MaxRequestBodyBytes && !st.response.begun {
		return st.tooLarge(r.size)
	}
	return st.echoRequest([]transport.Piece{st.in.Piece()}, r.over)
}

// isUpgrade reports whether the request turns its connection into something else, such as a WebSocket.
func isUpgrade(r *scheduling.Request) bool {
	_, upgrade := r.Header("upgrade")
	return upgrade || stringHeader(r, ":method") == "CONNECT"
}
