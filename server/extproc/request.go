package extproc

import (
	"bytes"
	"errors"
	"fmt"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
	"github.com/sluice-epp/sluice/server/transport"
)

// rewriteHeaders name the model that a gateway wants the engine to see instead of the client's.
var rewriteHeaders = [...]string{"x-gateway-model-name-rewrite", "x-llm-d-model-name-rewrite"}

// rewriteOf is the model that a gateway wants, empty where it wants none.
func rewriteOf(r *scheduling.Request) string {
	for _, name := range rewriteHeaders {
		if v := stringHeader(r, name); v != "" {
			return v
		}
	}
	return ""
}

// selectionHeader limits the candidates in conformance tests.
const selectionHeader = "test-epp-endpoint-selection"

// requestSide is what a stream knows of its request.
type requestSide struct {
	scheduling.Request
	subset  subset
	chunks  []transport.Piece // the body as it came, until it was answered
	joined  *[]byte           // the body in one piece, where it came in several
	size    int               // bytes in chunks
	info    openai.Info
	rewrite string
	begun   bool   // the headers came
	partial bool   // the proxy cut the body short
	crumbs  []byte // the last chunk, where it is a buffer of our own, with room for more
	replied bool   // the pick or an error was sent
	passing bool   // full duplex, and nothing in the body is read: it goes back as it comes
	over    bool   // the end of a body that is not kept was told
}

func (r *requestSide) reset() {
	r.Request.Reset()
	*r = requestSide{Request: r.Request, subset: subset{entries: r.subset.entries[:0]}, chunks: r.chunks[:0]}
}

// maxKeptBody bounds the buffers that are kept for bodies in several pieces.
const maxKeptBody = 1 << 20

// dropBody forgets the body: answers, unlike requests, may take minutes.
func (st *stream) dropBody() {
	r := &st.request
	for _, c := range r.chunks {
		c.Release()
	}
	clear(r.chunks)
	r.chunks, r.crumbs, r.Body = r.chunks[:0], nil, nil
	if r.joined != nil && cap(*r.joined) <= maxKeptBody {
		st.server.joined.Put(r.joined)
	}
	r.joined = nil
	st.letGo(false)
}

func (st *stream) onRequestHeaders(h *extprocv3.HttpHeaders) error {
	r := &st.request
	if r.begun {
		st.server.cfg.Observer.Noted(NoteUnknownMessage)
		return nil
	}
	r.begun = true
	r.ID = st.server.nextID.Add(1)
	if err := st.admit(h.GetHeaders()); err != nil {
		return err
	}
	if stringHeader(&r.Request, ":method") == "POST" {
		r.Operation = openai.OperationOf(stringHeader(&r.Request, ":path"))
	}
	r.rewrite = rewriteOf(&r.Request)
	st.spans.start(st.grpc.Context(), &st.server.cfg, &r.Request)
	if length := contentLength(&r.Request); length > st.server.cfg.MaxRequestBodyBytes && st.requestMode != modeNone {
		return st.tooLarge(length)
	} else if err := st.room(length); err != nil {
		return err
	}
	switch {
	case h.GetEndOfStream():
		return st.pickAtHeaders(0)
	case st.requestMode == modeNone, st.requestMode == modeStreamed, st.requestMode == modeGRPC:
		// The body comes too late for the pick, or never: its declared length is all that is known of the load.
		return st.pickAtHeaders(st.declaredLength())
	case st.requestMode == modeBuffered, st.requestMode == modeBufferedPartial:
		// Envoy sends the body only after this answer.
		return st.send(continueRequestHeaders)
	case r.Operation == scheduling.OperationOther && isUpgrade(&r.Request):
		r.passing = true // what follows is no body, and begins only after the answer
		return st.pickAtHeaders(0)
	default:
		return nil // full duplex: the answer may wait for the body
	}
}

func (st *stream) pickAtHeaders(bodyBytes int) error {
	st.request.PromptBytes = bodyBytes
	if err := st.pickToCarry(); err != nil {
		return err
	}
	if err := st.send(st.out.requestHeaders()); err != nil {
		return err
	}
	return st.picked()
}

