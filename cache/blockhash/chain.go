package blockhash

import (
	"encoding/binary"
	"unsafe"

	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/scheduling"
)

// Kind is what a chain is made of. Chains of different kinds never share a hash.
type Kind uint8

// The kinds of chain.
const (
	Text      Kind = iota + 1 // text that engines take as it is: completions, embeddings
	Tokens                    // token ids
	Chat                      // text that a chat template wraps, as chat completions have it
	Responses                 // the same, as the Responses API has it
	Messages                  // the same, as the Messages API has it
)

// KindOf is the kind of a text chain for an API: the same words make other tokens once a template is around them.
func KindOf(op scheduling.Operation) Kind {
	switch op {
	case scheduling.OperationChat:
		return Chat
	case scheduling.OperationResponses:
		return Responses
	case scheduling.OperationMessages:
		return Messages
	default:
		return Text
	}
}

// chunkBytes is how much is hashed at once: XXH3's fast path for short input ends at 128 bytes, and what crosses spans is
// gathered in a buffer of this size on the stack.
const chunkBytes = 128

// Root is where a chain starts: a hash of everything but the prompt that an engine's prefix cache depends on.
type Root uint64

// NewRoot returns the root of prompts for a model (an adapter's name is a model name) and a cache salt; an empty salt is
// no salt. Each part is hashed for itself, seeded with the part before, so parts that read the same when put together
// still have different roots.
func NewRoot(seed Seed, kind Kind, model, salt string) Root {
	h := xxh3.HashSeed([]byte{byte(kind)}, seed.key)
	h = xxh3.HashStringSeed(model, h)
	return Root(xxh3.HashStringSeed(salt, h))
}

// AppendTokens appends to dst the hashes of the whole blocks of tokens, as far as the layout reaches. It allocates only
// where dst is too small.
func AppendTokens(dst []uint64, root Root, tokens []uint32, l Layout) []uint64 {
	h, at := uint64(root), 0
	blockTokens := l.BlockTokens()
	for i, before := 0, 0; l.fits(i, before); i++ {
		width := l.Width(i)
		end := at + width*blockTokens
		if end > len(tokens) {
			break
		}
		h = hashTokens(h, tokens[at:end])
		dst = append(dst, h)
		at, before = end, before+width
	}
	return dst
}

// Next is the hash of one block of tokens that follows prev in a chain: prev is the hash of the block before, or a Root.
func Next(prev uint64, tokens []uint32) uint64 { return hashTokens(prev, tokens) }

// Mix takes something else than tokens into a chain (what an engine keys a block by besides): prev and key are hashes.
// The result stands for prev in the next call of Next.
func Mix(prev, key uint64) uint64 {
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], key)
	return xxh3.HashSeed(b[:], prev)
}

// KeyOf is the hash of something that is no token, for Mix: kind tells things apart that read the same.
func KeyOf(seed Seed, kind byte, value []byte) uint64 {
	return xxh3.HashSeed(value, xxh3.HashSeed([]byte{'k', kind}, seed.key))
}

// littleEndian says that token ids lie in memory as they are hashed.
var littleEndian = func() bool {
	one := uint16(1)
	return *(*byte)(unsafe.Pointer(&one)) == 1
}()

func hashTokens(h uint64, tokens []uint32) uint64 {
	if !littleEndian {
		return hashTokensPortable(h, tokens)
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(tokens))), len(tokens)*BytesPerToken)
	for len(b) > chunkBytes {
		h = xxh3.HashSeed(b[:chunkBytes], h)
		b = b[chunkBytes:]
	}
	return xxh3.HashSeed(b, h)
}

// hashTokensPortable hashes token ids as 4 bytes each, least significant first, whatever the machine's byte order.
func hashTokensPortable(h uint64, tokens []uint32) uint64 {
	var buf [chunkBytes]byte
	for len(tokens) > 0 {
		n := min(len(tokens), chunkBytes/BytesPerToken)
		for i, t := range tokens[:n] {
			buf[4*i], buf[4*i+1], buf[4*i+2], buf[4*i+3] = byte(t), byte(t>>8), byte(t>>16), byte(t>>24)
		}
		h = xxh3.HashSeed(buf[:n*BytesPerToken], h)
		tokens = tokens[n:]
	}
	return h
}

// AppendText appends to dst the hashes of the whole blocks of the text that spans of body make up when put together, as
// far as the layout reaches. Where one span ends and the next begins makes no difference. Nothing is copied but chunks
// that cross spans. Spans outside of body count as empty. It allocates only where dst is too small.
func AppendText(dst []uint64, root Root, body []byte, spans []scheduling.Span, l Layout) []uint64 {
	h := uint64(root)
	var buf [chunkBytes]byte
	c := cursor{body: body, spans: spans}
	for i, before := 0, 0; l.fits(i, before); i++ {
		width := l.Width(i)
		for left := width * l.blockBytes; left > 0; {
			n := min(left, chunkBytes)
			chunk := c.next(n, buf[:n])
			if chunk == nil {
				return dst
			}
			h = xxh3.HashSeed(chunk, h)
			left -= n
		}
		dst = append(dst, h)
		before += width
	}
	return dst
}

// cursor walks the text that spans make up.
type cursor struct {
	body  []byte
	rest  []byte // of the current span
	spans []scheduling.Span
}

// next returns the next len(buf) = n bytes, in place where one span holds them and else gathered in buf; nil where fewer
// are left.
func (c *cursor) next(n int, buf []byte) []byte {
	if len(c.rest) >= n {
		chunk := c.rest[:n]
		c.rest = c.rest[n:]
		return chunk
	}
	filled := 0
	for filled < n {
		if len(c.rest) == 0 && !c.advance() {
			return nil
		}
		k := copy(buf[filled:], c.rest)
		c.rest = c.rest[k:]
		filled += k
	}
	return buf
}

func (c *cursor) advance() bool {
	for len(c.spans) > 0 {
		s := c.spans[0]
		c.spans = c.spans[1:]
		if s.Start >= 0 && s.Start < s.End && s.End <= len(c.body) {
			c.rest = c.body[s.Start:s.End]
			return true
		}
	}
	return false
}
