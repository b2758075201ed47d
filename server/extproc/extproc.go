// Package extproc serves Envoy's external processing API: one state machine per HTTP request, which reads the request,
// asks the scheduler for an endpoint, answers with it, and follows the response to its end.
//
// The behaviour of each stream follows the processing mode that Envoy announces in protocol_config: where the pick can
// happen, which messages are answered, and whether bodies have to be sent back.
package extproc

import (
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"go.opentelemetry.io/otel/trace"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

// The names that the endpoint picker protocol fixes.
const (
	// DestinationHeader carries the pick, as a request header and as a key in dynamic metadata.
	DestinationHeader = "x-gateway-destination-endpoint"
	// MetadataNamespace is the dynamic metadata namespace of the pick and of the served report.
	MetadataNamespace = "envoy.lb"
	// SubsetNamespace is the metadata namespace in which a proxy limits the candidates.
	SubsetNamespace = "envoy.lb.subset_hint"
	// SubsetKey is the key of that limit: a list of "ip:port".
	SubsetKey = "x-gateway-destination-endpoint-subset"
	// ServedKey is the metadata key under which a proxy reports which endpoint served the request.
	ServedKey = "x-gateway-destination-endpoint-served"
	// ReasonHeader names, in an error answer, why Sluice refused: one of the Reason constants.
	ReasonHeader = "x-sluice-reason"
	// DecisionHeader carries the pick and its reason in a few words, in the response, where Config.DecisionHeader is on.
	DecisionHeader = "x-sluice-decision"
)

// Config is what a Server needs; zero values of the limits mean the defaults that ApplyDefaults sets.
type Config struct {
	// Pool gives the endpoints.
	Pool *scheduling.Pool
	// Scheduler returns the scheduler in force; it may change between calls.
	Scheduler func() *scheduling.Scheduler
	// Now is a monotonic clock: the time since the process started.
	Now func() time.Duration
	// Hold predicts when a request's first token and its end come, counted from now, for requests whose response will
	// not be seen; nil for at once.
	Hold func(f *scheduling.Flight) (firstToken, done time.Duration)
	// MaxRequestBodyBytes is the largest request body; a larger one is answered with 413. Default 64 MiB. Where it is half of
	// MaxBufferedBytes, answers name that as what bounds it.
	MaxRequestBodyBytes int
	// MaxOpenStreams is how many requests are served at a time; further ones are answered with 429. Default 65,536.
	MaxOpenStreams int
	// MaxBufferedBytes bounds what the requests being served hold together, in bytes: their bodies until they are answered,
	// their headers, and streamBytes for each stream. Further requests are answered with 429. What is held is up to three
	// times as much in memory, since a body in pieces is joined, and buffers have sizes of their own. Default 1 GiB.
	MaxBufferedBytes int
	// MaxRequestHeaders and MaxRequestHeaderBytes bound a request's headers in number, and in bytes of their names and
	// values; more are answered with 431. Default 512 and 256 KiB.
	MaxRequestHeaders, MaxRequestHeaderBytes int
	// MaxBodyNesting is how many levels deep a body is read; see openai.Scanner.LimitNesting. Default 512.
	MaxBodyNesting int
	// MaxEventBytes is how much of one event of an answer is read, in bytes. Default 16 MiB.
	MaxEventBytes int
	// PickTimeout bounds the time from a stream's first message to its pick. Default 30 s.
	PickTimeout time.Duration
	// ProduceTimeout bounds the producers of one request. Default 150 ms, below Envoy's 200 ms message timeout.
	ProduceTimeout time.Duration
	// IdleTimeout releases the charge of a stream on which nothing has come for so long. Default 15 min.
	IdleTimeout time.Duration
	// RetryAfter is what a 503 or 429 asks the client to wait. Default 1 s.
	RetryAfter time.Duration
	// Models are names that stay known to the body reader whatever clients send.
	Models []string
	// EndStream says when streams end. Default after the response.
	EndStream EndStream
	// DecisionHeader adds DecisionHeader to responses.
	DecisionHeader bool
	// ConformanceHeaders obeys the request header test-epp-endpoint-selection and reports the served endpoint in
	// x-conformance-test-served-endpoint, as the protocol's conformance tests need. Never on in production.
	ConformanceHeaders bool
	// Observer is told what happens; nil for nobody.
	Observer Observer
	// Tracer makes spans; nil for none.
	Tracer trace.Tracer
	// FollowTraces makes no spans for a request whose caller has a trace that is not recorded, without asking Tracer.
	FollowTraces bool
	// Logger gets what an operator should know.
	Logger *slog.Logger
}

// Observer is told of picks, ends and oddities, from many goroutines. Its methods must not block, and keep nothing that
// they are given.
type Observer interface {
	// Picked is called once per decision. flight is nil when nothing could be picked. took is the time from the
	// request being complete to the decision.
	Picked(c *scheduling.Cycle, flight *scheduling.Flight, took time.Duration)
	// Ended is called when a picked request ends, before its flight is released; firstToken is the time from pick to
	// first token, negative when none was seen.
	Ended(flight *scheduling.Flight, outcome scheduling.Outcome, firstToken, total time.Duration)
	// Noted counts something unusual by its kind (see the Note constants) or an answered error by its reason.
	Noted(kind string)
}

// The kinds that Observer.Noted is called with, beside the Reason constants.
const (
	NoteDuplicateEnd    = "duplicate_end_of_stream" // a body message after the body's end
	NoteServedElsewhere = "served_elsewhere"        // the proxy was served by another endpoint than the pick
	NoteServedUnknown   = "served_unknown"          // the proxy reported an endpoint that is not in the pool
	NotePanic           = "panic"                   // a recovered panic
	NoteIdle            = "idle_stream"             // a charge released because its stream went quiet
	NoteObserved        = "observed"                // a stream in observability mode
	NoteUnknownMessage  = "unknown_message"         // a message of a kind that this version does not know
	NoteHeld            = "release_estimated"       // a charge held for its predicted time
	NoteUnanswered      = "answer_headers_unseen"   // an answer to which a plugin could not add its header
	NoteNoUsage         = "usage_unknown"           // a finished answer without usage
	NotePartialBody     = "partial_body"            // a body that Envoy cut short
	NoteBodyTooDeep     = "body_nesting_limit"      // a body nested deeper than is read
	NoteSpansDropped    = "body_spans_limit"        // a prompt in more pieces than are kept
	NoteOpaqueBody      = "body_opaque"             // a body in UTF-16 or UTF-32: routed by its length
	NoteEventTooLarge   = "answer_event_limit"      // an answer with an event larger than is read
	NoteEncodedAnswer   = "answer_encoded"          // an answer whose content encoding hides its usage
	NoteMalformedAnswer = "answer_malformed"        // an answer that was not JSON where it should be
	NoteTokensDropped   = "answer_tokens_dropped"   // a prompt's token ids in an answer that were too many, or none at all
)

// Kinds are all that Observer.Noted is called with, so that a counter of each can be shown before it first counts.
func Kinds() []string {
	return []string{
		ReasonNotJSON, ReasonTooLarge, ReasonHeadersTooLarge, ReasonPickTimeout, ReasonShed, ReasonShedMemory, ReasonNoEndpoint,
		ReasonNoSubset, ReasonFilteredOut, ReasonInternal,
		NoteDuplicateEnd, NoteServedElsewhere, NoteServedUnknown, NotePanic, NoteIdle, NoteObserved,
		NoteUnknownMessage, NoteHeld, NoteUnanswered, NoteNoUsage, NotePartialBody, NoteBodyTooDeep, NoteSpansDropped,
		NoteOpaqueBody, NoteEventTooLarge, NoteEncodedAnswer, NoteMalformedAnswer, NoteTokensDropped,
	}
}

// ApplyDefaults fills in the limits that are zero.
func (c *Config) ApplyDefaults() {
	setDefault(&c.MaxRequestBodyBytes, 64<<20)
	setDefault(&c.MaxOpenStreams, 1<<16)
	setDefault(&c.MaxBufferedBytes, 1<<30)
	setDefault(&c.MaxRequestHeaders, 512)
	setDefault(&c.MaxRequestHeaderBytes, 256<<10)
	setDefault(&c.MaxBodyNesting, openai.MaxNesting)
	setDefault(&c.MaxEventBytes, 16<<20)
	setDefault(&c.PickTimeout, 30*time.Second)
	setDefault(&c.ProduceTimeout, 150*time.Millisecond)
	setDefault(&c.IdleTimeout, 15*time.Minute)
	setDefault(&c.RetryAfter, time.Second)
	if c.Observer == nil {
		c.Observer = nobody{}
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
}

func setDefault[T int | time.Duration](d *T, v T) {
	if *d == 0 {
		*d = v
	}
}

type nobody struct{}

func (nobody) Picked(*scheduling.Cycle, *scheduling.Flight, time.Duration) {}
func (nobody) Ended(*scheduling.Flight, scheduling.Outcome, time.Duration, time.Duration) {
}
func (nobody) Noted(string) {}

// Server implements the ExternalProcessor service.
type Server struct {
	extprocv3.UnimplementedExternalProcessorServer

	cfg     Config
	streams sync.Pool // of *stream
	joined  sync.Pool // of *[]byte: bodies in one piece
	ids     sync.Pool // of *[]uint32: the prompts' token ids in answers
	nextID  atomic.Uint64
	open    atomic.Int64
	served  atomic.Int64 // of the open streams those that count for MaxOpenStreams
	memory  memory
	lists   [listShards]list // of the open streams
	holds   holds
	sayHeld sync.Once
	sayMute sync.Once
	scanner *openai.Scanner
}

// New returns a server. cfg.Pool, cfg.Scheduler and cfg.Now must be set.
func New(cfg Config) *Server {
	cfg.ApplyDefaults()
	s := &Server{cfg: cfg, scanner: openai.NewScanner(cfg.Models...)}
	s.scanner.LimitNesting(cfg.MaxBodyNesting)
	s.holds.init()
	return s
}

// OpenStreams is the number of streams being served.
func (s *Server) OpenStreams() int64 { return s.open.Load() }

// HeldCharges is the number of charges held for their predicted time after their stream's end.
func (s *Server) HeldCharges() int { return s.holds.len() }

// Close releases every held charge at once. Streams end with the gRPC server.
func (s *Server) Close() { s.holds.close() }

// Process serves one HTTP request.
func (s *Server) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	place := uint64(s.open.Add(1)) % listShards
	defer s.open.Add(-1)
	st := s.newStream(g)
	s.lists[place].add(st)
	defer st.finish()
	for {
		if err := g.RecvMsg(&st.in); err != nil {
			st.ended(err)
			return nil // what the peer did is told by the stream's state, not by the error
		}
		if err := st.handle(&st.in.Message); errors.Is(err, errOver) {
			return nil
		} else if err != nil {
			return err
		}
	}
}

// isEOF tells a peer that left in good order or whose client went (EOF) from a proxy that ended the call (Canceled).
func isEOF(err error) bool { return errors.Is(err, io.EOF) }
