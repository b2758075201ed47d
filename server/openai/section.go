package openai

import (
	"slices"

	"github.com/sluice-epp/sluice/scheduling"
)

// The fields rendered before every message, in the prompt's order.
const (
	headTemplate = iota
	headArguments
	headEffort
	headDocuments
	headFunctions
	headTools
	headFields
)

// section is a stretch of the prompt that one body field gives: spans [first, last) of Request.Prompt and what they
// weigh.
type section struct {
	first, last int
	bytes       int
	media       int
	mediaBytes  int
	prompts     int
	dropped     int
}

// The sections of a body.
const (
	systemSection = iota
	mainSection
)

// begin starts a section anew: what an earlier field of the same name gave is forgotten.
func (r *request) begin(which int) {
	s := &r.sections[which]
	if n := s.last - s.first; n > 0 {
		r.into.Prompt = slices.Delete(r.into.Prompt, s.first, s.last)
		for i := range r.sections {
			r.sections[i].shift(s.last, n)
		}
	}
	if which == mainSection {
		r.into.Tokens, r.into.TokenCount = r.into.Tokens[:0], 0
	}
	*s = section{first: len(r.into.Prompt), last: len(r.into.Prompt)}
	r.current, r.later = which, false
}

// shift follows the removal of n spans that ended at index end.
func (s *section) shift(end, n int) {
	if s.first >= end {
		s.first -= n
		s.last -= n
	}
}

// end closes the section that begin started.
func (r *request) end() {
	r.sections[r.current].last = len(r.into.Prompt)
}

// arrange brings the spans into the order of rendering: head, system, main.
func (r *request) arrange() {
	prompt := r.into.Prompt
	if main := r.sections[mainSection]; r.sections[systemSection].first > main.first {
		rotate(prompt, main.last)
	}
	n := 0
	for _, s := range r.head {
		if s.End > s.Start {
			n++
		}
	}
	if n == 0 {
		return
	}
	old := len(prompt)
	for range n {
		prompt = append(prompt, scheduling.Span{})
	}
	copy(prompt[n:], prompt[:old])
	i := 0
	for _, s := range r.head {
		if s.End > s.Start {
			prompt[i] = s
			i++
		}
	}
	r.into.Prompt = prompt
}

// rotate moves the first n spans to the end, keeping the order of both parts.
func rotate(spans []scheduling.Span, n int) {
	slices.Reverse(spans[:n])
	slices.Reverse(spans[n:])
	slices.Reverse(spans)
}

// headBytes is the length of the head's fields that are text of the prompt.
func (r *request) headBytes() (n int) {
	for _, i := range [...]int{headDocuments, headFunctions, headTools} {
		n += r.head[i].End - r.head[i].Start
	}
	return n
}

// add takes a range of the body as text of the prompt.
func (r *request) add(s scheduling.Span) {
	r.sections[r.current].bytes += s.End - s.Start
	r.keep(s)
}

// keep records a span of the first prompt.
func (r *request) keep(s scheduling.Span) {
	if r.later || s.End <= s.Start {
		return
	}
	if len(r.into.Prompt) >= MaxSpans-headFields {
		r.sections[r.current].dropped++
		return
	}
	r.into.Prompt = append(r.into.Prompt, s)
}

// Media longer than mediaSamples × mediaSample bytes is kept as that many samples of that length.
const (
	mediaSamples = 16
	mediaSample  = 64
)

// addMedia takes the range of a media value: it identifies the prompt, but is no text.
func (r *request) addMedia(s scheduling.Span) {
	length := s.End - s.Start
	r.sections[r.current].media++
	r.sections[r.current].mediaBytes += length
	if length <= mediaSamples*mediaSample {
		r.keep(s)
		return
	}
	for i := range mediaSamples {
		start := s.Start + i*(length-mediaSample)/(mediaSamples-1)
		r.keep(scheduling.Span{Start: start, End: start + mediaSample})
	}
}
