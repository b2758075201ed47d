package wire

import (
	"encoding/binary"
	"math"
)

// readTokens reads the array of an event's token ids. pairs says that each item is a pair, of which the first counts.
func (d *Decoder) readTokens(b []byte, p int) (tokens []uint32, pairs bool, next int, ok bool) {
	if isNil(b, p) {
		return nil, false, p + 1, true
	}
	n, p, ok := readArray(b, p)
	if !ok {
		return nil, false, 0, false
	}
	from := len(d.tokens)
	d.tokens = grow(d.tokens, n)
	tokens = d.tokens[from : from+n : from+n]
	if n > 0 && isArray(b, p) {
		next, ok = readPairs(tokens, b, p)
		return tokens, true, next, ok
	}
	next, ok = readInts(tokens, b, p)
	return tokens, false, next, ok
}

// readInts fills dst with the integers at b[p:]. Eight bytes are loaded at a time, as long as they are there; two
// neighbours of two bytes each, what most ids take, are read at once.
func readInts(dst []uint32, b []byte, p int) (next int, ok bool) {
	const lead16 = leadUint16<<56 | leadUint16<<32
	i := 0
	for i < len(dst) && p <= len(b)-8 {
		w := binary.BigEndian.Uint64(b[p:])
		switch lead := w >> 56; {
		case w&(0xff<<56|0xff<<32) == lead16 && i+1 < len(dst):
			dst[i] = uint32(w>>40) & math.MaxUint16
			dst[i+1] = uint32(w>>16) & math.MaxUint16
			i++
			p += 6
		case lead == leadUint16:
			dst[i] = uint32(w>>40) & math.MaxUint16
			p += 3
		case lead < 0x80:
			dst[i] = uint32(lead)
			p++
		case lead == leadUint32:
			dst[i] = uint32(w >> 24)
			p += 5
		case lead == leadUint8:
			dst[i] = uint32(w>>48) & math.MaxUint8
			p += 2
		default:
			if dst[i], p, ok = readToken(b, p); !ok {
				return 0, false
			}
		}
		i++
	}
	for ; i < len(dst); i++ {
		if dst[i], p, ok = readToken(b, p); !ok {
			return 0, false
		}
	}
	return p, true
}

// readPairs fills dst with the first of each pair at b[p:].
func readPairs(dst []uint32, b []byte, p int) (next int, ok bool) {
	for i := range dst {
		n, first, ok := readArray(b, p)
		if !ok || n != 2 {
			return 0, false
		}
		if dst[i], p, ok = readToken(b, first); !ok {
			return 0, false
		}
		if _, p, ok = readToken(b, p); !ok {
			return 0, false
		}
	}
	return p, true
}

func readToken(b []byte, p int) (token uint32, next int, ok bool) {
	v, negative, next, ok := readInt(b, p)
	return uint32(v), next, ok && !negative && v <= math.MaxUint32
}
