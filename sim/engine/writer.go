package engine

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/sim/bpe"
)

// writer makes up the model's answers: a walk from word to word as they follow one another in the
// tokenizer's corpus. Every step is one token, a blank with a word or a mark of punctuation, and
// such tokens never merge with a neighbour, so the text of an answer encodes to the very tokens it
// was made of. That is what lets the next turn of a chat find them in the prefix cache.
type writer struct {
	follow map[uint32][]uint32 // tokens seen after a token
	starts []start
}

// start is a word that begins a sentence in the corpus.
type start struct{ bare, spaced uint32 } // without and with the blank before it

func newWriter(tok *bpe.Tokenizer) (*writer, error) {
	w := &writer{follow: make(map[uint32][]uint32)}
	prev, have := uint32(0), false
	for piece := range bpe.Pieces(bpe.Corpus()) {
		id, ok := whole(tok, piece)
		ok = ok && (isWord(piece) || piece == "." || piece == ",")
		if ok && have && (isWord(piece) || isWord(text(tok, prev))) {
			w.follow[prev] = append(w.follow[prev], id)
			if text(tok, prev) == "." {
				if bare, ok := whole(tok, piece[1:]); ok {
					w.starts = append(w.starts, start{bare, id})
				}
			}
		}
		prev, have = id, ok
	}
	w.starts = slices.DeleteFunc(w.starts, func(s start) bool { return len(w.follow[s.spaced]) == 0 })
	if len(w.starts) == 0 {
		return nil, errors.New("corpus: no sentence begins with a known word")
	}
	return w, nil
}

func text(tok *bpe.Tokenizer, id uint32) string { s, _ := tok.Text(id); return s }

// whole is the id of the token that is the whole piece, if there is one.
func whole(tok *bpe.Tokenizer, piece string) (uint32, bool) {
	ids := tok.Append(nil, piece)
	return ids[0], len(ids) == 1
}

func isWord(piece string) bool {
	return len(piece) > 1 && piece[0] == ' ' &&
		strings.Trim(piece[1:], "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ") == ""
}

// write makes n tokens that depend on the prompt and on the number of the sample alone. The first
// has no blank before it when bare is set.
func (w *writer) write(prompt []uint32, sample, n int, bare bool) []uint32 {
	rng := rand.New(rand.NewPCG(digest(prompt), uint64(sample)))
	out := make([]uint32, 0, n)
	for len(out) < n {
		if len(out) > 0 {
			if next := w.follow[out[len(out)-1]]; len(next) > 0 {
				out = append(out, next[rng.IntN(len(next))])
				continue
			}
		}
		s := w.starts[rng.IntN(len(w.starts))]
		if len(out) == 0 && bare {
			out = append(out, s.bare)
			if n > 1 {
				next := w.follow[s.spaced]
				out = append(out, next[rng.IntN(len(next))])
			}
			continue
		}
		out = append(out, s.spaced)
	}
	return out
}

// digest is a hash of tokens.
func digest(tokens []uint32) uint64 {
	h := xxh3.New()
	var buf [4096]byte
	for len(tokens) > 0 {
		b := buf[:0]
		for len(tokens) > 0 && len(b) < len(buf) {
			b = binary.LittleEndian.AppendUint32(b, tokens[0])
			tokens = tokens[1:]
		}
		// Writing to a hash never fails.
		_, _ = h.Write(b)
	}
	return h.Sum64()
}
