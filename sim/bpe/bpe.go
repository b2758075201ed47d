// Package bpe is a small byte-level byte-pair tokenizer: every byte string has an encoding, and
// decoding gives back the same bytes.
//
// Its merge table is trained from a text of this project (corpus.txt) by [Train]; `go generate`
// writes merges.txt anew. Token ids are, in this order: the 256 bytes, the merges in the order in
// which they were learned, and the [Special] markers.
package bpe

//go:generate go test -run ^TestMergesAreFresh$ -update .

import (
	_ "embed"
	"fmt"
	"strconv"
	"strings"
	"sync"
)

//go:embed corpus.txt
var corpus string

//go:embed merges.txt
var merges string

// Corpus is the text that the merge table was trained on.
func Corpus() string { return corpus }

// Special is a token that no ordinary text encodes to. It marks the structure of a chat.
type Special uint32

// The special tokens. Each message of a chat starts with the marker of its role and ends with End.
const (
	System Special = iota
	User
	Assistant
	Tool
	Other // any other role; the role's name follows as text
	End
	Image // stands for a picture; a digest of it follows as text
	Begin // precedes a text whose special tokens are asked for
	numSpecial
)

var specialText = [numSpecial]string{
	"<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", "<|other|>", "<|end|>", "<|image|>", "<|begin|>",
}

// maxIDs bounds the vocabulary, so that a pair of ids fits into the merge table's key.
const maxIDs = 1 << 12

// Pair is one merge: the ids of the two tokens that become one.
type Pair struct{ Left, Right uint32 }

// Tokenizer encodes and decodes. It is immutable and safe for concurrent use.
type Tokenizer struct {
	text  []string // by id
	table []slot   // open addressing, length a power of two
	first Special  // id of the first special token
}

type slot struct{ key, id uint32 } // key is 1 + left<<12 + right; 0 is empty

// Load returns the tokenizer of the embedded merge table. It is built once.
var Load = sync.OnceValues(func() (*Tokenizer, error) {
	pairs, err := ParseMerges(merges)
	if err != nil {
		return nil, err
	}
	return New(pairs)
})

// ParseMerges reads a merge table: a line "left right" of decimal ids for each merge.
func ParseMerges(text string) ([]Pair, error) {
	var pairs []Pair
	for n, line := range strings.Split(strings.TrimSuffix(text, "\n"), "\n") {
		left, right, _ := strings.Cut(line, " ")
		l, errL := strconv.ParseUint(left, 10, 32)
		r, errR := strconv.ParseUint(right, 10, 32)
		if errL != nil || errR != nil {
			return nil, fmt.Errorf("merges:%d: want two decimal ids, got %q", n+1, line)
		}
		pairs = append(pairs, Pair{uint32(l), uint32(r)})
	}
	return pairs, nil
}

// New makes a tokenizer from merges. A merge may use the ids of bytes and of earlier merges only.
func New(pairs []Pair) (*Tokenizer, error) {
	if n := 256 + len(pairs) + int(numSpecial); n > maxIDs {
		return nil, fmt.Errorf("merges: vocabulary of %d exceeds %d", n, maxIDs)
	}
	t := &Tokenizer{table: make([]slot, 4*maxIDs), first: Special(256 + len(pairs))}
	for b := range 256 {
		t.text = append(t.text, string([]byte{byte(b)}))
	}
	for i, p := range pairs {
		id := uint32(256 + i)
		if p.Left >= id || p.Right >= id {
			return nil, fmt.Errorf("merges[%d]: %d %d: id is not known yet", i, p.Left, p.Right)
		}
		if t.merged(p.Left, p.Right) != noMerge {
			return nil, fmt.Errorf("merges[%d]: %d %d: duplicate", i, p.Left, p.Right)
		}
		t.text = append(t.text, t.text[p.Left]+t.text[p.Right])
		key := 1 + p.Left<<12 + p.Right
		at := t.home(key)
		for t.table[at].key != 0 {
			at = (at + 1) & (len(t.table) - 1)
		}
		t.table[at] = slot{key, id}
	}
	t.text = append(t.text, specialText[:]...)
	return t, nil
}

