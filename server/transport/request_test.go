package transport

import (
	"bytes"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/structpb"
)

// messages are of all kinds and shapes that proxies send.
func messages() []*extprocv3.ProcessingRequest {
	headers := func(end bool, pairs ...string) *extprocv3.HttpHeaders {
		m := &corev3.HeaderMap{}
		for i := 0; i < len(pairs); i += 2 {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
		}
		return &extprocv3.HttpHeaders{Headers: m, EndOfStream: end}
	}
	metadata := &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{"envoy.lb": {Fields: map[string]*structpb.Value{"k": structpb.NewStringValue("v")}}}}
	attributes := map[string]*structpb.Struct{"a": {Fields: map[string]*structpb.Value{"b": structpb.NewBoolValue(true)}}}
	return []*extprocv3.ProcessingRequest{
		{},
		{ObservabilityMode: true},
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers(false, ":method", "POST", "x-own", "\xff\x00", "x-empty", "")},
			ProtocolConfig: &extprocv3.ProtocolConfiguration{RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_GRPC}},
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers(true)}, MetadataContext: metadata, Attributes: attributes},
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Attributes: attributes}}}, //nolint:staticcheck // old proxies send it
		{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{
			Headers: []*corev3.HeaderValue{{Key: "x-text", Value: "in the other field, ü"}, {}}}}}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers(false, ":status", "200", "content-type", "text/event-stream")}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{}, ObservabilityMode: true},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("text"), EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: bytes.Repeat([]byte("long "), 30_000)}}, MetadataContext: metadata},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{EndOfStream: true}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte{0}}}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: &extprocv3.HttpBody{Body: []byte("g"), GrpcMessageCompressed: true}}},
		{Request: &extprocv3.ProcessingRequest_RequestTrailers{RequestTrailers: &extprocv3.HttpTrailers{Trailers: headers(false, "t", "1").GetHeaders()}}},
		{Request: &extprocv3.ProcessingRequest_ResponseTrailers{}},
	}
}

func decoded(t testing.TB, r *Request, wire []byte) error {
	t.Helper()
	c := codec{&buffers{}}
	return c.Unmarshal(split(mem.BufferSlice{mem.SliceBuffer(wire)}, c.buffers), r)
}

// known is a message without what nobody reads: attributes and unknown fields.
func known(m *extprocv3.ProcessingRequest) *extprocv3.ProcessingRequest {
	m, _ = proto.Clone(m).(*extprocv3.ProcessingRequest)
	m.Attributes = nil
	for _, h := range []*extprocv3.HttpHeaders{m.GetRequestHeaders(), m.GetResponseHeaders()} {
		if h != nil {
			h.Attributes = nil //nolint:staticcheck // old proxies send it
		}
	}
	if c := m.ProtocolConfig; c != nil {
		m.ProtocolConfig = &extprocv3.ProtocolConfiguration{RequestBodyMode: c.RequestBodyMode, ResponseBodyMode: c.ResponseBodyMode}
	}
	m.ProtoReflect().SetUnknown(nil)
	return m
}

// One Request decodes all of them one after the other, in any order, as protobuf does.
func TestRequestDecodesAsProtobuf(t *testing.T) {
	var r Request
	all := messages()
	for i := range len(all) * len(all) {
		want := all[(i*7+i/len(all))%len(all)]
		wire, err := proto.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if err := decoded(t, &r, wire); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(known(want), known(&r.Message)) {
			t.Fatalf("message %d (-want +got):\n%s", i, cmp.Diff(known(want), known(&r.Message), protocmp.Transform()))
		}
		if want, got := string(want.GetRequestBody().GetBody())+string(want.GetResponseBody().GetBody()), string(r.Piece().Bytes()); got != want {
			t.Fatalf("message %d: the piece is %d bytes of %d", i, len(got), len(want))
		}
	}
}

