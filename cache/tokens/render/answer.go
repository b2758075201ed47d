package render

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/sluice-epp/sluice/scheduling"
)

// Bounds of an answer. What is past them is no answer.
const (
	// MaxTokens is the number of tokens over all prompts of one answer.
	MaxTokens = 4 << 20
	// MaxAnswerBytes is the length of an answer's body.
	MaxAnswerBytes = 64 << 20
	// MaxPrompts is the number of prompts in one answer.
	MaxPrompts = 4096
	// MaxFeatures is the number of features of one prompt.
	MaxFeatures = 4096
	// MaxFeatureID is the length of a feature's identifier in bytes.
	MaxFeatureID = 512
)

// Answer is a rendered request.
type Answer struct {
	// Tokens are the first prompt's token ids.
	Tokens []uint32
	// Count is the number of tokens over all prompts.
	Count int
	// Prompts is the number of prompts.
	Prompts int
	// Features are the images, recordings and the like in the first prompt, by offset.
	Features []scheduling.PromptFeature
	// Tokenized says that the tokenize route gave the tokens.
	Tokenized bool
}

// answerReader is what reading an answer takes; reused.
type answerReader struct {
	reader
	tokens []uint32
	items  []item // identifiers of the features of the prompt at hand
	places []item // their places
	id     [MaxFeatureID]byte
}

// item is a half of what is known of a feature.
type item struct {
	modality string
	scheduling.PromptFeature
}

var answerReaders = sync.Pool{New: func() any { return &answerReader{reader: reader{buf: make([]byte, bufferSize)}} }}

// maxKept bounds the tokens whose room a reader keeps for the next answer.
const maxKept = 1 << 18

// read reads an answer with f. What f returns must not alias the reader.
func read(from io.Reader, f func(*answerReader) Answer) (Answer, error) {
	r, _ := answerReaders.Get().(*answerReader)
	r.from, r.limit, r.pos, r.end, r.err, r.tokens = from, MaxAnswerBytes, 0, 0, nil, r.tokens[:0]
	answer := f(r)
	err := r.close()
	r.from = nil
	if cap(r.tokens) > maxKept {
		r.tokens = nil
	}
	clear(r.items[:cap(r.items)])
	answerReaders.Put(r)
	if err != nil {
		return Answer{}, err
	}
	return answer, nil
}

// ReadRendered reads the answer of a render route: one object, or, for completions, an array with an object for each
// prompt. (vLLM's GenerateRequest.)
func ReadRendered(from io.Reader) (Answer, error) {
	return read(from, func(r *answerReader) (a Answer) {
		if r.token() != '[' {
			r.prompt(&a)
			return a
		}
		r.array(func() {
			if a.Prompts == MaxPrompts {
				r.err = fmt.Errorf("has more than %d prompts: %w", MaxPrompts, errLong)
				return
			}
			r.prompt(&a)
		})
		if a.Prompts == 0 {
			r.syntax()
		}
		return a
	})
}

// prompt reads one rendered prompt.
func (r *answerReader) prompt(a *Answer) {
	found := false
	r.items, r.places = r.items[:0], r.places[:0]
	r.object(func(key string) {
		switch key {
		case "token_ids":
			r.tokens, found = r.ids(r.tokens[:0], MaxTokens-a.Count), true
		case "features":
			if !r.null() {
				r.features()
			}
		default:
			r.skip()
		}
	})
	if r.err != nil {
		return
	}
	if !found {
		r.syntax()
		return
	}
	if a.Prompts == 0 {
		a.Tokens = slices.Clone(r.tokens)
		a.Features = r.arranged(len(r.tokens))
	}
	a.Count += len(r.tokens)
	a.Prompts++
}

// features reads what is in a prompt beside text: for each modality the identifiers and the places of its items.
func (r *answerReader) features() {
	r.items, r.places = r.items[:0], r.places[:0]
	r.object(func(key string) {
		switch key {
		case "mm_hashes":
			r.modalities(&r.items, func(i *item) { i.ID = r.identifier() })
		case "mm_placeholders":
			r.modalities(&r.places, func(i *item) { i.Offset, i.Length = r.place() })
		default:
			r.skip()
		}
	})
}

// modalities reads an object that holds a list of items for each modality.
func (r *answerReader) modalities(into *[]item, one func(*item)) {
	*into = (*into)[:0]
	r.object(func(modality string) {
		r.array(func() {
			if len(*into) == MaxFeatures {
				r.err = fmt.Errorf("has more than %d features: %w", MaxFeatures, errLong)
				return
			}
			i := item{modality: modality}
			one(&i)
			*into = append(*into, i)
		})
	})
}

// identifier reads a feature's identifier.
func (r *answerReader) identifier() string {
	id, whole := r.text(r.id[:0])
	if !whole || len(id) == 0 {
		r.syntax()
	}
	return string(id)
}

// place reads where a feature stands.
func (r *answerReader) place() (offset, length int) {
	offset, length = -1, -1
	r.object(func(key string) {
		switch key {
		case "offset":
			offset = int(r.number(MaxTokens))
		case "length":
			length = int(r.number(MaxTokens))
		default:
			r.skip()
		}
	})
	if offset < 0 || length < 0 {
		r.syntax()
	}
	return offset, length
}

// arranged joins identifiers and places, which must correspond, and must lie one behind the other within a prompt of so
// many tokens.
func (r *answerReader) arranged(tokens int) []scheduling.PromptFeature {
	if len(r.items) != len(r.places) {
		r.syntax()
	}
	if len(r.items) == 0 || r.err != nil {
		return nil
	}
	byModality := func(a, b item) int { return strings.Compare(a.modality, b.modality) }
	slices.SortStableFunc(r.items, byModality)
	slices.SortStableFunc(r.places, byModality)
	features := make([]scheduling.PromptFeature, len(r.items))
	for i := range features {
		if r.items[i].modality != r.places[i].modality {
			r.syntax()
			return nil
		}
		features[i] = r.places[i].PromptFeature
		features[i].ID = r.items[i].ID
	}
	slices.SortStableFunc(features, func(a, b scheduling.PromptFeature) int { return a.Offset - b.Offset })
	end := 0
	for _, f := range features {
		if f.Offset < end || f.Length > tokens-f.Offset {
			r.syntax()
			return nil
		}
		end = f.Offset + f.Length
	}
	return features
}

// ReadTokenized reads the answer of a tokenize route.
func ReadTokenized(from io.Reader) (Answer, error) {
	return read(from, func(r *answerReader) (a Answer) {
		count, found := -1, false
		r.object(func(key string) {
			switch key {
			case "tokens":
				r.tokens, found = r.ids(r.tokens[:0], MaxTokens), true
			case "count":
				count = int(r.number(MaxTokens))
			default:
				r.skip()
			}
		})
		if r.err == nil && (!found || count != len(r.tokens)) {
			r.syntax()
		}
		return Answer{Tokens: slices.Clone(r.tokens), Count: len(r.tokens), Prompts: 1, Tokenized: true}
	})
}
