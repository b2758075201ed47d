package transport

import (
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
)

// Request receives what a proxy sends, one message after the other: it is given to RecvMsg of a stream of a server that
// NewServer made. Nearly all messages are headers and pieces of bodies; these are decoded into memory that is used again
// and again, and a body is not copied. The zero value is ready; one Request serves one stream at a time.
type Request struct {
	// Message is the message that came last. A body in it aliases the buffer that it came in, until the next message comes,
	// unless Keep was called. Request headers are good until Recycle, response headers until those of another response come.
	Message extprocv3.ProcessingRequest

	body  mem.Buffer      // that of the message that came last; nil where it has none
	small mem.SliceBuffer // the same, where nobody counts references to it

	fellBack bool // the last message was left to protobuf, which may have filled any field
	headed   bool // request headers came, which stay good

	requestHeaders, responseHeaders headersMessage
	requestBody                     extprocv3.ProcessingRequest_RequestBody
	responseBody                    extprocv3.ProcessingRequest_ResponseBody
	httpBody                        extprocv3.HttpBody
	config                          extprocv3.ProtocolConfiguration
	toRequest                       extprocv3.ProcessingRequest_RequestHeaders
	toResponse                      extprocv3.ProcessingRequest_ResponseHeaders
}

// headersMessage is the memory of one headers message.
type headersMessage struct {
	http   extprocv3.HttpHeaders
	list   corev3.HeaderMap
	values []corev3.HeaderValue
	text   []byte // what the values alias
}

// Keep is the body of the message that came last, for as long as whoever asks wants it: he has to release it.
func (r *Request) Keep() Piece {
	switch r.body {
	case nil:
		return Piece{}
	case &r.small:
		return Piece{r.small} // which is garbage collected
	}
	r.body.Ref()
	return Piece{r.body}
}

// Piece is the body of the message that came last, as long as no other message comes.
func (r *Request) Piece() Piece { return Piece{r.body} }

// Reset lets go of the last message.
func (r *Request) Reset() {
	if r.body != nil {
		r.body.Free()
		r.body = nil
	}
	r.httpBody.Body = nil
	if r.fellBack {
		proto.Reset(&r.Message)
		r.fellBack = false
	}
	r.Message.Request = nil
	r.Message.MetadataContext, r.Message.ProtocolConfig, r.Message.ObservabilityMode = nil, nil, false
}

// What is kept for the headers of other streams: bytes of text, and headers, of about 100 bytes each.
const (
	maxKeptText    = 64 << 10
	maxKeptHeaders = 512
)

// Recycle is Reset at a stream's end: memory that an unusual stream has needed goes.
func (r *Request) Recycle() {
	r.Reset()
	r.headed = false
	for _, h := range []*headersMessage{&r.requestHeaders, &r.responseHeaders} {
		if cap(h.text) > maxKeptText || cap(h.values) > maxKeptHeaders {
			*h = headersMessage{}
		}
	}
}

// Decode takes a message in, as receiving one does. Of data it keeps a reference until Reset, where a body is in it.
func (r *Request) Decode(data mem.Buffer) error {
	r.Reset()
	b := data.ReadOnlyData()
	if from, to, ok := r.parse(b); ok {
		if to > from {
			if _, uncounted := data.(mem.SliceBuffer); uncounted {
				r.small = b[from:to]
				r.body = &r.small
			} else {
				r.body = data.Slice(from, to)
			}
			r.httpBody.Body = r.body.ReadOnlyData()
		}
		return nil
	}
	proto.Reset(&r.Message)
	r.fellBack = true
	if err := proto.Unmarshal(b, &r.Message); err != nil {
		return err
	}
	for _, body := range [][]byte{r.Message.GetRequestBody().GetBody(), r.Message.GetResponseBody().GetBody()} {
		if len(body) > 0 {
			r.small = body // of its own
			r.body = &r.small
		}
	}
	return nil
}

// The fields of a ProcessingRequest (envoy/service/ext_proc/v3/external_processor.proto) and of what it is made of.
const (
	fieldRequestHeaders  = 2
	fieldResponseHeaders = 3
	fieldRequestBody     = 4
	fieldResponseBody    = 5
	fieldMetadata        = 8
	fieldAttributes      = 9
	fieldObservability   = 10
	fieldProtocolConfig  = 11

	fieldHeaders      = 1 // of HttpHeaders, and of HeaderMap
	fieldHeadersAttrs = 2
	fieldHeadersEnd   = 3

	fieldKey      = 1 // of HeaderValue
	fieldValue    = 2
	fieldRawValue = 3

	fieldBody    = 1 // of HttpBody
	fieldBodyEnd = 2

	fieldRequestMode  = 1 // of ProtocolConfiguration
	fieldResponseMode = 2
)