// A piece that is kept stays as it is while others come, and request headers stay while others of the stream come.
func TestRequestKeeps(t *testing.T) {
	var r Request
	all := messages()
	send := func(m *extprocv3.ProcessingRequest) {
		t.Helper()
		wire, err := proto.Marshal(m)
		if err == nil {
			err = decoded(t, &r, wire)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	send(all[2])
	headers := r.Message.GetRequestHeaders().GetHeaders().GetHeaders()
	send(all[9])
	kept := r.Keep()
	for _, m := range all[6:] {
		send(m)
	}
	r.Reset()
	if want := all[9].GetRequestBody().GetBody(); !bytes.Equal(kept.Bytes(), want) {
		t.Errorf("%d bytes are kept of %d", len(kept.Bytes()), len(want))
	}
	kept.Release()
	for i, want := range all[2].GetRequestHeaders().GetHeaders().GetHeaders() {
		if !proto.Equal(want, headers[i]) {
			t.Errorf("header %d is %v, want %v", i, headers[i], want)
		}
	}
	if p := r.Keep(); len(p.Bytes()) != 0 {
		t.Errorf("a piece of %d bytes where no message is", len(p.Bytes()))
	}
}

// What a stream with large or many headers has needed does not stay.
func TestRequestForgetsLargeHeaders(t *testing.T) {
	var r Request
	for _, tc := range []struct{ headers, bytes int }{{1, 10}, {1, 100_000}, {5_000, 0}} {
		m := requestHeaders(make([]*corev3.HeaderValue, tc.headers)...)
		for i := range m.GetRequestHeaders().Headers.Headers {
			m.GetRequestHeaders().Headers.Headers[i] = &corev3.HeaderValue{Key: "x", RawValue: make([]byte, tc.bytes)}
		}
		mustDecode(t, &r, m)
		r.Recycle()
		text, headers := cap(r.requestHeaders.text), cap(r.requestHeaders.values)
		if text > maxKeptText || headers > maxKeptHeaders || tc.bytes == 10 && text*headers == 0 {
			t.Errorf("%d headers of %d bytes: room for %d bytes and %d headers is kept", tc.headers, tc.bytes, text, headers)
		}
	}
}

func requestHeaders(headers ...*corev3.HeaderValue) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{
		Headers: &corev3.HeaderMap{Headers: headers}}}}
}

func mustDecode(t *testing.T, r *Request, m *extprocv3.ProcessingRequest) {
	t.Helper()
	wire, err := proto.Marshal(m)
	if err == nil {
		err = decoded(t, r, wire)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What only protobuf reads is gone with its message, too.
func TestRequestForgetsRareFields(t *testing.T) {
	var r Request
	body := &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: &extprocv3.HttpBody{Body: []byte("b")}}}
	rare := proto.Clone(body).(*extprocv3.ProcessingRequest)
	rare.Attributes = map[string]*structpb.Struct{"secret": {}}
	rare.ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 31, protowire.VarintType), 1))
	mustDecode(t, &r, rare)
	r.Recycle()
	mustDecode(t, &r, body)
	if diff := cmp.Diff(body, &r.Message, protocmp.Transform()); diff != "" {
		t.Errorf("after a message with rare fields: %s", diff)
	}
}

// Request headers stay good for the whole stream, whatever a proxy sends after them.
func TestSecondRequestHeadersLeaveTheFirst(t *testing.T) {
	var r Request
	mustDecode(t, &r, requestHeaders(&corev3.HeaderValue{Key: "content-type", RawValue: []byte("application/json")}))
	first := r.Message.GetRequestHeaders().GetHeaders().GetHeaders()[0].GetRawValue()
	mustDecode(t, &r, requestHeaders(&corev3.HeaderValue{Key: "content-type", RawValue: []byte("application/grpc")}))
	if string(first) != "application/json" || string(r.Message.GetRequestHeaders().GetHeaders().GetHeaders()[0].GetRawValue()) != "application/grpc" {
		t.Errorf("the first headers now say %q", first)
	}
}

