package extproc

import (
	"errors"
	"fmt"
	"runtime/debug"
	"sync"
	"time"

	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/transport"
)

// bodyMode is how Envoy sends one direction's body.
type bodyMode = filterv3.ProcessingMode_BodySendMode

const (
	modeNone            = filterv3.ProcessingMode_NONE
	modeStreamed        = filterv3.ProcessingMode_STREAMED
	modeBuffered        = filterv3.ProcessingMode_BUFFERED
	modeBufferedPartial = filterv3.ProcessingMode_BUFFERED_PARTIAL
	modeFullDuplex      = filterv3.ProcessingMode_FULL_DUPLEX_STREAMED
	modeGRPC            = filterv3.ProcessingMode_GRPC
)

// stream is the state machine of one HTTP request. mu serialises the stream's messages with its timer.
type stream struct {
	server *Server
	grpc   extprocv3.ExternalProcessor_ProcessServer
	in     transport.Request // what was received last; not touched by the timer

	mu           sync.Mutex
	started      bool
	observing    bool     // observability mode: never answer
	requestMode  bodyMode // how the request body comes
	responseMode bodyMode // how the response body comes
	served       bool     // counted in server.served
	answered     bool     // an immediate response was sent: the stream is over for us
	deaf         bool     // learning failed once: only keep the messages going
	lastMessage  time.Duration
	timer        *time.Timer
	place        listed // guarded by its list

	request  requestSide
	response responseSide
	out      answers
	spans    spans

	flight   *scheduling.Flight
	decision string // what DecisionHeader says

	// bodyBytes and ownBytes are what keep has counted: of the body, and of everything else.
	bodyBytes, ownBytes int
}

func (s *Server) newStream(g extprocv3.ExternalProcessor_ProcessServer) *stream {
	st, _ := s.streams.Get().(*stream)
	if st == nil {
		st = &stream{}
	}
	st.begin(s, g)
	if st.timer == nil {
		st.timer = time.AfterFunc(s.cfg.PickTimeout, st.timeUp)
	} else {
		st.timer.Reset(s.cfg.PickTimeout)
	}
	return st
}

// begin forgets the stream before, but for memory that is used again.
func (st *stream) begin(s *Server, g extprocv3.ExternalProcessor_ProcessServer) {
	st.server, st.grpc = s, g
	st.started, st.observing, st.answered, st.deaf = false, false, false, false
	st.requestMode, st.responseMode = modeFullDuplex, modeFullDuplex
	st.lastMessage = s.cfg.Now()
	st.place.since = st.lastMessage
	st.request.reset()
	st.response = responseSide{}
	st.spans = spans{}
	st.flight, st.decision, st.out = nil, "", answers{}
}

// finish ends the stream exactly once, whichever way it went.
func (st *stream) finish() {
	// A timer that already fired may be waiting for mu: it must find this stream over, not the next one, so the
	// stream's memory is then left to the garbage collector.
	reusable := st.timer.Stop()
	st.place.in.remove(st)
	st.mu.Lock()
	st.release(scheduling.EndDisconnect)
	st.spans.end()
	st.leave()
	st.letGo(true)
	st.grpc = nil
	st.dropBody()
	st.mu.Unlock()
	st.in.Recycle()
	if reusable {
		st.server.streams.Put(st)
	}
}

// start reads what the first message says about the whole stream.
func (st *stream) start(m *extprocv3.ProcessingRequest) {
	st.started = true
	st.observing = m.GetObservabilityMode()
	if st.observing {
		st.server.cfg.Observer.Noted(NoteObserved)
	}
	// A proxy that does not announce its mode (protocol_config absent, which is not the same as zero) is taken to
	// follow the endpoint picker protocol, whose mode is full duplex.
	if pc := m.GetProtocolConfig(); pc != nil {
		st.requestMode, st.responseMode = pc.GetRequestBodyMode(), pc.GetResponseBodyMode()
	}
}

