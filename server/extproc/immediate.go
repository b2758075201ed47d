package extproc

import (
	"encoding/json"
	"fmt"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/grpc/codes"

	"github.com/sluice-epp/sluice/scheduling"
)

// The reasons of error answers: the value of ReasonHeader, of the error body's code and of a counter's label.
const (
	ReasonNotJSON         = "not_json"              // 400: the body is not JSON at all
	ReasonTooLarge        = "body_too_large"        // 413: over MaxRequestBodyBytes
	ReasonHeadersTooLarge = "headers_too_large"     // 431: over MaxRequestHeaders or MaxRequestHeaderBytes
	ReasonShedMemory      = "shed_memory"           // 429: MaxBufferedBytes are held
	ReasonPickTimeout     = "pick_timeout"          // 408: the request was not complete in time
	ReasonShed            = "shed"                  // 429: refused to protect the engines
	ReasonNoEndpoint      = "no_endpoint"           // 503: no endpoint is ready
	ReasonNoSubset        = "no_endpoint_in_subset" // 503: none of the subset that the proxy allows is ready
	ReasonFilteredOut     = "no_endpoint_left"      // 503: the profile's filters left none
	ReasonInternal        = "internal"              // 500: a fault of ours
)

// immediate is an answer to the client instead of a pick.
type immediate struct {
	status  int
	reason  string
	message string
}

// Error says what the client is told.
func (i *immediate) Error() string { return fmt.Sprintf("%d %s: %s", i.status, i.reason, i.message) }

// errorTypes are the type names that OpenAI-style clients switch on.
var errorTypes = map[int]string{
	400: "invalid_request_error", 408: "timeout_error", 413: "invalid_request_error",
	429: "rate_limit_error", 431: "invalid_request_error", 500: "api_error", 503: "service_unavailable_error",
}

var grpcCodes = map[int]codes.Code{
	400: codes.InvalidArgument, 408: codes.DeadlineExceeded, 413: codes.ResourceExhausted,
	429: codes.ResourceExhausted, 431: codes.ResourceExhausted, 500: codes.Internal, 503: codes.Unavailable,
}

type errorBody struct {
	Error errorDetail `json:"error"`
}

type errorDetail struct {
	Message string  `json:"message"`
	Type    string  `json:"type"`
	Param   *string `json:"param"`
	Code    string  `json:"code"`
}

// refuse answers the client directly. Nothing follows it on this stream.
func (st *stream) refuse(i *immediate) error {
	st.server.cfg.Observer.Noted(i.reason)
	st.spans.refused(i)
	st.answered, st.request.replied = true, true
	st.release(scheduling.EndError)
	st.dropBody() // what is refused holds nothing, however long its stream stays open
	st.leave()
	return st.send(&extprocv3.ProcessingResponse{
		Response: &extprocv3.ProcessingResponse_ImmediateResponse{ImmediateResponse: st.immediateResponse(i)},
	})
}

func (st *stream) immediateResponse(i *immediate) *extprocv3.ImmediateResponse {
	body, err := json.Marshal(errorBody{errorDetail{Message: i.message, Type: errorTypes[i.status], Code: i.reason}})
	if err != nil { // strings always marshal
		body = []byte(`{"error":{"message":"internal error"}}`)
	}
	headers := []*corev3.HeaderValueOption{
		setHeader("content-type", []byte("application/json")),
		setHeader(ReasonHeader, []byte(i.reason)),
	}
	if i.status == 503 || i.status == 429 {
		seconds := max(1, int(st.server.cfg.RetryAfter.Seconds()))
		headers = append(headers, setHeader("retry-after", strconv.AppendInt(nil, int64(seconds), 10)))
	}
	r := &extprocv3.ImmediateResponse{
		Status:  &typev3.HttpStatus{Code: typev3.StatusCode(i.status)},
		Headers: &extprocv3.HeaderMutation{SetHeaders: headers},
		Body:    body,
		Details: "sluice_" + i.reason,
	}
	if isGRPC(&st.request.Request) {
		r.GrpcStatus = &extprocv3.GrpcStatus{Status: uint32(grpcCodes[i.status])}
		r.Body = []byte(i.message) // becomes grpc-message
	}
	return r
}

// setHeader fills raw_value only: Envoy takes value alone as an empty header, and both as an error.
func setHeader(name string, value []byte) *corev3.HeaderValueOption {
	return &corev3.HeaderValueOption{Header: &corev3.HeaderValue{Key: name, RawValue: value}}
}
