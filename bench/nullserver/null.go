package main

import (
	"sync"
	"sync/atomic"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// The names under which the endpoint picker protocol carries the pick.
const (
	destination = "x-gateway-destination-endpoint"
	namespace   = "envoy.lb"
)

// maxChunk is the largest body chunk that is sent back, the same as a picker's.
const maxChunk = 62_000

// The answers that are always the same. They are never changed, so all streams share them.
var (
	requestTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{}}}
	responseHeaders = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{}}}
	responseTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{}}}
)

// pickAnswer is the answer that picks an endpoint.
func pickAnswer(pick string) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{
				SetHeaders: []*corev3.HeaderValueOption{{Header: &corev3.HeaderValue{Key: destination, RawValue: []byte(pick)}}}}}}},
		DynamicMetadata: &structpb.Struct{Fields: map[string]*structpb.Value{
			namespace: structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{
				destination: structpb.NewStringValue(pick)}})}},
	}
}

// null answers requests with its picks in turn, made beforehand: what the protocol costs before anything is decided. It speaks full
// duplex in both directions and no other mode. As a picker must, it keeps the body until its end before it answers.
type null struct {
	extprocv3.UnimplementedExternalProcessorServer
	picks []*extprocv3.ProcessingResponse
	next  atomic.Uint64
}

// newNull returns a server that picks these endpoints, of which there is at least one.
func newNull(endpoints []string) *null {
	n := &null{}
	for _, e := range endpoints {
		n.picks = append(n.picks, pickAnswer(e))
	}
	return n
}

// streams keeps the memory of streams that ended.
var streams = sync.Pool{New: func() any { return newStream() }}

// Process serves one HTTP request.
func (n *null) Process(g extprocv3.ExternalProcessor_ProcessServer) error {
	s, _ := streams.Get().(*stream)
	s.grpc = g
	s.pick = n.picks[n.next.Add(1)%uint64(len(n.picks))]
	defer s.release()
	for {
		m, err := g.Recv()
		if err != nil {
			return nil // the proxy is done
		}
		if err := s.handle(m); err != nil {
			return err
		}
	}
}

// stream is one HTTP request.
type stream struct {
	grpc              extprocv3.ExternalProcessor_ProcessServer
	pick              *extprocv3.ProcessingResponse
	chunks            [][]byte // the request's body as it came
	request, response echo
}

// echo is a message that sends a piece of a body back. Sending serialises a message before it returns, so one message
// serves for all pieces.
type echo struct {
	message *extprocv3.ProcessingResponse
	piece   *extprocv3.StreamedBodyResponse
}

func newStream() *stream {
	piece := func() (*extprocv3.BodyResponse, *extprocv3.StreamedBodyResponse) {
		p := &extprocv3.StreamedBodyResponse{}
		return &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: p}}}}, p
	}
	request, requestPiece := piece()
	response, responsePiece := piece()
	return &stream{
		request: echo{piece: requestPiece, message: &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: request}}},
		response: echo{piece: responsePiece, message: &extprocv3.ProcessingResponse{
			Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: response}}},
	}
}

// dropBodies forgets what was sent on.
func (s *stream) dropBodies() {
	clear(s.chunks)
	s.chunks = s.chunks[:0]
	s.request.piece.Body, s.response.piece.Body = nil, nil
}

// release gives the stream's memory back.
func (s *stream) release() {
	s.dropBodies()
	s.grpc, s.pick = nil, nil
	streams.Put(s)
}

func (s *stream) handle(m *extprocv3.ProcessingRequest) error {
	switch v := m.GetRequest().(type) {
	case *extprocv3.ProcessingRequest_RequestHeaders:
		if v.RequestHeaders.GetEndOfStream() {
			return s.grpc.Send(s.pick)
		}
	case *extprocv3.ProcessingRequest_RequestBody:
		if body := v.RequestBody.GetBody(); len(body) > 0 {
			s.chunks = append(s.chunks, body)
		}
		if v.RequestBody.GetEndOfStream() {
			defer s.dropBodies()
			return s.answer(true)
		}
	case *extprocv3.ProcessingRequest_RequestTrailers:
		defer s.dropBodies()
		if err := s.answer(false); err != nil {
			return err
		}
		return s.grpc.Send(requestTrailers)
	case *extprocv3.ProcessingRequest_ResponseHeaders:
		return s.grpc.Send(responseHeaders)
	case *extprocv3.ProcessingRequest_ResponseBody:
		return s.send(&s.response, v.ResponseBody.GetBody(), v.ResponseBody.GetEndOfStream())
	case *extprocv3.ProcessingRequest_ResponseTrailers:
		return s.grpc.Send(responseTrailers)
	}
	return nil
}

// answer sends the pick and the whole body back; end says that the body ends the request.
func (s *stream) answer(end bool) error {
	if err := s.grpc.Send(s.pick); err != nil {
		return err
	}
	if len(s.chunks) == 0 && end {
		return s.send(&s.request, nil, true)
	}
	for i, c := range s.chunks {
		if err := s.send(&s.request, c, end && i == len(s.chunks)-1); err != nil {
			return err
		}
	}
	return nil
}

// send sends a piece of a body back, cut to maxChunk.
func (s *stream) send(e *echo, body []byte, end bool) error {
	for len(body) > maxChunk {
		e.piece.Body, e.piece.EndOfStream = body[:maxChunk], false
		if err := s.grpc.Send(e.message); err != nil {
			return err
		}
		body = body[maxChunk:]
	}
	e.piece.Body, e.piece.EndOfStream = body, end
	return s.grpc.Send(e.message)
}