// handle answers one message.
func (st *stream) handle(m *extprocv3.ProcessingRequest) (err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.lastMessage = st.server.cfg.Now()
	if st.answered {
		return nil
	}
	defer func() {
		if r := recover(); r != nil {
			err = st.recovered(r)
		}
	}()
	if !st.started {
		st.start(m)
	}
	if st.observing {
		return nil
	}
	if md := m.GetMetadataContext(); md != nil {
		st.readMetadata(md)
	}
	if err = st.dispatch(m); err == nil {
		return nil
	}
	if im := (*immediate)(nil); errors.As(err, &im) {
		return st.refuse(im)
	}
	return err
}

func (st *stream) dispatch(m *extprocv3.ProcessingRequest) error {
	switch v := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		return st.onRequestHeaders(v.RequestHeaders)
	case *extprocv3.ProcessingRequest_RequestBody:
		return st.onRequestBody(v.RequestBody)
	case *extprocv3.ProcessingRequest_RequestTrailers:
		return st.onRequestTrailers()
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return st.onResponseHeaders(v.ResponseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return st.onResponseBody(v.ResponseBody)
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return st.onResponseTrailers()
	default:
		st.server.cfg.Observer.Noted(NoteUnknownMessage)
		return nil
	}
}

// recovered keeps a fault of ours from becoming the client's: a request that was not answered yet gets a 500, a
// response that has begun goes on untouched, only unobserved.
func (st *stream) recovered(r any) error {
	st.server.cfg.Observer.Noted(NotePanic)
	st.server.cfg.Logger.Error("panic while serving a stream", "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
	st.deaf = true
	st.release(scheduling.EndError)
	if st.request.replied || st.response.begun {
		return nil
	}
	return st.refuse(&immediate{status: 500, reason: ReasonInternal, message: "the endpoint picker failed on this request"})
}

// ended notes how the peer left.
func (st *stream) ended(err error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.flight == nil || !st.endUnseen(err) {
		return
	}
	if st.response.whole {
		st.responseEnded() // its headers came when the engine had finished
		return
	}
	st.hold()
}

// endUnseen reports whether the stream ended, by the proxy's configuration, before the response did. With response body
// mode NONE the proxy ends the call at the response headers, or, where it does not send those either, right after the
// pick; it then cancels, while a client that leaves shows as EOF.
func (st *stream) endUnseen(err error) bool {
	if st.responseMode != modeNone || st.response.ended {
		return false
	}
	return st.response.begun || !isEOF(err)
}

// release ends the flight, if there still is one.
func (st *stream) release(reason scheduling.EndReason) {
	f := st.flight
	if f == nil {
		return
	}
	st.flight = nil
	now := st.server.cfg.Now()
	outcome := scheduling.Outcome{
		Reason: reason, Status: st.response.status, Usage: st.response.usage(), PromptTokens: st.response.promptTokens(),
	}
	first := st.response.firstTokenSince(f.PickedAt)
	defer st.dropIDs()
	defer f.Done(outcome, now) // whatever the observer does
	st.spans.ended(f, outcome, first, now-f.PickedAt, st.request.Choices)
	st.server.cfg.Observer.Ended(f, outcome, first, now-f.PickedAt)
}

// timeUp ends a wait: for the pick, or for anything at all on a stream that has gone quiet.
func (st *stream) timeUp() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.grpc == nil || st.answered || st.observing {
		return
	}
	cfg := &st.server.cfg
	if !st.request.replied && !st.response.begun {
		if err := st.refuse(&immediate{status: 408, reason: ReasonPickTimeout, message: fmt.Sprintf("the request was not complete after %v", cfg.PickTimeout)}); err != nil {
			cfg.Logger.Debug("the answer to a request that took too long could not be sent", "error", err)
		}
		return
	}
	if st.flight == nil {
		return
	}
	if quiet := cfg.Now() - st.lastMessage; quiet < cfg.IdleTimeout {
		st.timer.Reset(cfg.IdleTimeout - quiet)
		return
	}
	cfg.Observer.Noted(NoteIdle)
	st.release(scheduling.EndDisconnect)
}

// send sends one answer: a *transport.Answer, or a *extprocv3.ProcessingResponse, which may be changed afterwards.
func (st *stream) send(answer any) error {
	if err := st.grpc.SendMsg(answer); err != nil {
		return fmt.Errorf("sending an answer: %w", err)
	}
	return nil
}
