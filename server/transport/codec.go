package transport

import (
	"fmt"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// codec is gRPC's protobuf codec on our own buffers: the one that comes with gRPC always takes gRPC's. It also takes what
// this package encodes and decodes itself.
type codec struct{ buffers mem.BufferPool }

// Name is that of the codec on the wire.
func (codec) Name() string { return "proto" }

// Marshal encodes a message. Small messages take fresh memory, which costs less than giving it back.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if a, ok := v.(*Answer); ok {
		return a.Buffers(), nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return nil, fmt.Errorf("encode %T: not a protobuf message", v)
	}
	size := proto.Size(m)
	options := proto.MarshalOptions{UseCachedSize: true} // the size that was computed just now
	if mem.IsBelowBufferPoolingThreshold(size) {
		b, err := options.MarshalAppend(make([]byte, 0, size), m)
		if err != nil {
			return nil, fmt.Errorf("encode %T: %w", v, err)
		}
		return mem.BufferSlice{mem.SliceBuffer(b)}, nil
	}
	buffer := c.buffers.Get(size)
	b, err := options.MarshalAppend((*buffer)[:0], m)
	if err != nil {
		c.buffers.Put(buffer)
		return nil, fmt.Errorf("encode %T: %w", v, err)
	}
	*buffer = b
	return mem.BufferSlice{mem.NewBuffer(buffer, c.buffers)}, nil
}

// Unmarshal decodes a message, which keeps no part of data; a Request keeps what it needs by a reference of its own.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*Request); ok {
		buffer := data.MaterializeToBuffer(c.buffers)
		defer buffer.Free()
		if err := r.Decode(buffer); err != nil {
			return fmt.Errorf("decode %T: %w", &r.Message, err)
		}
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok {
		return fmt.Errorf("decode %T: not a protobuf message", v)
	}
	buffer := data.MaterializeToBuffer(c.buffers)
	defer buffer.Free()
	if err := proto.Unmarshal(buffer.ReadOnlyData(), m); err != nil {
		return fmt.Errorf("decode %T: %w", v, err)
	}
	return nil
}
