package zmtp

import (
	"encoding/binary"
	"math"
	"slices"
)

// Flags of a frame (RFC 37, "Framing").
const (
	flagMore    = 1 << 0
	flagLong    = 1 << 1
	flagCommand = 1 << 2
	flagsKnown  = flagMore | flagLong | flagCommand
)

const (
	inputBytes = 32 << 10
	// growBytes is what a body may grow by before as much has arrived.
	growBytes = 64 << 10
	// keepBytes of a body's buffer are kept for ever, more only while messages need it.
	keepBytes = 256 << 10
	// keepMessages in a row that need less than a quarter of a larger buffer make it go.
	keepMessages = 256
)

// reader takes frames off a stream. What it has of a frame or message survives an error of the stream, so a deadline
// may pass anywhere and reading goes on from there.
type reader struct {
	// source reads from the stream; begun says that a message or frame is under way.
	source              func(p []byte, begun bool) (int, error)
	maxBytes, maxFrames int
	messages            bool // allowed: the peer's READY was read

	input []byte // read and not yet used: input[from:to]
	from  int
	to    int

	open  bool // a frame's head was read, and left bytes of its body are to come
	flags byte
	left  int

	done    bool // body and ends hold a message that was handed out
	body    []byte
	ends    []int // of each frame in body
	frames  [][]byte
	command []byte
	roomy   int // messages in a row that needed little of body
	share   share
	covered int // size of body that share was told of
}

func newReader(source func(p []byte, begun bool) (int, error), o Options) *reader {
	return &reader{
		source: source, maxBytes: o.MaxFrameBytes, maxFrames: o.MaxFrames, input: make([]byte, inputBytes),
		share: share{budget: o.Budget},
	}
}

// greeting reads the peer's greeting, which aliases input until the next call.
func (r *reader) greeting() ([]byte, error) {
	for r.to < greetingBytes {
		if err := r.fill(); err != nil {
			return nil, err
		}
		if err := checkGreeting(r.input[:min(r.to, greetingBytes)]); err != nil {
			return nil, err
		}
	}
	r.from = greetingBytes
	return r.input[:greetingBytes], nil
}

// next reads on until a message or a command is whole. Exactly one of the results is set; both alias the reader's
// buffers until the next call.
func (r *reader) next() (frames [][]byte, command []byte, err error) {
	if r.done {
		r.recycle()
	}
	for {
		if !r.open {
			if err := r.head(); err != nil {
				return nil, nil, err
			}
		}
		into := &r.body
		if r.flags&flagCommand != 0 {
			into = &r.command
		}
		if err := r.fillBody(into); err != nil {
			return nil, nil, err
		}
		r.open = false
		if r.flags&flagCommand != 0 {
			return nil, r.command, nil
		}
		r.ends = append(r.ends, len(r.body))
		if r.flags&flagMore == 0 {
			return r.message(), nil, nil
		}
	}
}

func (r *reader) message() [][]byte {
	r.done = true
	r.frames = r.frames[:0]
	start := 0
	for _, end := range r.ends {
		r.frames = append(r.frames, r.body[start:end:end])
		start = end
	}
	return r.frames
}

// recycle makes room for the next message, in the same buffer unless that one has long been larger than needed.
func (r *reader) recycle() {
	r.done = false
	if cap(r.body) > keepBytes && len(r.body) < cap(r.body)/4 {
		r.roomy++
	} else {
		r.roomy = 0
	}
	if r.roomy >= keepMessages {
		r.body, r.roomy = nil, 0
	}
	r.body, r.ends = r.body[:0], r.ends[:0]
}

// cover makes sure that a buffer of so many bytes is paid for.
func (r *reader) cover(size int) error {
	if size == r.covered {
		return nil
	}
	if err := r.share.cover(size); err != nil {
		return err
	}
	r.covered = size
	return nil
}

// head reads a frame's flags and length and checks them against the bounds.
func (r *reader) head() error {
	if err := r.need(1); err != nil {
		return err
	}
	flags := r.input[r.from]
	if flags&^flagsKnown != 0 {
		return protocolError("a frame with the reserved flags %#02x", flags)
	}
	size := 2
	if flags&flagLong != 0 {
		size = 9
	}
	if err := r.need(size); err != nil {
		return err
	}
	length := uint64(r.input[r.from+1])
	if flags&flagLong != 0 {
		length = binary.BigEndian.Uint64(r.input[r.from+1:])
	}
	if err := r.check(flags, length); err != nil {
		return err
	}
	r.from += size
	r.open, r.flags, r.left = true, flags, int(length)
	if flags&flagCommand != 0 {
		r.command = r.command[:0]
	}
	return nil
}

func (r *reader) check(flags byte, length uint64) error {
	switch {
	case length > math.MaxInt64:
		return protocolError("a frame of %d bytes", length)
	case flags&flagCommand != 0 && flags&flagMore != 0:
		return protocolError("a command with more to follow")
	case flags&flagCommand != 0 && length > maxCommandBytes:
		return tooLarge("a command of %d bytes, at most %d", length, maxCommandBytes)
	case flags&flagCommand != 0:
		return nil
	case !r.messages:
		return protocolError("a message before the peer's READY")
	case length > uint64(r.maxBytes-len(r.body)):
		return tooLarge("a message of %d bytes or more, at most %d", uint64(len(r.body))+length, r.maxBytes)
	case len(r.ends) >= r.maxFrames:
		return tooLarge("a message of more than %d frames", r.maxFrames)
	}
	return nil
}

// fillBody reads what is left of a frame's body. The buffer grows with the bytes that are there, never with those that
// are only claimed.
func (r *reader) fillBody(into *[]byte) error {
	for r.left > 0 {
		if n := min(r.to-r.from, r.left); n > 0 {
			*into = append(*into, r.input[r.from:r.from+n]...)
			r.from += n
			r.left -= n
			if err := r.cover(cap(r.body)); err != nil {
				return err
			}
			continue
		}
		if r.left < len(r.input) {
			if err := r.fill(); err != nil {
				return err
			}
			continue
		}
		body := *into
		if len(body) == cap(body) {
			more := min(r.left, max(len(body), growBytes))
			if err := r.cover(len(body) + more); err != nil {
				return err
			}
			body = slices.Grow(body, more)
		}
		room := body[len(body):min(cap(body), len(body)+r.left)]
		n, err := r.source(room, true)
		*into = body[:len(body)+n]
		r.left -= n
		if err != nil {
			return err
		}
	}
	return nil
}

// need reads until n bytes of input are there, n being small.
func (r *reader) need(n int) error {
	for r.to-r.from < n {
		if err := r.fill(); err != nil {
			return err
		}
	}
	return nil
}

// fill reads once into input, behind what it holds.
func (r *reader) fill() error {
	if r.from > 0 {
		r.to = copy(r.input, r.input[r.from:r.to])
		r.from = 0
	}
	n, err := r.source(r.input[r.to:], r.begun())
	r.to += n
	return err
}

// begun reports whether the stream stands within a message, frame or head.
func (r *reader) begun() bool {
	return r.open || len(r.ends) > 0 && !r.done || r.to > r.from
}
