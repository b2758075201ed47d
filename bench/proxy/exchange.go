// Package proxy plays Envoy towards an ext_proc server: it sends for each HTTP request the messages that Envoy 1.40 sends
// in full duplex mode, checks every answer, and measures how long the request waits.
package proxy

import (
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/protobuf/proto"
)

// ChunkBytes is how much of a request's body goes into a message. Envoy sends what its connection buffer holds: on
// loopback often a whole body of 256 KiB, over a network what has come in since; this is between the two.
const ChunkBytes = 64 << 10

// Exchange is an HTTP request and its response, as the messages that stand for them, encoded once: what sending costs is
// not the server's.
type Exchange struct {
	body     []byte
	answer   [][]byte
	request  [][]byte // headers, then the body's chunks
	end      []byte   // the end of a body: a message of its own, as for HTTP/1.1
	headers  []byte   // of the response
	chunks   [][]byte // of the response
	finished []byte   // the response's end
}

// NewExchange encodes a chat completion request with this body and a streamed answer in these chunks.
func NewExchange(body []byte, answer [][]byte) (*Exchange, error) {
	x := &Exchange{body: body, answer: answer}
	var err error
	encode := func(m *extprocv3.ProcessingRequest) []byte {
		b, fault := proto.Marshal(m)
		if fault != nil {
			err = fault
		}
		return b
	}
	x.request = append(x.request, encode(requestHeaders(len(body))))
	for rest := body; len(rest) > 0; {
		n := min(len(rest), ChunkBytes)
		x.request = append(x.request, encode(requestBody(rest[:n], false)))
		rest = rest[n:]
	}
	x.end = encode(requestBody(nil, true))
	x.headers = encode(responseHeaders())
	for _, c := range answer {
		x.chunks = append(x.chunks, encode(responseBody(c, false)))
	}
	x.finished = encode(responseBody(nil, true))
	return x, err
}

func headers(pairs ...string) *corev3.HeaderMap {
	m := &corev3.HeaderMap{}
	for i := 0; i+1 < len(pairs); i += 2 {
		m.Headers = append(m.Headers, &corev3.HeaderValue{Key: pairs[i], RawValue: []byte(pairs[i+1])})
	}
	return m
}

func requestHeaders(size int) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{
		Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: &extprocv3.HttpHeaders{Headers: headers(
			":authority", "llm.example.com", ":path", "/v1/chat/completions", ":method", "POST", ":scheme", "http",
			"accept", "application/json", "content-type", "application/json", "user-agent", "OpenAI/Python 1.99.0",
			"content-length", strconv.Itoa(size), "accept-encoding", "gzip, deflate",
			"authorization", "Bearer sk-0123456789abcdef0123456789abcdef", "x-forwarded-proto", "http",
			"x-request-id", "7fb02a5c-c865-4bc9-846e-3a44244aff5a",
		)}},
		ProtocolConfig: &extprocv3.ProtocolConfiguration{
			RequestBodyMode:  filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
		},
	}
}

func requestBody(b []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: b, EndOfStream: end}}}
}

func responseHeaders() *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
		ResponseHeaders: &extprocv3.HttpHeaders{Headers: headers(
			":status", "200", "date", "Mon, 01 Jun 2026 00:00:00 GMT", "server", "uvicorn",
			"content-type", "text/event-stream; charset=utf-8", "x-envoy-upstream-service-time", "42",
		)}}}
}

func responseBody(b []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseBody{
		ResponseBody: &extprocv3.HttpBody{Body: b, EndOfStream: end}}}
}
