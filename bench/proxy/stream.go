package proxy

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc"
)

// What the endpoint picker protocol asks of an answer.
const (
	destination = "x-gateway-destination-endpoint"
	namespace   = "envoy.lb"
	maxChunk    = 62_000 // bytes of body in an answer; more than 64 KB other proxies refuse
)

// stream is one exchange under way.
type stream struct {
	call   grpc.ClientStream
	answer extprocv3.ProcessingResponse
}

// request sends the request and takes its answers: the pick, then the whole body.
func (s *stream) request(x *Exchange) (time.Duration, error) {
	for _, m := range x.request {
		if err := s.send(m); err != nil {
			return 0, err
		}
	}
	complete := time.Now()
	if err := s.send(x.end); err != nil {
		return 0, err
	}
	if err := s.receive(); err != nil {
		return 0, err
	}
	if err := checkPick(&s.answer); err != nil {
		return 0, err
	}
	rest := x.body
	for {
		if err := s.receive(); err != nil {
			return 0, err
		}
		v, ok := s.answer.GetResponse().(*extprocv3.ProcessingResponse_RequestBody)
		if !ok {
			return 0, unexpected(&s.answer, "the body")
		}
		end, err := take(v.RequestBody, &rest)
		if err != nil {
			return 0, err
		}
		if end {
			break
		}
	}
	wait := time.Since(complete)
	if len(rest) > 0 {
		return 0, fmt.Errorf("the body ended %d bytes early", len(rest))
	}
	return wait, nil
}

// response sends the response piece by piece, as it would come from an engine, each after the answer to the one before.
func (s *stream) response(x *Exchange) error {
	if err := s.send(x.headers); err != nil {
		return err
	}
	if err := s.receive(); err != nil {
		return err
	}
	if _, ok := s.answer.GetResponse().(*extprocv3.ProcessingResponse_ResponseHeaders); !ok {
		return unexpected(&s.answer, "response headers")
	}
	for i, m := range x.chunks {
		if err := s.piece(m, x.answer[i], false); err != nil {
			return fmt.Errorf("chunk %d: %w", i, err)
		}
	}
	if err := s.piece(x.finished, nil, true); err != nil {
		return fmt.Errorf("end: %w", err)
	}
	return nil
}

// piece sends one piece of the response and takes it back.
func (s *stream) piece(message, want []byte, last bool) error {
	if err := s.send(message); err != nil {
		return err
	}
	for first := true; first || len(want) > 0; first = false {
		if err := s.receive(); err != nil {
			return err
		}
		v, ok := s.answer.GetResponse().(*extprocv3.ProcessingResponse_ResponseBody)
		if !ok {
			return unexpected(&s.answer, "the response's body")
		}
		end, err := take(v.ResponseBody, &want)
		if err != nil {
			return err
		}
		if end != (last && len(want) == 0) {
			return fmt.Errorf("end of stream is %t with %d bytes to come", end, len(want))
		}
	}
	return nil
}

func (s *stream) send(m []byte) error {
	err := s.call.SendMsg(encoded(m))
	if errors.Is(err, io.EOF) { // the server has ended the call: the reason is in its status
		if reason := s.receive(); reason != nil {
			return reason
		}
	}
	return err
}

func (s *stream) receive() error {
	err := s.call.RecvMsg(&s.answer)
	if errors.Is(err, io.EOF) {
		return errors.New("the server ended the call too early")
	}
	return err
}

// take takes a piece of body off the front of what is to come.
func take(b *extprocv3.BodyResponse, rest *[]byte) (end bool, err error) {
	piece := b.GetResponse().GetBodyMutation().GetStreamedResponse()
	if piece == nil {
		return false, errors.New("a body answer without streamed_response, which Envoy takes for spurious")
	}
	if len(piece.GetBody()) > maxChunk {
		return false, fmt.Errorf("a chunk of %d bytes, more than %d", len(piece.GetBody()), maxChunk)
	}
	after, ok := bytes.CutPrefix(*rest, piece.GetBody())
	if !ok {
		return false, fmt.Errorf("%d bytes that are not those that were sent, with %d to come", len(piece.GetBody()), len(*rest))
	}
	*rest = after
	return piece.GetEndOfStream(), nil
}

// checkPick wants the same pick in a header and in metadata.
func checkPick(m *extprocv3.ProcessingResponse) error {
	v, ok := m.GetResponse().(*extprocv3.ProcessingResponse_RequestHeaders)
	if !ok {
		return unexpected(m, "request headers")
	}
	var header string
	for _, o := range v.RequestHeaders.GetResponse().GetHeaderMutation().GetSetHeaders() {
		if o.GetHeader().GetKey() == destination {
			header = string(o.GetHeader().GetRawValue())
		}
	}
	metadata := m.GetDynamicMetadata().GetFields()[namespace].GetStructValue().GetFields()[destination].GetStringValue()
	if header == "" || header != metadata {
		return fmt.Errorf("picked %q in the header and %q in metadata", header, metadata)
	}
	return nil
}

func unexpected(m *extprocv3.ProcessingResponse, wanted string) error {
	if i := m.GetImmediateResponse(); i != nil {
		return fmt.Errorf("wanted an answer to %s, was refused with %d: %s", wanted, i.GetStatus().GetCode(), i.GetBody())
	}
	return fmt.Errorf("wanted an answer to %s, got %T", wanted, m.GetResponse())
}