// declaredLength is the body's length as the headers give it. It is only the client's word, and counts as at most the
// largest body: one header must not fill an engine.
func (st *stream) declaredLength() int {
	return min(contentLength(&st.request.Request), st.server.cfg.MaxRequestBodyBytes)
}

func (st *stream) onRequestBody(b *extprocv3.HttpBody) error {
	r := &st.request
	switch st.requestMode {
	case modeStreamed:
		st.noteIf(r.over, NoteDuplicateEnd) // Envoy waits for an answer to each message all the same
		r.over = r.over || b.GetEndOfStream()
		return st.send(continueRequestBody)
	case modeGRPC:
		if r.over {
			st.server.cfg.Observer.Noted(NoteDuplicateEnd)
			return nil
		}
		r.over = b.GetEndOfStream()
		piece := st.in.Piece()
		return st.send(transport.RequestChunk(piece, 0, len(piece.Bytes()), b.GetEndOfStream()))
	}
	if r.passing {
		return st.passOn(b)
	}
	if r.replied {
		// Envoy may deliver the last chunk again after the end (envoyproxy/envoy issue 46237).
		st.server.cfg.Observer.Noted(NoteDuplicateEnd)
		return nil
	}
	r.add(st.in.Keep())
	if r.size > st.server.cfg.MaxRequestBodyBytes {
		return st.tooLarge(r.size)
	}
	if err := st.keep(len(b.GetBody()), true); err != nil {
		return err
	}
	switch {
	case st.requestMode == modeBuffered:
		return st.replyBuffered()
	case st.requestMode == modeBufferedPartial:
		r.partial = !b.GetEndOfStream()
		return st.replyBuffered()
	case b.GetEndOfStream():
		return st.replyFullDuplex(false)
	case r.Operation == scheduling.OperationOther && r.size > 0:
		// Nothing in the body is read. Its first piece and its declared length tell the load; waiting for the end would
		// stop a client that waits for an answer in between, as bidirectional gRPC does, and keep whole uploads.
		r.passing = true
		return st.pickAtFirstPiece(b)
	}
	return nil
}

// A client that sends its body in crumbs must not cost a message's memory for each: after manyChunks chunks, those below
// crumb bytes are gathered in buffers of gathered bytes.
const (
	manyChunks = 16
	crumb      = 1 << 10
	gathered   = 16 << 10
)

// add takes over a piece of the body.
func (r *requestSide) add(p transport.Piece) {
	piece := p.Bytes()
	n := len(r.chunks)
	if r.size += len(piece); len(piece) > 0 && (n < manyChunks || len(piece) >= crumb) {
		r.chunks, r.crumbs = append(r.chunks, p), nil
		return
	}
	defer p.Release()
	if len(piece) == 0 {
		return
	}
	if r.crumbs == nil || len(r.crumbs)+len(piece) > cap(r.crumbs) {
		r.crumbs = make([]byte, 0, gathered)
		r.chunks = append(r.chunks, transport.Piece{})
		n++
	}
	r.crumbs = append(r.crumbs, piece...)
	r.chunks[n-1] = transport.NewPiece(r.crumbs)
}

func (st *stream) onRequestTrailers() error {
	if st.request.replied {
		return st.send(continueRequestTrailers)
	}
	switch st.requestMode {
	case modeBuffered, modeBufferedPartial:
		// No body came at all. Headers can no longer be changed; the metadata carries the pick.
		if err := st.pickToCarry(); err != nil {
			return err
		}
		return st.send(st.out.requestTrailers())
	default:
		return st.replyFullDuplex(true)
	}
}

func (st *stream) tooLarge(size int) error {
	limit, key := st.server.cfg.MaxRequestBodyBytes, "its maxRequestBodyBytes"
	if limit == st.server.cfg.MaxBufferedBytes/2 { // lowered to that, or as good as
		key = "half of its maxBufferedBytes"
	}
	return &immediate{status: 413, reason: ReasonTooLarge, message: fmt.Sprintf(
		"the request body (%d bytes or more) is larger than this endpoint picker takes (%d bytes, %s)", size, limit, key)}
}

