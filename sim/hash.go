package sim

import (
	"encoding/binary"

	"github.com/zeebo/xxh3"
)

// rootHash starts a hash chain. Lengths precede the strings, so that no pair of adapter and salt
// equals another; an empty salt equals none.
func rootHash(seed uint64, adapter, salt string) uint64 {
	buf := make([]byte, 0, 16+len(adapter)+len(salt))
	buf = binary.LittleEndian.AppendUint64(buf, uint64(len(adapter)))
	buf = append(buf, adapter...)
	buf = binary.LittleEndian.AppendUint64(buf, uint64(len(salt)))
	buf = append(buf, salt...)
	return xxh3.HashSeed(buf, seed)
}

// chainHash is the hash of a block: XXH3 of its tokens as 32-bit little-endian words, seeded with
// the hash of the block before it. It returns buf, possibly grown, for the next call.
func chainHash(parent uint64, tokens []uint32, buf []byte) (uint64, []byte) {
	buf = buf[:0]
	for _, t := range tokens {
		buf = binary.LittleEndian.AppendUint32(buf, t)
	}
	return xxh3.HashSeed(buf, parent), buf
}
