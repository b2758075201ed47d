package transport

import (
	"math/bits"
	"sync"
)

// The sizes that are pooled, as powers of two: from what a small message takes to a whole body. What is larger is left to
// the garbage collector.
const (
	smallestShift = 11  // 2 KiB
	largestShift  = 23  // 8 MiB
	round         = 512 // bytes beside the powers of two
)

// buffers is a pool of buffers in sizes of powers of two and a little more: a message with 64 KiB of body takes 64 KiB, and
// what goes round a body. gRPC's own pool has no size
// between 32 KiB and 1 MiB, and clears the whole buffer each time, which for body chunks costs more than all else.
// Buffers come back with what was in them: whoever takes one fills it before reading, as gRPC's transport and the codec do.
//
// Bodies stay in the buffers that they came in until the whole request was sent on; see Request.
type buffers struct {
	sizes [largestShift - smallestShift + 1]sync.Pool
}

// Get returns a buffer of a length, its content undefined.
func (p *buffers) Get(length int) *[]byte {
	shift := max(bits.Len(uint(max(length-round, 1)-1)), smallestShift)
	if shift > largestShift {
		b := make([]byte, length)
		return &b
	}
	b, _ := p.sizes[shift-smallestShift].Get().(*[]byte)
	if b == nil {
		fresh := make([]byte, length, 1<<shift+round)
		return &fresh
	}
	*b = (*b)[:length]
	return b
}

// Put takes a buffer back. One that has no pooled size, because it did not come from here or was grown, is dropped.
func (p *buffers) Put(b *[]byte) {
	n := cap(*b) - round
	if n <= 0 {
		return
	}
	shift := bits.Len(uint(n)) - 1
	if shift < smallestShift || shift > largestShift || n != 1<<shift {
		return
	}
	p.sizes[shift-smallestShift].Put(b)
}
