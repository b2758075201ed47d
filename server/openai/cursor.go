package openai

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"math/bits"

	"github.com/sluice-epp/sluice/scheduling"
)

// maxDepth bounds the nesting whose brackets are matched by kind. Deeper nesting is skipped by counting brackets alone.
const maxDepth = 512

// cursor reads JSON from b, from pos on. A method that returns ok == false has left pos at the fault: pos == len(b)
// means that b ended too early, anything else that the byte there can't stand there.
type cursor struct {
	b       []byte
	pos     int
	nesting int  // levels whose brackets are matched by kind, at most maxDepth; 0 stands for all of them
	deep    bool // some value was nested deeper
}

// peek is the byte at pos, or 0 at the end; 0 starts no JSON token.
func (c *cursor) peek() byte {
	if c.pos < len(c.b) {
		return c.b[c.pos]
	}
	return 0
}

// space moves past white space.
func (c *cursor) space() {
	if c.pos < len(c.b) && c.b[c.pos] <= ' ' {
		c.spaces()
	}
}

func (c *cursor) spaces() {
	for c.pos < len(c.b) {
		switch c.b[c.pos] {
		case ' ', '\n', '\r', '\t':
			c.pos++
		default:
			return
		}
	}
}

// enter moves past an opening bracket at pos; more says that a first element or key follows.
func (c *cursor) enter(closing byte) (more bool) {
	c.pos++
	c.space()
	if c.peek() == closing {
		c.pos++
		return false
	}
	return true
}

// next moves past what follows an element: a comma (more) or the closing bracket.
func (c *cursor) next(closing byte) (more, ok bool) {
	c.space()
	switch c.peek() {
	case ',':
		c.pos++
		c.space()
		return true, true
	case closing:
		c.pos++
		return false, true
	}
	return false, false
}

// key reads an object key and its colon and stops at the value.
func (c *cursor) key() (key []byte, ok bool) {
	if c.peek() != '"' {
		return nil, false
	}
	s, ok := c.str()
	if !ok {
		return nil, false
	}
	c.space()
	if c.peek() != ':' {
		return nil, false
	}
	c.pos++
	c.space()
	key = c.b[s.Start:s.End]
	if bytes.IndexByte(key, '\\') >= 0 {
		key = unescape(key)
	}
	return key, true
}

// str reads the string whose opening quote is at pos. Where its end is missing, the span reaches to the end of b.
func (c *cursor) str() (content scheduling.Span, ok bool) {
	start := c.pos + 1
	end := stringEnd(c.b, start)
	if end < 0 {
		c.pos = len(c.b)
		return scheduling.Span{Start: start, End: c.pos}, false
	}
	c.pos = end + 1
	return scheduling.Span{Start: start, End: end}, true
}

// skip moves past one value of any kind, without recursion.
func (c *cursor) skip() bool {
	switch c.peek() {
	case '{', '[':
		return c.skipNested()
	}
	return c.skipScalar()
}

func (c *cursor) skipScalar() bool {
	switch c.peek() {
	case '"':
		_, ok := c.str()
		return ok
	case 't':
		return c.literal("true")
	case 'f':
		return c.literal("false")
	case 'n':
		return c.literal("null")
	case 'N':
		return c.literal("NaN")
	case 'I':
		return c.literal("Infinity")
	}
	return c.number()
}

// levels remembers which of the open brackets are objects, one bit a level.
type levels struct {
	objects [maxDepth / 64]uint64
	depth   int
}

func (l *levels) push(object bool) {
	word, bit := &l.objects[l.depth/64], uint64(1)<<(l.depth%64)
	*word &^= bit
	if object {
		*word |= bit
	}
	l.depth++
}

func (l *levels) inObject() bool {
	return l.depth > 0 && l.objects[(l.depth-1)/64]>>((l.depth-1)%64)&1 == 1
}