// Size is the number of token ids.
func (t *Tokenizer) Size() int { return len(t.text) }

// ID is the token id of a special token.
func (t *Tokenizer) ID(s Special) uint32 { return uint32(t.first + s) }

// Text is the text of one token; that of an ordinary token need not be valid UTF-8. It reports
// false for an id outside the vocabulary.
func (t *Tokenizer) Text(id uint32) (string, bool) {
	if int64(id) >= int64(len(t.text)) {
		return "", false
	}
	return t.text[id], true
}

// Decode appends the text of the tokens to dst. It fails on an id outside the vocabulary.
func (t *Tokenizer) Decode(dst []byte, ids []uint32) ([]byte, error) {
	for i, id := range ids {
		s, ok := t.Text(id)
		if !ok {
			return dst, fmt.Errorf("tokens[%d]: id %d is out of vocabulary of %d", i, id, len(t.text))
		}
		dst = append(dst, s...)
	}
	return dst, nil
}

// Append encodes text and appends the token ids to dst. Markers in the text are text.
func (t *Tokenizer) Append(dst []uint32, text string) []uint32 {
	for len(text) > 0 {
		n := pieceLen(text)
		dst = t.appendPiece(dst, text[:n])
		text = text[n:]
	}
	return dst
}

// AppendMarked is Append for text in which the markers of special tokens count as such.
func (t *Tokenizer) AppendMarked(dst []uint32, text string) []uint32 {
	from := 0
	for from < len(text) {
		i := strings.Index(text[from:], "<|")
		if i < 0 {
			break
		}
		at := from + i
		s, ok := specialAt(text[at:])
		if !ok {
			from = at + 2
			continue
		}
		dst = append(t.Append(dst, text[:at]), t.ID(s))
		text, from = text[at+len(specialText[s]):], 0
	}
	return t.Append(dst, text)
}

func specialAt(text string) (Special, bool) {
	for s := range numSpecial {
		if strings.HasPrefix(text, specialText[s]) {
			return s, true
		}
	}
	return 0, false
}

// noMerge is above every id.
const noMerge = uint32(1 << 31)

func (t *Tokenizer) home(key uint32) int {
	return int((key * 0x9E3779B1) >> (32 - 14) & uint32(len(t.table)-1))
}

// merged is the id that two tokens become, or noMerge. Lower ids were learned first.
func (t *Tokenizer) merged(left, right uint32) uint32 {
	key := 1 + left<<12 + right
	for at := t.home(key); ; at = (at + 1) & (len(t.table) - 1) {
		switch t.table[at].key {
		case key:
			return t.table[at].id
		case 0:
			return noMerge
		}
	}
}

// appendPiece merges the pair learned first, the leftmost of equals, until none is left.
func (t *Tokenizer) appendPiece(dst []uint32, piece string) []uint32 {
	var ids, rank [maxPiece]uint32 // rank[i]: what ids[i] and ids[i+1] become
	n := len(piece)
	for i := range n {
		ids[i] = uint32(piece[i])
	}
	for i := range n - 1 {
		rank[i] = t.merged(ids[i], ids[i+1])
	}
	for n > 1 {
		best := 0
		for i := 1; i < n-1; i++ {
			if rank[i] < rank[best] {
				best = i
			}
		}
		if rank[best] == noMerge {
			break
		}
		ids[best] = rank[best]
		copy(ids[best+1:n-1], ids[best+2:n])
		copy(rank[best:n-2], rank[best+1:n-1])
		n--
		if best > 0 {
			rank[best-1] = t.merged(ids[best-1], ids[best])
		}
		if best < n-1 {
			rank[best] = t.merged(ids[best], ids[best+1])
		}
	}
	return append(dst, ids[:n]...)
}
