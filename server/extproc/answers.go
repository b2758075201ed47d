package extproc

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-epp/sluice/server/transport"
)

// Answers that carry nothing.
var (
	continueRequestHeaders = encoded(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestHeaders{
		RequestHeaders: &extprocv3.HeadersResponse{}}})
	continueRequestBody = encoded(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{
		RequestBody: &extprocv3.BodyResponse{}}})
	continueRequestTrailers = encoded(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{
		RequestTrailers: &extprocv3.TrailersResponse{}}})
	continueResponseHeaders = encoded(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseHeaders{
		ResponseHeaders: &extprocv3.HeadersResponse{}}})
	continueResponseBody = encoded(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{
		ResponseBody: &extprocv3.BodyResponse{}}})
	continueResponseTrailers = encoded(&extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseTrailers{
		ResponseTrailers: &extprocv3.TrailersResponse{}}})
)

// encoded encodes a message without text, which cannot fail.
func encoded(m *extprocv3.ProcessingResponse) *transport.Answer {
	a, _ := transport.Encode(m)
	return a
}

// answers makes a stream's answers with its pick: a request header, which overwrites one that the client sent, and the same
// as dynamic metadata, for proxies that read it there.
type answers struct {
	pick   string
	set    []*corev3.HeaderValueOption // headers to set besides
	remove []string                    // headers to remove
}

// carry makes the answers carry a pick and nothing else.
func (st *stream) carry(pick string) {
	st.out = answers{pick: pick}
	if st.server.cfg.ConformanceHeaders {
		st.out.remove = []string{selectionHeader}
	}
}

// plain reports whether there is nothing but the pick, as for nearly every request.
func (a *answers) plain() bool { return len(a.set)+len(a.remove) == 0 }

// requestHeaders is the answer to request headers.
func (a *answers) requestHeaders() any {
	if a.plain() {
		return transport.PickAtHeaders(DestinationHeader, MetadataNamespace, a.pick)
	}
	return &extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{
			Response: &extprocv3.CommonResponse{HeaderMutation: a.mutation()}}},
		DynamicMetadata: a.metadata(),
	}
}

// requestBody is the body answer of the buffered modes; a nil body leaves the body as it is.
func (a *answers) requestBody(body []byte) any {
	if a.plain() && body == nil {
		return transport.PickAtBody(DestinationHeader, MetadataNamespace, a.pick)
	}
	common := &extprocv3.CommonResponse{HeaderMutation: a.mutation()}
	if body != nil {
		common.BodyMutation = &extprocv3.BodyMutation{Mutation: &extprocv3.BodyMutation_Body{Body: body}}
	}
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}},
		DynamicMetadata: a.metadata(),
	}
}

// requestTrailers is the answer to request trailers.
func (a *answers) requestTrailers() any {
	return &extprocv3.ProcessingResponse{
		Response:        &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}},
		DynamicMetadata: a.metadata(),
	}
}

func (a *answers) mutation() *extprocv3.HeaderMutation {
	set := append([]*corev3.HeaderValueOption{setHeader(DestinationHeader, []byte(a.pick))}, a.set...)
	return &extprocv3.HeaderMutation{SetHeaders: set, RemoveHeaders: a.remove}
}

func (a *answers) metadata() *structpb.Struct {
	namespace := &structpb.Struct{Fields: map[string]*structpb.Value{DestinationHeader: structpb.NewStringValue(a.pick)}}
	return &structpb.Struct{Fields: map[string]*structpb.Value{MetadataNamespace: structpb.NewStructValue(namespace)}}
}