// parse decodes a message of the usual kinds, and says where in it the body lies. What is anything else, or not well
// formed, is not ok and left to protobuf. Attributes, which nobody here reads, are passed over.
func (r *Request) parse(b []byte) (from, to int, ok bool) {
	seen := uint(0)
	whole := len(b)
	for len(b) > 0 {
		f, n := consumeField(b)
		if n < 0 {
			return 0, 0, false
		}
		at := whole - len(b) + n - len(f.bytes) // where its bytes begin
		b = b[n:]
		if f.number == fieldAttributes && f.kind == protowire.BytesType {
			continue
		}
		if f.number > 31 || seen&(1<<f.number) != 0 {
			return 0, 0, false // repeated fields are merged
		}
		seen |= 1 << f.number
		switch {
		case f.kind == protowire.BytesType && f.number >= fieldRequestHeaders && f.number <= fieldResponseBody && r.Message.Request == nil:
			var inFrom, inTo int
			inFrom, inTo, ok = r.part(f)
			from, to = at+inFrom, at+inTo
		case f.kind == protowire.BytesType && f.number == fieldMetadata:
			m := &corev3.Metadata{}
			ok = proto.Unmarshal(f.bytes, m) == nil
			r.Message.MetadataContext = m
		case f.kind == protowire.VarintType && f.number == fieldObservability:
			r.Message.ObservabilityMode, ok = f.varint != 0, true
		case f.kind == protowire.BytesType && f.number == fieldProtocolConfig:
			ok = r.protocolConfig(f.bytes)
		default:
			ok = false
		}
		if !ok {
			return 0, 0, false
		}
	}
	return from, to, r.Message.Request != nil
}

// part decodes what the message is about.
func (r *Request) part(f field) (from, to int, ok bool) {
	switch f.number {
	case fieldRequestHeaders:
		if r.headed { // the memory of those that came first is theirs
			return 0, 0, false
		}
		r.headed = true
		r.toRequest.RequestHeaders = &r.requestHeaders.http
		r.Message.Request = &r.toRequest
		return 0, 0, r.requestHeaders.decode(f.bytes)
	case fieldResponseHeaders:
		r.toResponse.ResponseHeaders = &r.responseHeaders.http
		r.Message.Request = &r.toResponse
		return 0, 0, r.responseHeaders.decode(f.bytes)
	case fieldRequestBody:
		r.requestBody.RequestBody = &r.httpBody
		r.Message.Request = &r.requestBody
	case fieldResponseBody:
		r.responseBody.ResponseBody = &r.httpBody
		r.Message.Request = &r.responseBody
	}
	return r.decodeBody(f.bytes)
}

// decodeBody decodes an HttpBody, and says where in it the body lies.
func (r *Request) decodeBody(b []byte) (from, to int, ok bool) {
	r.httpBody.EndOfStream = false
	whole := len(b)
	for len(b) > 0 {
		f, n := consumeField(b)
		if n < 0 {
			return 0, 0, false
		}
		b = b[n:]
		switch {
		case f.number == fieldBody && f.kind == protowire.BytesType:
			to = whole - len(b) // the last one counts
			from = to - len(f.bytes)
		case f.number == fieldBodyEnd && f.kind == protowire.VarintType:
			r.httpBody.EndOfStream = f.varint != 0
		default:
			return 0, 0, false
		}
	}
	return from, to, true
}

func (r *Request) protocolConfig(b []byte) bool {
	r.config.RequestBodyMode, r.config.ResponseBodyMode = 0, 0
	for len(b) > 0 {
		f, n := consumeField(b)
		if n < 0 || f.kind != protowire.VarintType {
			return false
		}
		b = b[n:]
		switch f.number {
		case fieldRequestMode:
			r.config.RequestBodyMode = filterv3.ProcessingMode_BodySendMode(int32(f.varint))
		case fieldResponseMode:
			r.config.ResponseBodyMode = filterv3.ProcessingMode_BodySendMode(int32(f.varint))
		default: // nobody here reads it
		}
	}
	r.Message.ProtocolConfig = &r.config
	return true
}