// skipNested moves past an object or array.
func (c *cursor) skipNested() bool {
	var open levels
	deepest := cmp.Or(c.nesting, maxDepth)
	for {
		if open.inObject() {
			if _, ok := c.key(); !ok {
				return false
			}
		}
		switch b := c.peek(); {
		case (b == '{' || b == '[') && open.depth == deepest:
			c.deep = true
			if !c.skipByCount() {
				return false
			}
		case b == '{' || b == '[':
			open.push(b == '{')
			if c.enter(b + 2) { // '{'+2 is '}', '['+2 is ']'
				continue
			}
			open.depth--
		default:
			if !c.skipScalar() {
				return false
			}
		}
		if ok := c.closeLevels(&open); !ok || open.depth == 0 {
			return ok
		}
	}
}

// closeLevels moves past the brackets that close after an element, up to the comma before the next one.
func (c *cursor) closeLevels(open *levels) bool {
	for open.depth > 0 {
		closing := byte(']')
		if open.inObject() {
			closing = '}'
		}
		more, ok := c.next(closing)
		if !ok || more {
			return ok
		}
		open.depth--
	}
	return true
}

// skipByCount moves past an object or array by the number of its brackets alone.
func (c *cursor) skipByCount() bool {
	depth := 0
	for c.pos < len(c.b) {
		switch c.b[c.pos] {
		case '"':
			if _, ok := c.str(); !ok {
				return false
			}
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		c.pos++
		if depth == 0 {
			return true
		}
	}
	return false
}

// literal moves past a word; a word that b cuts short is a missing end.
func (c *cursor) literal(word string) bool {
	for i := range len(word) {
		if c.peek() != word[i] {
			return false
		}
		c.pos++
	}
	return true
}

// number moves past a number by JSON's grammar, and past -Infinity, which Python's json module takes too.
func (c *cursor) number() bool {
	if c.peek() == '-' {
		c.pos++
		if c.peek() == 'I' {
			return c.literal("Infinity")
		}
	}
	if c.peek() == '0' {
		c.pos++
	} else if !c.digits() {
		return false
	}
	if c.peek() == '.' {
		c.pos++
		if !c.digits() {
			return false
		}
	}
	if c.peek()|0x20 == 'e' {
		c.pos++
		if sign := c.peek(); sign == '+' || sign == '-' {
			c.pos++
		}
		return c.digits()
	}
	return true
}

// digits moves past one or more digits.
func (c *cursor) digits() bool {
	start := c.pos
	for c.pos < len(c.b) && c.b[c.pos]-'0' <= 9 {
		c.pos++
	}
	return c.pos > start
}

// stringEnd is the index of the quote that ends the string whose content starts at i, or -1. A quote is escaped by an
// odd number of backslashes before it. Each byte is looked at a bounded number of times, whatever it holds.
func stringEnd(b []byte, i int) int {
	for {
		end := quoteAt(b, i)
		if end < 0 {
			return -1
		}
		slash := end
		for slash > i && b[slash-1] == '\\' {
			slash--
		}
		if (end-slash)&1 == 0 {
			return end
		}
		// Where one quote is escaped others are near (code, JSON within JSON): go by the byte for a while.
		near := min(end+escapeRun, len(b))
		for i = end + 1; i < near; i++ {
			if b[i] == '"' {
				return i
			}
			if b[i] == '\\' {
				i++
			}
		}
		if i > len(b) {
			return -1
		}
	}
}

// escapeRun is the number of bytes that are looked at one by one after an escaped quote.
const escapeRun = 8

// quoteAt is the index of the first quote at or after i, or -1. The first 16 bytes are looked at a word at a time,
// since most strings (keys above all) end there and the call to IndexByte costs more.
func quoteAt(b []byte, i int) int {
	for range 2 {
		if len(b)-i < 8 {
			break
		}
		if m := bytesEqual(binary.LittleEndian.Uint64(b[i:]), '"'); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
		i += 8
	}
	j := bytes.IndexByte(b[i:], '"')
	if j < 0 {
		return -1
	}
	return i + j
}

// bytesEqual sets the top bit of each byte of word that equals want. Only the lowest set bit is exact: a borrow may set
// bits above it.
func bytesEqual(word uint64, want byte) uint64 {
	const ones, tops = 0x0101010101010101, 0x8080808080808080
	x := word ^ ones*uint64(want)
	return (x - ones) &^ x & tops
}
