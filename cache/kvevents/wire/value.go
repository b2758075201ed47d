package wire

import (
	"encoding/binary"
	"math"

	"github.com/tinylib/msgp/msgp"
)

// The lead bytes of msgpack values that are read here without a detour. https://github.com/msgpack/msgpack/blob/master/spec.md
const (
	leadNil     = 0xc0
	leadUint8   = 0xcc
	leadUint16  = 0xcd
	leadUint32  = 0xce
	leadUint64  = 0xcf
	leadInt8    = 0xd0
	leadInt64   = 0xd3
	leadArray16 = 0xdc
	leadArray32 = 0xdd
	leadMap16   = 0xde
	leadMap32   = 0xdf
)

// The readers take the value at b[p:] and return the position after it. Where it is of another type or b ends inside it,
// ok is false, and the caller finds the end with skip, which tells the two apart.

func isNil(b []byte, p int) bool { return p < len(b) && b[p] == leadNil }

func isArray(b []byte, p int) bool {
	return p < len(b) && (b[p]&0xf0 == 0x90 || b[p] == leadArray16 || b[p] == leadArray32)
}

func isMap(b []byte, p int) bool {
	return p < len(b) && (b[p]&0xf0 == 0x80 || b[p] == leadMap16 || b[p] == leadMap32)
}

// readArray reads an array's length. It never exceeds the number of bytes that follow, as every item takes one or more.
func readArray(b []byte, p int) (n, next int, ok bool) {
	if p >= len(b) {
		return 0, 0, false
	}
	if c := b[p]; c&0xf0 == 0x90 {
		n, next = int(c&0x0f), p+1
	} else if c == leadArray16 && len(b)-p > 2 {
		n, next = int(binary.BigEndian.Uint16(b[p+1:])), p+3
	} else {
		if !isArray(b, p) {
			return 0, 0, false
		}
		size, rest, err := msgp.ReadArrayHeaderBytes(b[p:])
		if err != nil || uint64(size) > uint64(len(rest)) {
			return 0, 0, false
		}
		n, next = int(size), len(b)-len(rest)
	}
	return n, next, n <= len(b)-next
}

// readMap reads a map's number of pairs, of which each takes two bytes or more.
func readMap(b []byte, p int) (n, next int, ok bool) {
	if p >= len(b) {
		return 0, 0, false
	}
	if c := b[p]; c&0xf0 == 0x80 {
		n, next = int(c&0x0f), p+1
	} else {
		if !isMap(b, p) {
			return 0, 0, false
		}
		size, rest, err := msgp.ReadMapHeaderBytes(b[p:])
		if err != nil || uint64(size) > uint64(len(rest)) {
			return 0, 0, false
		}
		n, next = int(size), len(b)-len(rest)
	}
	return n, next, 2*n <= len(b)-next
}

// readText reads a string, or bytes, which some encoders write in its place. It aliases b.
func readText(b []byte, p int) (s []byte, next int, ok bool) {
	if p >= len(b) {
		return nil, 0, false
	}
	if c := b[p]; c&0xe0 == 0xa0 {
		end := p + 1 + int(c&0x1f)
		if end > len(b) {
			return nil, 0, false
		}
		return b[p+1 : end : end], end, true
	}
	var rest []byte
	var err error
	switch msgp.NextType(b[p : p+1]) {
	case msgp.StrType:
		s, rest, err = msgp.ReadStringZC(b[p:])
	case msgp.BinType:
		s, rest, err = msgp.ReadBytesZC(b[p:])
	default:
		return nil, 0, false
	}
	if err != nil {
		return nil, 0, false
	}
	return s[:len(s):len(s)], len(b) - len(rest), true
}