// decode decodes an HttpHeaders. It keeps no part of b.
func (h *headersMessage) decode(b []byte) bool {
	h.http.EndOfStream = false
	h.http.Headers = nil
	for len(b) > 0 {
		f, n := consumeField(b)
		if n < 0 {
			return false
		}
		b = b[n:]
		switch {
		case f.number == fieldHeaders && f.kind == protowire.BytesType && h.http.Headers == nil:
			if !h.decodeList(f.bytes) {
				return false
			}
			h.http.Headers = &h.list
		case f.number == fieldHeadersAttrs && f.kind == protowire.BytesType:
		case f.number == fieldHeadersEnd && f.kind == protowire.VarintType:
			h.http.EndOfStream = f.varint != 0
		default:
			return false
		}
	}
	return true
}

// decodeList decodes a HeaderMap.
func (h *headersMessage) decodeList(b []byte) bool {
	h.text = append(h.text[:0], b...)
	b = h.text
	n := countFields(b)
	if cap(h.values) < n {
		h.values = make([]corev3.HeaderValue, n)
		h.list.Headers = make([]*corev3.HeaderValue, n)
		for i := range h.values {
			h.list.Headers[i] = &h.values[i]
		}
	}
	h.values, h.list.Headers = h.values[:n], h.list.Headers[:n]
	for i := range n {
		f, size := consumeField(b)
		if size < 0 || f.number != fieldHeaders || f.kind != protowire.BytesType || !decodeHeader(f.bytes, &h.values[i]) {
			return false
		}
		b = b[size:]
	}
	return len(b) == 0
}

// countFields is the number of fields that b begins with, as far as it is well formed.
func countFields(b []byte) (count int) {
	for len(b) > 0 {
		_, n := consumeField(b)
		if n < 0 {
			break
		}
		b = b[n:]
		count++
	}
	return count
}

// decodeHeader decodes a HeaderValue; its raw value aliases b.
func decodeHeader(b []byte, v *corev3.HeaderValue) bool {
	v.Key, v.Value, v.RawValue = "", "", nil
	for len(b) > 0 {
		f, n := consumeField(b)
		if n < 0 || f.kind != protowire.BytesType {
			return false
		}
		b = b[n:]
		switch f.number {
		case fieldKey:
			v.Key = nameOf(f.bytes)
			if v.Key == "" && !utf8.Valid(f.bytes) {
				return false
			}
		case fieldValue:
			if !utf8.Valid(f.bytes) {
				return false
			}
			v.Value = string(f.bytes)
		case fieldRawValue:
			v.RawValue = f.bytes
		default:
			return false
		}
	}
	return utf8.ValidString(v.Key)
}

// names are header names that come with nearly every message.
var names = func() map[string]string {
	m := map[string]string{}
	for _, name := range []string{
		":authority", ":method", ":path", ":scheme", ":status", "accept", "accept-encoding", "accept-language", "authorization",
		"cache-control", "connection", "content-encoding", "content-length", "content-type", "date", "server", "traceparent",
		"tracestate", "transfer-encoding", "user-agent", "x-api-key", "x-envoy-external-address", "x-envoy-expected-rq-timeout-ms",
		"x-envoy-upstream-service-time", "x-forwarded-for", "x-forwarded-proto", "x-request-id", "x-stainless-arch",
		"x-stainless-async", "x-stainless-lang", "x-stainless-os", "x-stainless-package-version", "x-stainless-read-timeout",
		"x-stainless-retry-count", "x-stainless-runtime", "x-stainless-runtime-version",
	} {
		m[name] = name
	}
	return m
}()

// nameOf is a header's name as a string.
func nameOf(b []byte) string {
	if name, ok := names[string(b)]; ok {
		return name
	}
	return string(b)
}

// field is a field of a message on the wire.
type field struct {
	number protowire.Number
	kind   protowire.Type
	varint uint64
	bytes  []byte
}

// consumeField reads a field and returns its length, negative where it is no varint and no bytes, or cut short.
func consumeField(b []byte) (f field, n int) {
	number, kind, n := protowire.ConsumeTag(b)
	if n < 0 {
		return f, -1
	}
	f.number, f.kind = number, kind
	var m int
	switch kind {
	case protowire.VarintType:
		f.varint, m = protowire.ConsumeVarint(b[n:])
	case protowire.BytesType:
		f.bytes, m = protowire.ConsumeBytes(b[n:])
	default:
		return f, -1
	}
	if m < 0 {
		return f, -1
	}
	return f, n + m
}
