package render

import (
	"errors"
	"fmt"
	"io"
	"math"
)

// reader reads JSON as it arrives, through a buffer of fixed size. Its methods return the first error and leave it in
// err.
type reader struct {
	from     io.Reader
	limit    int64 // bytes that may still be read
	buf      []byte
	pos, end int
	err      error
}

const bufferSize = 32 << 10

var (
	errSyntax = errors.New("is no JSON of a rendered prompt")
	errLong   = errors.New("is too long")
)

// fill reads on; false at the end and at a fault.
func (r *reader) fill() bool {
	if r.err != nil {
		return false
	}
	r.pos, r.end = 0, 0
	for r.end == 0 {
		if r.limit <= 0 {
			r.err = errLong
			return false
		}
		n, err := r.from.Read(r.buf[:min(int64(len(r.buf)), r.limit)])
		r.end = n
		r.limit -= int64(n)
		if err != nil && n == 0 {
			r.err = err
			if errors.Is(err, io.EOF) {
				r.err = io.ErrUnexpectedEOF
			}
			return false
		}
	}
	return true
}

// peek is the next byte, or 0 where there is none.
func (r *reader) peek() byte {
	if r.pos == r.end && !r.fill() {
		return 0
	}
	return r.buf[r.pos]
}

// token moves past white space and is the byte behind it.
func (r *reader) token() byte {
	for {
		switch b := r.peek(); b {
		case ' ', '\n', '\t', '\r':
			r.pos++
		default:
			return b
		}
	}
}

// syntax notes a fault.
func (r *reader) syntax() {
	if r.err == nil {
		r.err = errSyntax
	}
}

// take moves past one byte that must be there.
func (r *reader) take(b byte) bool {
	if r.token() != b {
		r.syntax()
		return false
	}
	r.pos++
	return true
}

// more moves past what stands between elements: true behind a comma, false behind the closing bracket or at a fault.
func (r *reader) more(closing byte) bool {
	switch r.token() {
	case ',':
		r.pos++
		return true
	case closing:
		r.pos++
	default:
		r.syntax()
	}
	return false
}

// empty moves past an opening bracket, and past the closing one where it comes next.
func (r *reader) empty(opening, closing byte) bool {
	if !r.take(opening) {
		return true
	}
	if r.token() == closing {
		r.pos++
		return true
	}
	return false
}

// object calls f behind each key of an object, to read the value.
func (r *reader) object(f func(key string)) {
	var room [maxKey]byte
	for more := !r.empty('{', '}'); more && r.err == nil; more = r.more('}') {
		key, whole := r.text(room[:0])
		if !whole {
			key = key[:0]
		}
		if !r.take(':') {
			return
		}
		f(string(key))
	}
}

// maxKey is the longest key that is compared.
const maxKey = 32

// array calls f for each element of an array, to read it.
func (r *reader) array(f func()) {
	for more := !r.empty('[', ']'); more && r.err == nil; more = r.more(']') {
		f()
	}
}

// text reads a string into dst, as far as dst has room; whole says that it had, and that the string has no escapes.
func (r *reader) text(dst []byte) (text []byte, whole bool) {
	if !r.take('"') {
		return dst, false
	}
	whole = true
	for r.err == nil {
		if r.pos == r.end && !r.fill() {
			break
		}
		for r.pos < r.end {
			b := r.buf[r.pos]
			r.pos++
			switch {
			case b == '"':
				return dst, whole
			case b == '\\':
				whole = false
				if r.peek(); r.err == nil {
					r.pos++
				}
			case len(dst) == cap(dst):
				whole = false
			default:
				dst = append(dst, b)
			}
		}
	}
	return dst, false
}

// null moves past a null; false where the value is something else.
func (r *reader) null() bool {
	if r.token() != 'n' {
		return false
	}
	r.skip()
	return true
}

// number reads a whole number that is not negative.
func (r *reader) number(limit uint64) (n uint64) {
	digits := 0
	for b := r.token(); b-'0' <= 9; b = r.peek() {
		if digits++; digits > 19 {
			r.syntax()
			return 0
		}
		n = n*10 + uint64(b-'0')
		r.pos++
	}
	if b := r.peek(); digits == 0 || n > limit || b == '.' || b|0x20 == 'e' {
		r.syntax()
	}
	return n
}

// ids reads an array of token ids, appending them to dst, which may grow to limit.
func (r *reader) ids(dst []uint32, limit int) []uint32 {
	for more := !r.empty('[', ']'); more && r.err == nil; more = r.more(']') {
		dst = r.plainIDs(dst, limit)
		if len(dst) == limit {
			r.err = fmt.Errorf("has more tokens than %d: %w", limit, errLong)
			return dst
		}
		dst = append(dst, uint32(r.number(math.MaxUint32)))
	}
	return dst
}

// plainIDs reads the ids that stand in the buffer with a comma behind them, one after the other: nearly all of a list.
func (r *reader) plainIDs(dst []uint32, limit int) []uint32 {
	b := r.buf[r.pos:r.end]
	i := 0
	for len(dst) < limit {
		n, digit := uint64(0), i
		for digit < len(b) && b[digit]-'0' <= 9 && digit-i < maxDigits {
			n = n*10 + uint64(b[digit]-'0')
			digit++
		}
		if digit == i || digit >= len(b)-1 || b[digit] != ',' || n > math.MaxUint32 {
			break
		}
		dst = append(dst, uint32(n))
		i = digit + 1
		if b[i] == ' ' {
			i++
		}
	}
	r.pos += i
	return dst
}

// maxDigits is the length of the longest 32-bit number.
const maxDigits = 10

// maxDepth bounds the nesting of values that are skipped.
const maxDepth = 512

// skip moves past a value of any kind.
func (r *reader) skip() {
	depth := 0
	for r.err == nil {
		switch b := r.token(); b {
		case '"':
			r.text(nil)
		case '{', '[':
			if depth++; depth > maxDepth {
				r.syntax()
			}
			r.pos++
		case '}', ']':
			if depth--; depth < 0 {
				r.syntax()
			}
			r.pos++
		case ',', ':':
			if depth == 0 {
				r.syntax()
			}
			r.pos++
			continue
		default:
			r.scalar()
		}
		if depth == 0 {
			return
		}
	}
}

// scalar moves past a number or a word.
func (r *reader) scalar() {
	n := 0
	for r.err == nil {
		b := r.peek()
		if b|0x20-'a' > 'z'-'a' && b-'0' > 9 && b != '-' && b != '+' && b != '.' {
			break
		}
		r.pos++
		n++
	}
	if n == 0 {
		r.syntax()
	}
}

// close checks that nothing follows.
func (r *reader) close() error {
	if r.err != nil {
		return r.err
	}
	if b := r.token(); b != 0 || !errors.Is(r.err, io.ErrUnexpectedEOF) {
		r.syntax()
		if b == 0 {
			return r.err
		}
		return errSyntax
	}
	return nil
}
