package session

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"hash"
	"math"
	"sync"

	"github.com/sluice-epp/sluice/scheduling"
)

// A token is, in base64 without padding:
//
//	version  1 byte   tokenVersion
//	expires  4 bytes  Unix seconds, big endian
//	tag     16 bytes  keyed hash of the endpoint's uid and address
//	mac     16 bytes  keyed hash of all before it
//
// It holds no address, encrypted or not: who has no key cannot tell which endpoint a tag stands for, and who has one knows
// the tags of the endpoints that are there. All tokens have one length, so that a longer header is not looked at.
const (
	tokenVersion = 1
	tagBytes     = 16
	macBytes     = 16
	signedBytes  = 1 + 4 + tagBytes
	rawBytes     = signedBytes + macBytes
)

// encoding has one text for each token: bits that stand for nothing must be 0.
var encoding = base64.RawURLEncoding.Strict()

// tokenBytes is the length of every token.
var tokenBytes = encoding.EncodedLen(rawBytes)

// tag stands for an endpoint instance.
type tag [tagBytes]byte

// verdict is what a request's header turned out to be.
type verdict uint8

const (
	verdictNone      verdict = iota // no header
	verdictValid                    // the token of an endpoint that may be picked
	verdictGone                     // of one that is not there, or not to be picked
	verdictExpired                  // of a time that is over
	verdictForged                   // not signed with the key
	verdictMalformed                // no token at all
	numVerdicts
)

var verdictNames = [numVerdicts]string{"none", "valid", "gone", "expired", "forged", "malformed"}

// String is the verdict's name as metrics show it.
func (v verdict) String() string { return verdictNames[v] }

// signer makes and reads tokens with one key. It may be used by many goroutines.
type signer struct {
	tagKey, macKey []byte
	pool           sync.Pool // of *workspace
}

// workspace is the memory of one token's making or reading.
type workspace struct {
	mac  hash.Hash
	raw  [rawBytes]byte
	sum  [sha256.Size]byte
	text [64]byte
}

// newSigner derives the keys of a secret, one for each use, so that a tag is never a signature.
func newSigner(secret []byte) *signer {
	derived := func(use string) []byte {
		h := hmac.New(sha256.New, secret)
		h.Write([]byte("sluice session " + use))
		return h.Sum(nil)
	}
	s := &signer{tagKey: derived("endpoint"), macKey: derived("token")}
	s.pool.New = func() any { return &workspace{mac: hmac.New(sha256.New, s.macKey)} }
	return s
}

// tagOf is an endpoint instance's tag: the same in every process with the same key that knows it by the same uid and address.
func (s *signer) tagOf(e *scheduling.Endpoint) (t tag) {
	h := hmac.New(sha256.New, s.tagKey)
	_ = binary.Write(h, binary.BigEndian, uint64(len(e.UID))) // lengths first: no uid and address run into one another
	h.Write([]byte(e.UID))
	h.Write([]byte(e.Address))
	copy(t[:], h.Sum(nil))
	return t
}

// sign is the token of an endpoint until a time in Unix seconds.
func (s *signer) sign(t tag, expires int64) string {
	w, _ := s.pool.Get().(*workspace)
	defer s.pool.Put(w)
	w.raw[0] = tokenVersion
	binary.BigEndian.PutUint32(w.raw[1:], uint32(min(max(0, expires), math.MaxUint32))) //nolint:gosec // it is in range
	copy(w.raw[5:], t[:])
	copy(w.raw[signedBytes:], w.signature())
	encoding.Encode(w.text[:tokenBytes], w.raw[:])
	return string(w.text[:tokenBytes])
}

// read is the endpoint of a token, at a time in Unix seconds. verdictValid says that the key signed it and that it has not
// expired.
func (s *signer) read(text []byte, now int64) (t tag, v verdict) {
	if len(text) != tokenBytes {
		return t, verdictMalformed
	}
	w, _ := s.pool.Get().(*workspace)
	defer s.pool.Put(w)
	if n, err := encoding.Decode(w.raw[:], text); err != nil || n != rawBytes || w.raw[0] != tokenVersion {
		return t, verdictMalformed
	}
	if !hmac.Equal(w.signature(), w.raw[signedBytes:]) {
		return t, verdictForged
	}
	if now >= int64(binary.BigEndian.Uint32(w.raw[1:])) {
		return t, verdictExpired
	}
	copy(t[:], w.raw[5:signedBytes])
	return t, verdictValid
}

// signature is that of the bytes before it.
func (w *workspace) signature() []byte {
	w.mac.Reset()
	w.mac.Write(w.raw[:signedBytes])
	return w.mac.Sum(w.sum[:0])[:macBytes]
}