// replyBuffered picks in the body answer. The body stays with Envoy unless the model name changes.
func (st *stream) replyBuffered() error {
	if err := st.pickToCarry(); err != nil {
		return err
	}
	r := &st.request
	defer st.dropBody()
	var body []byte
	if r.rewrite != "" && !r.partial && r.info.Model.End > r.info.Model.Start {
		pieces := openai.SpliceModel(r.Body, r.info.Model, r.rewrite)
		st.out.set = append(st.out.set, contentLengthOf(pieces[:]))
		body = bytes.Join(pieces[:], nil)
	}
	if err := st.send(st.out.requestBody(body)); err != nil {
		return err
	}
	return st.picked()
}

// contentLengthOf is the content-length header of a body in pieces.
func contentLengthOf(pieces [][]byte) *corev3.HeaderValueOption {
	n := 0
	for _, p := range pieces {
		n += len(p)
	}
	return setHeader("content-length", strconv.AppendInt(nil, int64(n), 10))
}

// replyFullDuplex picks and sends everything back: headers, the whole body, trailers where there were any. Envoy sends
// on only what comes back, so nothing may be left out.
func (st *stream) replyFullDuplex(trailers bool) error {
	if err := st.pickToCarry(); err != nil {
		return err
	}
	r := &st.request
	defer st.dropBody()
	chunks := r.chunks
	if r.rewrite != "" && r.info.Model.End > r.info.Model.Start {
		pieces := openai.SpliceModel(r.Body, r.info.Model, r.rewrite)
		chunks = []transport.Piece{transport.NewPiece(bytes.Join(pieces[:], nil))} // the body itself is needed no longer
		if _, announced := r.Header("content-length"); announced {
			// Envoy drops it in this mode, unless allow_content_length_header keeps it: then it must be right.
			st.out.set = append(st.out.set, contentLengthOf(pieces[:]))
		}
	}
	if err := st.send(st.out.requestHeaders()); err != nil {
		return err
	}
	if err := st.echoRequest(chunks, !trailers); err != nil {
		return err
	}
	if trailers {
		if err := st.send(continueRequestTrailers); err != nil {
			return err
		}
	}
	return st.picked()
}

// maxChunk is the largest body chunk that is sent back: other proxies than Envoy refuse more than 64 KB in a message.
const maxChunk = 62_000

// echoRequest sends chunks back, cut to maxChunk; the last message carries the end of the stream where last is set.
func (st *stream) echoRequest(chunks []transport.Piece, last bool) error {
	if len(chunks) == 0 && last {
		return st.send(transport.RequestChunk(transport.Piece{}, 0, 0, true))
	}
	for i, c := range chunks {
		for at, n := 0, len(c.Bytes()); ; {
			to := min(n, at+maxChunk)
			if err := st.send(transport.RequestChunk(c, at, to, last && to == n && i == len(chunks)-1)); err != nil {
				return err
			}
			if at = to; at == n {
				break
			}
		}
	}
	return nil
}

// body is the request's body in one piece. A body of one chunk is not copied.
func (st *stream) body() []byte {
	r := &st.request
	switch len(r.chunks) {
	case 0:
		return nil
	case 1:
		return r.chunks[0].Bytes()
	}
	r.joined, _ = st.server.joined.Get().(*[]byte)
	if r.joined == nil {
		r.joined = new([]byte)
	}
	b := (*r.joined)[:0]
	if cap(b) < r.size {
		b = make([]byte, 0, r.size)
	}
	for _, c := range r.chunks {
		b = append(b, c.Bytes()...)
	}
	*r.joined = b
	return b
}

// scan reads the body. What is only unusual goes on to the engine, which is the judge; bytes that are not JSON at all
// are refused here, unless something other than JSON was announced.
func (st *stream) scan() error {
	r := &st.request
	body := st.body()
	if unread(&r.Request, body) {
		r.PromptBytes = max(r.PromptBytes, len(body))
		return nil
	}
	scan := st.server.scanner.Scan
	if r.partial {
		st.server.cfg.Observer.Noted(NotePartialBody)
		scan = st.server.scanner.ScanPartial
	}
	info, err := scan(r.Operation, body, &r.Request)
	r.info = info
	st.noteIf(info.TooDeep, NoteBodyTooDeep)
	st.noteIf(info.SpansDropped > 0, NoteSpansDropped)
	st.noteIf(info.Opaque, NoteOpaqueBody)
	if errors.Is(err, openai.ErrNotJSON) {
		return &immediate{status: 400, reason: ReasonNotJSON, message: err.Error()}
	}
	if err != nil {
		return fmt.Errorf("reading the request body: %w", err)
	}
	complete(&r.Request, r.rewrite, info)
	return nil
}

