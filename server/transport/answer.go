package transport

import (
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// Piece is a piece of a body in memory that is counted: it may be sent back without being copied. The zero value is an
// empty piece.
type Piece struct{ buffer mem.Buffer }

// NewPiece is a piece in memory of its own, which must not change any more, ever.
func NewPiece(b []byte) Piece { return Piece{mem.SliceBuffer(b)} }

// Bytes are the piece's bytes, good until it is released. They must not be changed.
func (p Piece) Bytes() []byte {
	if p.buffer == nil {
		return nil
	}
	return p.buffer.ReadOnlyData()
}

// Release gives the piece back; it may be under way still.
func (p Piece) Release() {
	if p.buffer != nil {
		p.buffer.Free()
	}
}

// Answer is an encoded message to a proxy, for SendMsg of a stream of a server that NewServer made. It is sent once, but for
// one that Encode made.
type Answer struct {
	message mem.SliceBuffer // all of it, or what goes before a piece
	data    [2]mem.Buffer   // what is sent, where it is sent once
	buffers int
}

// Encode encodes a message that may be sent again and again, by any goroutine.
func Encode(m *extprocv3.ProcessingResponse) (*Answer, error) {
	b, err := proto.Marshal(m)
	return &Answer{message: b}, err
}

// newAnswer is an answer that is sent once; body may be nil.
func newAnswer(message []byte, body mem.Buffer) *Answer {
	a := &Answer{message: message, buffers: 1}
	a.data[0] = &a.message
	if body != nil {
		a.data[1], a.buffers = body, 2
	}
	return a
}

// Buffers are what is sent, for whoever sends to free.
func (a *Answer) Buffers() mem.BufferSlice {
	if a.buffers == 0 {
		return mem.BufferSlice{&a.message} // one for each sending, since gRPC keeps it
	}
	return a.data[:a.buffers]
}

// The fields of a ProcessingResponse down to a piece of a body.
const (
	answerRequestHeaders = 1
	answerRequestBody    = 3
	answerResponseBody   = 4

	fieldResponse         = 1 // of BodyResponse
	fieldBodyMutation     = 3 // of CommonResponse
	fieldStreamedResponse = 3 // of BodyMutation
	fieldStreamedBody     = 1 // of StreamedBodyResponse
	fieldStreamedEnd      = 2
)

// worthSharing is the length from which on a piece is not copied; below that a reference costs more.
const worthSharing = 1 << 10

// maxPrefix is the length of what goes before a piece: five tags with lengths of at most 4 bytes, and the end.
const maxPrefix = 5*(1+4) + 2

// RequestChunk is the answer of full duplex mode that sends bytes from to to of a piece on to the engine, as the last ones
// where end is set. The piece is the caller's still, and may be released before the answer is on its way.
func RequestChunk(p Piece, from, to int, end bool) *Answer {
	return chunk(answerRequestBody, p, from, to, end)
}

// ResponseChunk is the same towards the client.
func ResponseChunk(p Piece, from, to int, end bool) *Answer {
	return chunk(answerResponseBody, p, from, to, end)
}

func chunk(of protowire.Number, p Piece, from, to int, end bool) *Answer {
	n := to - from
	inner := 0 // of StreamedBodyResponse
	if end {
		inner += 2
	}
	if n > 0 {
		inner += sizeOf(n)
	}
	var sizes [4]int // of each message, the outermost last
	sizes[0] = inner
	for i := 1; i < len(sizes); i++ {
		sizes[i] = sizeOf(sizes[i-1])
	}
	inline := 0
	if n < worthSharing {
		inline = n
	}
	b := make([]byte, 0, maxPrefix+inline)
	for i, number := range [...]protowire.Number{of, fieldResponse, fieldBodyMutation, fieldStreamedResponse} {
		b = appendHead(b, number, sizes[len(sizes)-1-i])
	}
	if end {
		b = append(b, fieldStreamedEnd<<3|byte(protowire.VarintType), 1)
	}
	if n == 0 {
		return newAnswer(b, nil)
	}
	b = appendHead(b, fieldStreamedBody, n)
	if inline > 0 {
		return newAnswer(append(b, p.Bytes()[from:to]...), nil)
	}
	return newAnswer(b, p.buffer.Slice(from, to))
}
