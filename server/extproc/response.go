package extproc

import (
	"bytes"
	"strconv"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
	"github.com/sluice-epp/sluice/server/transport"
)

// conformanceServedHeader tells the protocol's conformance tests which endpoint the proxy reported.
const conformanceServedHeader = "x-conformance-test-served-endpoint"

// responseSide is what a stream knows of its response.
type responseSide struct {
	reader       openai.Response
	status       int
	served       string
	ids          *[]uint32     // memory of the reader, where the client asked for token ids
	firstTokenAt time.Duration // 0: none yet
	begun        bool          // the headers, or anything else, came
	headers      bool          // the headers came
	reading      bool          // reader was told of the headers and is fed the body
	whole        bool          // the headers say that the engine had all of the answer when it sent them
	ended        bool          // what comes now comes twice
}

func (r *responseSide) usage() scheduling.Usage {
	if !r.reading {
		return scheduling.UnknownUsage
	}
	return r.reader.Usage()
}

// firstTokenSince is the time from a pick to the first token; negative where none was seen.
func (r *responseSide) firstTokenSince(picked time.Duration) time.Duration {
	if r.firstTokenAt == 0 {
		return -1
	}
	return r.firstTokenAt - picked
}

// promptTokens is the first prompt's token ids, where the client asked for them and the engine gave them.
func (r *responseSide) promptTokens() []uint32 {
	if r.ids == nil {
		return nil
	}
	return r.reader.PromptTokens()
}

// maxKeptIDs bounds the memory that is kept for token ids of other answers.
const maxKeptIDs = maxKeptBody / 4

// collectIDs makes the reader keep the prompt's token ids.
func (st *stream) collectIDs() {
	r := &st.response
	if r.ids == nil {
		r.ids, _ = st.server.ids.Get().(*[]uint32)
	}
	if r.ids == nil {
		r.ids = new([]uint32)
	}
	r.reader.CollectPromptTokens(*r.ids)
}

// dropIDs forgets the token ids: nobody may read them any more.
func (st *stream) dropIDs() {
	r := &st.response
	if r.ids == nil {
		return
	}
	*r.ids = r.reader.ReleasePromptTokens()
	if cap(*r.ids) <= maxKeptIDs {
		st.server.ids.Put(r.ids)
	}
	r.ids = nil
}

// The response's messages are answered first and learnt from afterwards: whatever learning does, the client's bytes are
// on their way.

func (st *stream) onResponseHeaders(h *extprocv3.HttpHeaders) error {
	r := &st.response
	r.begun, r.headers = true, true
	r.status, _ = strconv.Atoi(string(headerOf(h.GetHeaders(), ":status")))
	if err := st.send(st.responseHeadersAnswer()); err != nil {
		return err
	}
	if st.deaf {
		return nil
	}
	r.whole = st.responseMode == modeNone && isWhole(r.status, h.GetHeaders())
	st.spans.responseBegun(r.status)
	if st.request.Operation != scheduling.OperationOther {
		r.reader.Start(r.status, headerOf(h.GetHeaders(), "content-type"), headerOf(h.GetHeaders(), "content-encoding"))
		r.reader.LimitEvents(st.server.cfg.MaxEventBytes)
		r.reading = true
		if st.request.ReturnTokenIDs && st.flight != nil && st.responseMode != modeNone && r.status < 400 {
			st.collectIDs()
		}
	}
	if h.GetEndOfStream() {
		st.responseEnded()
	}
	return nil
}

// isWhole reports whether an answer with these headers is sent in one piece: errors, JSON, and whatever has a length.
func isWhole(status int, headers *corev3.HeaderMap) bool {
	media, _, _ := bytes.Cut(headerOf(headers, "content-type"), []byte(";"))
	return status >= 400 || len(headerOf(headers, "content-length")) > 0 ||
		bytes.EqualFold(bytes.TrimSpace(media), []byte("application/json"))
}