// readInt reads an integer of any width as 64 bits in two's complement; negative says that it is below 0.
func readInt(b []byte, p int) (v uint64, negative bool, next int, ok bool) {
	if p >= len(b) {
		return 0, false, 0, false
	}
	c := b[p]
	p++
	switch {
	case c < 0x80:
		return uint64(c), false, p, true
	case c >= 0xe0:
		return uint64(int64(int8(c))), true, p, true
	case c < leadUint8 || c > leadInt64:
		return 0, false, 0, false
	}
	width := 1 << (c & 3) // cc to cf and d0 to d3: 1, 2, 4, 8
	if width > len(b)-p {
		return 0, false, 0, false
	}
	switch width {
	case 1:
		v = uint64(b[p])
	case 2:
		v = uint64(binary.BigEndian.Uint16(b[p:]))
	case 4:
		v = uint64(binary.BigEndian.Uint32(b[p:]))
	default:
		v = binary.BigEndian.Uint64(b[p:])
	}
	if c >= leadInt8 {
		shift := 64 - 8*width
		v = uint64(int64(v<<shift) >> shift)
		negative = int64(v) < 0
	}
	return v, negative, p + width, true
}

// readCount reads an integer from 0 to most.
func readCount(b []byte, p, most int) (n, next int, ok bool) {
	v, negative, next, ok := readInt(b, p)
	if !ok || negative || v > uint64(most) {
		return 0, 0, false
	}
	return int(v), next, true
}

// readNumber reads a float or an integer; nil counts as 0.
func readNumber(b []byte, p int) (f float64, next int, ok bool) {
	if isNil(b, p) {
		return 0, p + 1, true
	}
	if v, negative, next, ok := readInt(b, p); ok {
		if negative {
			return float64(int64(v)), next, true
		}
		return float64(v), next, true
	}
	if p >= len(b) || b[p] != 0xca && b[p] != 0xcb {
		return 0, 0, false
	}
	f, rest, err := msgp.ReadFloat64Bytes(b[p:])
	return f, len(b) - len(rest), err == nil
}

// skip finds the end of the value at b[p:], whatever it is. It is false where b ends before or the value is not msgpack.
// It counts the values still to come instead of recursing.
func skip(b []byte, p int) (next int, ok bool) {
	for left := uint64(1); left > 0; left-- {
		if left > uint64(len(b)-p) {
			return 0, false
		}
		c := b[p]
		p++
		var size uint64
		switch {
		case c < 0x80 || c >= 0xe0: // integers of one byte
		case c < 0x90:
			left += 2 * uint64(c&0x0f)
		case c < 0xa0:
			left += uint64(c & 0x0f)
		case c < 0xc0:
			size = uint64(c & 0x1f)
		default:
			layout := layouts[c-0xc0]
			if layout == invalid || int(layout.length) > len(b)-p {
				return 0, false
			}
			size = uint64(layout.fixed)
			n := claimed(b[p:], layout.length)
			p += int(layout.length)
			if layout.items > 0 {
				left += uint64(layout.items) * n
			} else {
				size += n
			}
		}
		if size > uint64(len(b)-p) {
			return 0, false
		}
		p += int(size)
	}
	return p, true
}

// claimed reads a length field of 0, 1, 2 or 4 bytes.
func claimed(b []byte, width uint8) uint64 {
	switch width {
	case 1:
		return uint64(b[0])
	case 2:
		return uint64(binary.BigEndian.Uint16(b))
	case 4:
		return uint64(binary.BigEndian.Uint32(b))
	}
	return 0
}

// layout says how a value goes on after its lead byte: a length field, fixed bytes, then as many bytes, or items times as
// many values, as the length says.
type layout struct{ length, fixed, items uint8 }

var invalid = layout{length: math.MaxUint8}

// layouts are those of the lead bytes c0 to df.
var layouts = [32]layout{
	{}, invalid, {}, {}, // nil, never used, false, true
	{length: 1}, {length: 2}, {length: 4}, // bytes
	{length: 1, fixed: 1}, {length: 2, fixed: 1}, {length: 4, fixed: 1}, // extensions
	{fixed: 4}, {fixed: 8}, // floats
	{fixed: 1}, {fixed: 2}, {fixed: 4}, {fixed: 8}, // unsigned
	{fixed: 1}, {fixed: 2}, {fixed: 4}, {fixed: 8}, // signed
	{fixed: 2}, {fixed: 3}, {fixed: 5}, {fixed: 9}, {fixed: 17}, // extensions of 1 to 16 bytes
	{length: 1}, {length: 2}, {length: 4}, // strings
	{length: 2, items: 1}, {length: 4, items: 1}, // arrays
	{length: 2, items: 2}, {length: 4, items: 2}, // maps
}
