package extproc

import (
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// Answers that carry nothing. They are never changed, so all streams share them.
var (
	continueRequestHeaders = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{}}}
	continueRequestBody = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{}}}
	continueRequestTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{}}}
	continueResponseHeaders = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{}}}
	continueResponseBody = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{}}}
	continueResponseTrailers = &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{}}}
)

// answers makes a stream's messages. Sending a message serialises it before it returns, so the chunk messages are used
// again and again; they alias the body that they carry only until then.
type answers struct {
	request, response chunkMessage
}

// chunkMessage is a body answer in full duplex mode.
type chunkMessage struct {
	message *extprocv3.ProcessingResponse
	chunk   *extprocv3.StreamedBodyResponse
}

func (m *chunkMessage) with(body []byte, end bool, wrap func(*extprocv3.BodyResponse) *extprocv3.ProcessingResponse) *extprocv3.ProcessingResponse {
	if m.message == nil {
		m.chunk = &extprocv3.StreamedBodyResponse{}
		m.message = wrap(&extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
			Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: m.chunk}}}})
	}
	m.chunk.Body, m.chunk.EndOfStream = body, end
	return m.message
}

func (a *answers) requestChunk(body []byte, end bool) *extprocv3.ProcessingResponse {
	return a.request.with(body, end, func(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: b}}
	})
}

func (a *answers) responseChunk(body []byte, end bool) *extprocv3.ProcessingResponse {
	return a.response.with(body, end, func(b *extprocv3.BodyResponse) *extprocv3.ProcessingResponse {
		return &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: b}}
	})
}

// release drops the bodies that the chunk messages still point to.
func (a *answers) release() {
	if a.request.chunk != nil {
		a.request.chunk.Body = nil
	}
	if a.response.chunk != nil {
		a.response.chunk.Body = nil
	}
}

// mutation carries the pick as a request header; it overwrites one that the client sent.
func (st *stream) mutation(pick string) *extprocv3.HeaderMutation {
	m := &extprocv3.HeaderMutation{}
	m.SetHeaders = append(m.SetHeaders, setHeader(DestinationHeader, []byte(pick)))
	if st.server.cfg.ConformanceHeaders {
		m.RemoveHeaders = append(m.RemoveHeaders, selectionHeader)
	}
	return m
}

// pickMetadata carries the pick as dynamic metadata, for proxies that read it there.
func pickMetadata(pick string) *structpb.Struct {
	inner := &structpb.Struct{Fields: map[string]*structpb.Value{DestinationHeader: structpb.NewStringValue(pick)}}
	return &structpb.Struct{Fields: map[string]*structpb.Value{MetadataNamespace: structpb.NewStructValue(inner)}}
}

func (a *answers) requestHeaders(m *extprocv3.HeaderMutation, pick string) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: m}}},
		DynamicMetadata: pickMetadata(pick),
	}
}

// requestBody is the body answer of the buffered modes; a nil body leaves the body as it is.
func (a *answers) requestBody(m *extprocv3.HeaderMutation, pick string, body []byte) *extprocv3.ProcessingResponse {
	common := &extprocv3.CommonResponse{HeaderMutation: m}
	if body != nil {
		common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
	}
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}},
		DynamicMetadata: pickMetadata(pick),
	}
}

func (a *answers) requestTrailers(pick string) *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}},
		DynamicMetadata: pickMetadata(pick),
	}
}