func (st *stream) responseHeadersAnswer() any {
	var set []*corev3.HeaderValueOption
	if st.decision != "" {
		set = append(set, setHeader(DecisionHeader, []byte(st.decision)))
	}
	if st.server.cfg.ConformanceHeaders {
		served := st.response.served
		if served == "" {
			served = "fail: the proxy reported no served endpoint"
		}
		set = append(set, setHeader(conformanceServedHeader, []byte(served)))
	}
	set = st.pluginHeaders(set)
	if set == nil {
		return continueResponseHeaders
	}
	return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{Response: &extprocv3.CommonResponse{
			HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: set}}}}}
}

func (st *stream) onResponseBody(b *extprocv3.HttpBody) error {
	r := &st.response
	r.begun = true
	if r.ended {
		return st.afterResponse()
	}
	if err := st.echoResponse(b.GetEndOfStream()); err != nil {
		return err
	}
	if st.deaf {
		r.ended = b.GetEndOfStream()
		return nil
	}
	st.learn(b.GetBody())
	if b.GetEndOfStream() {
		st.responseEnded()
		return nil
	}
	return st.learnt()
}

// afterResponse ignores a body message after the end, as onRequestBody does. Where bytes go back, a second end would follow
// the first; in the other modes Envoy waits for an answer to each message.
func (st *stream) afterResponse() error {
	st.server.cfg.Observer.Noted(NoteDuplicateEnd)
	if st.responseMode == modeFullDuplex || st.responseMode == modeGRPC {
		return nil
	}
	return st.send(continueResponseBody)
}

// echoResponse answers a body message: in full duplex the bytes go back, in the other modes they never left Envoy.
func (st *stream) echoResponse(end bool) error {
	piece := st.in.Piece()
	at, n := 0, len(piece.Bytes())
	switch st.responseMode {
	case modeFullDuplex:
		for ; n-at > maxChunk; at += maxChunk {
			if err := st.send(transport.ResponseChunk(piece, at, at+maxChunk, false)); err != nil {
				return err
			}
		}
	case modeGRPC:
	default:
		return st.send(continueResponseBody)
	}
	return st.send(transport.ResponseChunk(piece, at, n, end))
}

// learn feeds a piece of the response's body to the reader.
func (st *stream) learn(body []byte) {
	r := &st.response
	if !r.reading || st.flight == nil {
		return
	}
	r.reader.Push(body)
	switch {
	case r.firstTokenAt == 0 && r.reader.FirstToken():
		r.firstTokenAt = st.server.cfg.Now()
		st.spans.firstToken()
		st.flight.FirstToken(r.firstTokenAt)
	case r.firstTokenAt != 0 && st.flight.WantsChunks():
		st.flight.Chunk(st.server.cfg.Now())
	}
}

func (st *stream) onResponseTrailers() error {
	st.response.begun = true
	if err := st.send(continueResponseTrailers); err != nil {
		return err
	}
	if !st.deaf && !st.response.ended {
		st.responseEnded()
	}
	return nil
}

// responseEnded releases the charge at the end of the response, without waiting for the end of the stream.
func (st *stream) responseEnded() {
	r := &st.response
	r.ended = true
	if st.flight == nil {
		return
	}
	if !r.headers {
		st.unanswered()
	}
	if r.status >= 400 {
		st.release(scheduling.EndError)
		return
	}
	reason := scheduling.EndComplete
	if r.reading && r.reader.Failed() { // engines that fail after the headers can say it in the body only
		reason = scheduling.EndError
	}
	st.noteIf(r.reading && r.reader.Encoded(), NoteEncodedAnswer)
	st.noteIf(r.reading && r.reader.Malformed() > 0, NoteMalformedAnswer)
	st.noteIf(r.reading && r.reader.Oversized() > 0, NoteEventTooLarge)
	st.noteIf(r.reading && r.reader.PromptTokensDropped(), NoteTokensDropped)
	st.noteIf(r.reading && reason == scheduling.EndComplete && r.usage() == scheduling.UnknownUsage, NoteNoUsage)
	st.release(reason)
}
