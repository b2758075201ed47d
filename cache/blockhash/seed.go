// Package blockhash turns a prompt into a chain of 64-bit hashes, one per block of tokens or text: a hash stands for its
// block and everything before it, under a secret seed and the names that separate prefix caches (model, cache salt).
//
// The function is XXH3 with the previous hash as its seed. It is not a cryptographic hash; what keeps prompts from being
// forged to collide is that the first seed is secret. A collision costs a wrong routing guess and nothing else.
package blockhash

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
)

// Seed is the secret under which hashes are made: hashes of two seeds do not compare. It formats as its id, so that
// printing one does not give it away. The zero Seed is no secret; make one with SeedOf or NewSeed.
type Seed struct {
	key uint64
	id  string
}

// SeedOf derives the seed from a configured secret; the same secret gives the same hashes in every process. The id is
// 32 bits of a one-way function: enough to see that two processes share a seed, too few to tell a good secret by.
func SeedOf(secret string) Seed {
	key := sha256.Sum256([]byte("sluice block hash key\x00" + secret))
	id := sha256.Sum256([]byte("sluice block hash id\x00" + secret))
	return Seed{key: binary.LittleEndian.Uint64(key[:]), id: hex.EncodeToString(id[:4])}
}

// NewSeed draws a random seed, good for hashes that never leave the process.
func NewSeed() Seed { return SeedOf(rand.Text()) }

// ID is a short name of the seed for logs.
func (s Seed) ID() string { return s.id }

// String is the seed's id.
func (s Seed) String() string { return s.id }

// GoString is the seed's id.
func (s Seed) GoString() string { return "blockhash.Seed(" + s.id + ")" }
