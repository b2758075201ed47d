// Package fields finds the raw fields of a request body: where each value of a JSON object stands, and what the messages
// of a conversation are made of. Nothing is decoded, copied or judged: a body goes to an engine as the client wrote it,
// and what the engine refuses is the engine's to say.
package fields

import (
	"bytes"
	"slices"
	"unicode/utf8"

	"github.com/sluice-epp/sluice/scheduling"
)

// MaxFields is the number of top-level fields that a Document holds; a body with more is not read.
const MaxFields = 256

// byteOrderMark may stand before a body in UTF-8.
const byteOrderMark = "\xef\xbb\xbf"

// Field is one top-level field of a body.
type Field struct {
	// Name is the key's raw content; a key with escapes is left as it stands.
	Name []byte
	// Value is the range of the raw value.
	Value scheduling.Span
}

// Document is a body and its top-level fields. It aliases the body, and is reused from one body to the next.
type Document struct {
	// Body is what was read.
	Body []byte
	// Fields are the fields in the body's order. Of two with one name the later one is what engines take.
	Fields []Field
	// Escaped says that a key is written with escapes, so that its name is not known.
	Escaped bool

	start, end int // of the object: its opening and its closing brace
}

// Read finds the fields of a body. It is false for what is no JSON object in UTF-8, and for one with more than MaxFields.
func (d *Document) Read(body []byte) bool {
	d.Body, d.Fields, d.Escaped = body, d.Fields[:0], false
	i := 0
	if bytes.HasPrefix(body, []byte(byteOrderMark)) {
		i = len(byteOrderMark)
	}
	i = space(body, i)
	if at(body, i) != '{' {
		return false
	}
	d.start = i
	i = space(body, i+1)
	if at(body, i) == '}' {
		d.end = i
		return space(body, i+1) == len(body)
	}
	for len(d.Fields) < MaxFields {
		name, value, ok := pair(body, i)
		if !ok {
			return false
		}
		d.Escaped = d.Escaped || bytes.IndexByte(name, '\\') >= 0
		d.Fields = append(d.Fields, Field{Name: name, Value: value})
		i = space(body, value.End)
		switch at(body, i) {
		case ',':
			i = space(body, i+1)
		case '}':
			d.end = i
			return space(body, i+1) == len(body)
		default:
			return false
		}
	}
	return false
}

// Last is the range of the value that a name has: the last one's where it comes more than once. A value of null counts
// as absent.
func (d *Document) Last(name string) (value scheduling.Span, ok bool) {
	for i := len(d.Fields) - 1; i >= 0; i-- {
		if f := &d.Fields[i]; string(f.Name) == name {
			return f.Value, d.Body[f.Value.Start] != 'n'
		}
	}
	return scheduling.Span{}, false
}

// Raw is a value as it stands.
func (d *Document) Raw(s scheduling.Span) []byte { return d.Body[s.Start:s.End] }

// Is reports whether a name has the given raw value.
func (d *Document) Is(name, raw string) bool {
	value, ok := d.Last(name)
	return ok && string(d.Raw(value)) == raw
}

// Edit replaces a range of a body.
type Edit struct {
	// At is the range; an empty one is an insertion.
	At scheduling.Span
	// Text takes its place.
	Text []byte

	field bool // Text is a field behind the last one
}

var comma = []byte{','}

// AppendPieces appends the object with edits, as pieces to be sent one after the other, to dst. The pieces alias the body
// and the edits, which must not overlap; their order does not matter, and they are sorted.
func (d *Document) AppendPieces(dst [][]byte, edits []Edit) [][]byte {
	slices.SortStableFunc(edits, func(a, b Edit) int { return a.At.Start - b.At.Start })
	from := d.start
	add := func(piece []byte) {
		if len(piece) > 0 {
			dst = append(dst, piece)
		}
	}
	separate := len(d.Fields) > 0
	for _, e := range edits {
		add(d.Body[from:e.At.Start])
		if e.field && separate {
			add(comma)
		}
		separate = separate || e.field
		add(e.Text)
		from = e.At.End
	}
	add(d.Body[from : d.end+1])
	return dst
}

// With is the edit that gives a field a value: in the place of the one that it has, else behind the last field. raw is
// JSON.
func (d *Document) With(name string, raw []byte) Edit {
	for i := len(d.Fields) - 1; i >= 0; i-- {
		if f := &d.Fields[i]; string(f.Name) == name {
			return Edit{At: f.Value, Text: raw}
		}
	}
	text := make([]byte, 0, len(name)+len(raw)+3)
	text = append(text, '"')
	text = append(text, name...)
	text = append(text, `":`...)
	text = append(text, raw...)
	return Edit{At: scheduling.Span{Start: d.end, End: d.end}, Text: text, field: true}
}

// AppendQuoted appends s as a JSON string to dst. What is not UTF-8 becomes U+FFFD.
func AppendQuoted(dst []byte, s string) []byte {
	const hex = "0123456789abcdef"
	dst = append(dst, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			dst = append(dst, '\\', byte(r))
		case r < ' ':
			dst = append(dst, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			dst = utf8.AppendRune(dst, r)
		}
	}
	return append(dst, '"')
}
