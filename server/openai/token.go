package openai

import (
	"bytes"
	"encoding/binary"
	"math/bits"
)

// readString reads a key or a string value.
func (d *document) readString(p []byte) []byte {
	if !d.some && p[0] != '"' {
		d.some = true
		d.content()
	}
	n, closed := d.stringTail(p)
	text := p[:n]
	if closed {
		text = p[:n-1]
	}
	if d.inKey || d.want.name {
		d.capture(text)
	}
	if closed {
		d.state = docStructure
		d.endString()
	}
	return p[n:]
}

// content acts on the first byte of a string value.
func (d *document) content() {
	if d.inKey {
		return
	}
	if d.want.text {
		d.facts.first = true
	}
	if d.want.failure {
		d.facts.failed = true
	}
}

// capture keeps a string's text as far as it can be one that is compared.
func (d *document) capture(text []byte) {
	if d.length+len(text) > maxText {
		d.length = maxText + 1
		return
	}
	d.length += copy(d.text[d.length:], text)
}

func (d *document) endString() {
	switch {
	case d.length > maxText:
	case d.inKey:
		d.want = d.levels[d.depth-1].node.field(d.text[:d.length])
	case d.want.name:
		d.event(d.text[:d.length])
	}
}

// event acts on the type of an event.
func (d *document) event(name []byte) {
	switch string(name) {
	case "message_stop", "response.completed", "response.incomplete":
		d.facts.done = true
	case "response.failed", "response.cancelled":
		d.facts.done, d.facts.failed = true, true
	case "error":
		d.facts.failed = true
	}
}

// stringTail is the length of what p holds of a string, its closing quote included where that is there.
func (d *document) stringTail(p []byte) (n int, closed bool) {
	i := 0
	if d.escaped {
		i, d.escaped = 1, false
	}
	for {
		end := bytes.IndexByte(p[i:], '"')
		last := len(p)
		if end >= 0 {
			last = i + end
		}
		slash := last
		for slash > i && p[slash-1] == '\\' {
			slash--
		}
		odd := (last-slash)&1 == 1
		switch {
		case end < 0:
			d.escaped = odd
			return len(p), false
		case !odd:
			return last + 1, true
		}
		i = last + 1
	}
}

// number is a number being read; only its whole part matters.
type number struct {
	value    int
	fraction bool
	invalid  bool // no count
}

func (d *document) readNumber(p []byte) []byte {
	for i, b := range p {
		switch {
		case b-'0' <= 9:
			if !d.number.fraction && d.number.value < maxCount {
				d.number.value = d.number.value*10 + int(b-'0')
			}
		case b == '.':
			d.number.fraction = true
		case b == '-' || b == '+' || b|0x20 == 'e':
			d.number.invalid = true
		default:
			d.state = docStructure
			d.endNumber()
			return p[i:]
		}
	}
	return nil
}

func (d *document) endNumber() {
	if d.want.count == countNone || d.inKey || d.number.invalid || d.number.value >= maxCount {
		return
	}
	d.facts.counts.set(d.want.count, d.number.value)
	if d.want.count == countCompletion && d.number.value > 0 {
		d.facts.first = true // a token whose text is empty or held back
	}
}

// skip moves through a value that is not followed.
func (d *document) skip(p []byte) []byte {
	for {
		i := bracketOrQuote(p)
		if i < 0 {
			return nil
		}
		b := p[i]
		p = p[i+1:]
		switch b {
		case '"':
			n, closed := d.stringTail(p)
			p = p[n:]
			if !closed {
				d.state = docSkipString
				return nil
			}
		case '{', '[':
			d.skipped++
		default:
			if d.skipped--; d.skipped == 0 {
				d.closed()
				return p
			}
		}
	}
}

// bracketOrQuote is the index of the first bracket, brace or quote, or -1. Bit 5 alone tells [ from { and ] from }.
func bracketOrQuote(p []byte) int {
	const bit5 = 0x2020202020202020
	i := 0
	for ; len(p)-i >= 8; i += 8 {
		word := binary.LittleEndian.Uint64(p[i:])
		folded := word | bit5
		if m := bytesEqual(word, '"') | bytesEqual(folded, '{') | bytesEqual(folded, '}'); m != 0 {
			return i + bits.TrailingZeros64(m)/8
		}
	}
	for ; i < len(p); i++ {
		switch p[i] {
		case '"', '{', '}', '[', ']':
			return i
		}
	}
	return -1
}