// Whatever protobuf refuses is refused, and whatever it takes is taken as it does.
func FuzzRequest(f *testing.F) {
	for _, m := range messages() {
		wire, err := proto.Marshal(m)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(wire)
		f.Add(append(wire, wire...))
	}
	f.Add([]byte{0x22, 0x02, 0x0a, 0x05})
	f.Add([]byte{0x12, 0x07, 0x0a, 0x05, 0x0a, 0x03, 0x0a, 0x01, 0xff})
	var r Request
	f.Fuzz(func(t *testing.T, wire []byte) {
		var want extprocv3.ProcessingRequest
		wantErr := proto.Unmarshal(wire, &want)
		err := decoded(t, &r, wire)
		if wantErr != nil {
			return // of what nobody reads the faults do not count either
		}
		if err != nil {
			t.Fatalf("refused: %v", err)
		}
		if !proto.Equal(known(&want), known(&r.Message)) {
			t.Fatalf("got %v, want %v", known(&r.Message), known(&want))
		}
	})
}

func TestAnswers(t *testing.T) {
	c := codec{&buffers{}}
	check := func(what string, a *Answer, want *extprocv3.ProcessingResponse) {
		t.Helper()
		data, err := c.Marshal(a)
		if err != nil {
			t.Fatal(err)
		}
		defer data.Free()
		var got extprocv3.ProcessingResponse
		if err := proto.Unmarshal(data.Materialize(), &got); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		if !proto.Equal(want, &got) {
			t.Errorf("%s (-want +got):\n%s", what, cmp.Diff(want, &got, protocmp.Transform()))
		}
	}
	body := bytes.Repeat([]byte("0123456789"), 10_000)
	pooled := mem.Copy(body, c.buffers)
	defer pooled.Free()
	for _, p := range []Piece{NewPiece(body), {pooled}} {
		for _, cut := range [][2]int{{0, 0}, {0, 1}, {5, 132}, {5, 133}, {0, 127}, {0, 62_000}, {0, len(body)}, {len(body) - 1, len(body)}} {
			for _, end := range []bool{false, true} {
				want := &extprocv3.BodyResponse{Response: &extprocv3.CommonResponse{BodyMutation: &extprocv3.BodyMutation{
					Mutation: &extprocv3.BodyMutation_StreamedResponse{StreamedResponse: &extprocv3.StreamedBodyResponse{
						Body: body[cut[0]:cut[1]], EndOfStream: end}}}}}
				check("request", RequestChunk(p, cut[0], cut[1], end), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestBody{RequestBody: want}})
				check("response", ResponseChunk(p, cut[0], cut[1], end), &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_ResponseBody{ResponseBody: want}})
			}
		}
	}
	for _, pick := range []string{"", "10.0.0.1:8000", strings.Repeat("[fd00::1]:8000,", 16)} {
		common := &extprocv3.CommonResponse{HeaderMutation: &extprocv3.HeaderMutation{SetHeaders: []*corev3.HeaderValueOption{
			{Header: &corev3.HeaderValue{Key: "x-header", RawValue: []byte(pick)}}}}}
		namespace := &structpb.Struct{Fields: map[string]*structpb.Value{"x-header": structpb.NewStringValue(pick)}}
		metadata := &structpb.Struct{Fields: map[string]*structpb.Value{"name.space": structpb.NewStructValue(namespace)}}
		check("pick at headers", PickAtHeaders("x-header", "name.space", pick), &extprocv3.ProcessingResponse{
			Response:        &extprocv3.ProcessingResponse_RequestHeaders{RequestHeaders: &extprocv3.HeadersResponse{Response: common}},
			DynamicMetadata: metadata,
		})
		check("pick at the body", PickAtBody("x-header", "name.space", pick), &extprocv3.ProcessingResponse{
			Response:        &extprocv3.ProcessingResponse_RequestBody{RequestBody: &extprocv3.BodyResponse{Response: common}},
			DynamicMetadata: metadata,
		})
	}
	constant := &extprocv3.ProcessingResponse{Response: &extprocv3.ProcessingResponse_RequestTrailers{RequestTrailers: &extprocv3.TrailersResponse{}}}
	a, err := Encode(constant)
	if err != nil {
		t.Fatal(err)
	}
	check("constant", a, constant)
	check("constant, again", a, constant)
}