// unread reports whether nothing in a body is read: there is none, its path has no API, or it is compressed.
func unread(r *scheduling.Request, body []byte) bool {
	return len(body) == 0 || r.Operation == scheduling.OperationOther || isEncoded(stringHeader(r, "content-encoding"))
}

// complete makes a request whose body was read what the engine will see.
func complete(r *scheduling.Request, rewrite string, info openai.Info) {
	if rewrite != "" {
		r.Model = rewrite
	}
	r.Choices *= max(1, info.Prompts) // each prompt of a batch is answered
}

func (st *stream) noteIf(happened bool, kind string) {
	if happened {
		st.server.cfg.Observer.Noted(kind)
	}
}

// pickToCarry picks and makes the answers carry the pick.
func (st *stream) pickToCarry() error {
	value, err := st.pick()
	if err != nil {
		return err
	}
	st.request.replied = true
	st.carry(value)
	return nil
}

// pick reads the request, asks the scheduler and charges the pick. It returns the value for the proxy.
func (st *stream) pick() (string, error) {
	if err := st.scan(); err != nil {
		return "", err
	}
	cfg := &st.server.cfg
	begin := cfg.Now()
	snapshot, scheduler := cfg.Pool.Snapshot(), cfg.Scheduler()
	c := scheduler.Begin(snapshot, &st.request.Request, begin)
	defer scheduler.End(c)
	if p := st.spans.observe(); p != nil {
		c.Observer = p
	}
	if err := st.restrict(c, snapshot); err != nil {
		cfg.Observer.Picked(c, nil, cfg.Now()-begin)
		st.spans.decided(c, nil)
		return "", err
	}
	ctx := newDeadline(st.grpc.Context(), cfg.ProduceTimeout)
	scheduler.Produce(ctx, c)
	ctx.cancel()
	if err := st.grpc.Context().Err(); err != nil {
		return "", err // the client has gone: nothing to charge
	}
	f, err := scheduler.Commit(c)
	st.flight = f // before anything can fail: a charge that nobody holds stays for good
	cfg.Observer.Picked(c, f, cfg.Now()-begin)
	st.spans.decided(c, f)
	if err != nil {
		return "", &immediate{status: 503, reason: ReasonFilteredOut, message: "no endpoint is left after the scheduling filters"}
	}
	if cfg.DecisionHeader {
		st.decision = describe(c, f)
	}
	return addresses(f), nil
}

// restrict applies the proxy's subset and refuses a request that has no candidate.
func (st *stream) restrict(c *scheduling.Cycle, snapshot *scheduling.Snapshot) error {
	if c.Candidates.Empty() {
		return &immediate{status: 503, reason: ReasonNoEndpoint, message: "no endpoint is ready"}
	}
	if st.request.subset.present {
		c.Restrict(st.request.subset.resolve(snapshot))
	}
	if st.server.cfg.ConformanceHeaders {
		if v := stringHeader(&st.request.Request, selectionHeader); v != "" {
			wanted := subset{entries: splitEntries(v, nil)}
			c.Restrict(wanted.resolve(snapshot))
		}
	}
	if c.Candidates.Empty() {
		return &immediate{status: 503, reason: ReasonNoSubset, message: "none of the endpoints that the proxy allows is ready"}
	}
	return nil
}

// addresses is the pick as the proxy reads it: ordered, separated by commas.
func addresses(f *scheduling.Flight) string {
	if len(f.Picks) == 1 {
		return f.Picks[0].Address
	}
	var b []byte
	for i, e := range f.Picks {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, e.Address...)
	}
	return string(b)
}
