package extproc

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
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

// answers makes a stream's messages. Sending a message serialises it before it returns, so messages are used again and
// again; chunk messages alias the body that they carry only until then.
type answers struct {
	pick              pickMessage
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

// pickMessage is what carries a pick: made once, its value set anew for each request.
type pickMessage struct {
	mutation *extprocv3.HeaderMutation
	header   *corev3.HeaderValue
	metadata *structpb.Struct
	value    *structpb.Value_StringValue
	headers  *extprocv3.ProcessingResponse // the answer to request headers
}

// set makes the message carry this pick, and nothing else of a request before.
func (p *pickMessage) set(pick string) {
	if p.headers == nil {
		p.make()
	}
	p.header.RawValue = append(p.header.RawValue[:0], pick...)
	p.value.StringValue = pick
	p.mutation.SetHeaders = p.mutation.SetHeaders[:1]
	p.mutation.RemoveHeaders = p.mutation.RemoveHeaders[:0]
}

func (p *pickMessage) make() {
	destination := setHeader(DestinationHeader, nil)
	p.header = destination.GetHeader()
	p.mutation = &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{destination}}
	p.value = &structpb.Value_StringValue{}
	namespace := &structpb.Struct{Fields: map[string]*structpb.Value{DestinationHeader: {Kind: p.value}}}
	p.metadata = &structpb.Struct{Fields: map[string]*structpb.Value{MetadataNamespace: structpb.NewStructValue(namespace)}}
	p.headers = &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: p.mutation}}},
		DynamicMetadata: p.metadata,
	}
}

// carry makes the answers carry this pick, as a request header, which overwrites one that the client sent, and as dynamic
// metadata, for proxies that read it there. It returns the header mutation, which may be added to.
func (st *stream) carry(pick string) *extprocv3.HeaderMutation {
	p := &st.out.pick
	p.set(pick)
	if st.server.cfg.ConformanceHeaders {
		p.mutation.RemoveHeaders = append(p.mutation.RemoveHeaders, selectionHeader)
	}
	return p.mutation
}

// requestHeaders is the answer to request headers with the pick that is carried.
func (a *answers) requestHeaders() *extprocv3.ProcessingResponse { return a.pick.headers }

// requestBody is the body answer of the buffered modes with the pick that is carried; a nil body leaves the body as it is.
func (a *answers) requestBody(body []byte) *extprocv3.ProcessingResponse {
	common := &extprocv3.CommonResponse{HeaderMutation: a.pick.mutation}
	if body != nil {
		common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
	}
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}},
		DynamicMetadata: a.pick.metadata,
	}
}

// requestTrailers is the answer to request trailers with the pick that is carried.
func (a *answers) requestTrailers() *extprocv3.ProcessingResponse {
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}},
		DynamicMetadata: a.pick.metadata,
	}
}
