package wire

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// maxHashNesting bounds how deep in arrays a block hash is looked for.
const maxHashNesting = 4

// readHash reads a block hash as its 64-bit name. Integers are their 64 bits, so that one hash written signed and unsigned
// is one name. Bytes are hashed: they are what an engine's own, wider hash gave, 8 to 32 of them. An array stands for its
// first item: what follows there is the block's tokens or its group, which the event tells too.
func readHash(b []byte, p, depth int) (h uint64, next int, ok bool) {
	if p >= len(b) {
		return 0, 0, false
	}
	if b[p] == leadUint64 && len(b)-p >= 9 {
		return binary.BigEndian.Uint64(b[p+1:]), p + 9, true
	}
	if h, _, next, ok = readInt(b, p); ok {
		return h, next, true
	}
	if text, next, ok := readText(b, p); ok {
		return xxh3.Hash(text), next, true
	}
	n, first, ok := readArray(b, p)
	if !ok || n == 0 || depth == maxHashNesting {
		return 0, 0, false
	}
	if h, _, ok = readHash(b, first, depth+1); !ok {
		return 0, 0, false
	}
	next, ok = skip(b, p)
	return h, next, ok
}

// readHashes reads the array of an event's block hashes.
func (d *Decoder) readHashes(b []byte, p int) (hashes []uint64, next int, ok bool) {
	n, p, ok := readArray(b, p)
	if !ok {
		return nil, 0, false
	}
	from := len(d.hashes)
	d.hashes = grow(d.hashes, n)
	hashes = d.hashes[from : from+n : from+n]
	for i := range hashes {
		if p < len(b)-8 && b[p] == leadUint64 {
			hashes[i] = binary.BigEndian.Uint64(b[p+1:])
			p += 9
			continue
		}
		if hashes[i], p, ok = readHash(b, p, 0); !ok {
			return nil, 0, false
		}
	}
	return hashes, p, true
}
