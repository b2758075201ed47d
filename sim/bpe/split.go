package bpe

import "iter"

// maxPiece bounds a piece in bytes: merging takes time quadratic in it.
const maxPiece = 32

type class uint8

const (
	punct class = iota
	space
	digit
	letter // and every byte of a multi-byte rune
)

var classes = func() (c [256]class) {
	for b := range 256 {
		switch {
		case b == ' ' || b >= '\t' && b <= '\r':
			c[b] = space
		case b >= '0' && b <= '9':
			c[b] = digit
		case b >= 'a' && b <= 'z' || b >= 'A' && b <= 'Z' || b == '_' || b >= 0x80:
			c[b] = letter
		}
	}
	return c
}()

// pieceLen is the length of the first piece of a text that is not empty. No token crosses a
// piece's border. A piece is a run of letters, of at most three digits or of other printable
// characters, each with the one blank before it; or a run of white space, less the last blank when
// that belongs to what follows.
func pieceLen(text string) int {
	i := 0
	if text[0] == ' ' && len(text) > 1 && classes[text[1]] != space {
		i = 1
	}
	c := classes[text[i]]
	limit := min(len(text), maxPiece)
	if c == digit {
		limit = min(limit, i+3)
	}
	end := i + 1
	for end < limit && classes[text[end]] == c {
		end++
	}
	if c == space && end-i > 1 && end < len(text) && text[end-1] == ' ' && classes[text[end]] != space {
		end--
	}
	return end
}

// Pieces yields the pieces of a text. Their encodings, one after the other, are that of the text.
func Pieces(text string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for len(text) > 0 {
			n := pieceLen(text)
			if !yield(text[:n]) {
				return
			}
			text = text[n:]
		}
	}
}
