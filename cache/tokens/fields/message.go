package fields

import (
	"bytes"

	"github.com/sluice-epp/sluice/scheduling"
)

// Role is who speaks in a message.
type Role uint8

// The roles that matter; RoleOther is every other one.
const (
	RoleOther Role = iota
	RoleSystem
	RoleDeveloper
	RoleUser
	RoleAssistant
)

// Media says what a message or a body holds beside text.
type Media uint8

// The kinds of media; the larger value counts where there are several.
const (
	MediaNone   Media = iota
	MediaInline       // images, recordings and the like whose bytes are in the body
	MediaRemote       // some that are somewhere else, and may be another thing there by the next request
)

// Message is what one message is made of.
type Message struct {
	// Role is who speaks.
	Role Role
	// Plain says that the message is a role and text and nothing else, and that its text has nothing that chat templates
	// act upon: no reasoning, no tool calls, no control tokens.
	Plain bool
	// Parts says that its content is a list of parts, not a string.
	Parts bool
}

// ReadMessage reads the message at s.
func ReadMessage(b []byte, s scheduling.Span) Message {
	m := Message{Plain: true}
	roles, contents := 0, 0
	ok := eachField(b, s, func(name []byte, value scheduling.Span) {
		switch string(name) {
		case "role":
			roles++
			m.Role = roleOf(b[value.Start:value.End])
		case "content":
			contents++
			m.Parts = b[value.Start] == '['
			m.Plain = m.Plain && plainContent(b, value)
		default:
			m.Plain = false
		}
	})
	m.Plain = m.Plain && ok && roles == 1 && contents == 1 && m.Role != RoleOther
	return m
}

func roleOf(raw []byte) Role {
	switch string(raw) {
	case `"system"`:
		return RoleSystem
	case `"developer"`:
		return RoleDeveloper
	case `"user"`:
		return RoleUser
	case `"assistant"`:
		return RoleAssistant
	}
	return RoleOther
}

// eachField calls f for the fields of the object at s; ok is false where there is none.
func eachField(b []byte, s scheduling.Span, f func(name []byte, value scheduling.Span)) (ok bool) {
	if at(b, s.Start) != '{' {
		return false
	}
	b = b[:s.End]
	i := space(b, s.Start+1)
	for at(b, i) != '}' {
		name, value, ok := pair(b, i)
		if !ok {
			return false
		}
		f(name, value)
		if i = space(b, value.End); at(b, i) != ',' {
			break
		}
		i = space(b, i+1)
	}
	return at(b, i) == '}' && i+1 == s.End
}

// plainContent reports whether a content is plain text: a string, or a list of text parts.
func plainContent(b []byte, s scheduling.Span) bool {
	if b[s.Start] == '"' {
		return s.End-s.Start > 2 && plainText(b[s.Start+1:s.End-1])
	}
	var room [maxPlainParts]scheduling.Span
	parts, ok := Elements(b, s, room[:0], maxPlainParts)
	if !ok || len(parts) == 0 {
		return false
	}
	for _, p := range parts {
		if !plainPart(b, p) {
			return false
		}
	}
	return true
}

// maxPlainParts is the number of parts that a plain content has at most.
const maxPlainParts = 8

func plainPart(b []byte, s scheduling.Span) bool {
	plain, types, texts := true, 0, 0
	ok := eachField(b, s, func(name []byte, value scheduling.Span) {
		raw := b[value.Start:value.End]
		switch string(name) {
		case "type":
			types++
			plain = plain && string(raw) == `"text"`
		case "text":
			texts++
			plain = plain && len(raw) > 2 && raw[0] == '"' && plainText(raw[1:len(raw)-1])
		default:
			plain = false
		}
	})
	return ok && plain && types == 1 && texts == 1
}

// The beginnings of what chat templates and tokenizers act upon within text: behind an angle bracket and behind a square
// one. A text that holds one of them may be split, stripped or moved by its template.
var (
	angled  = []string{"|", "\uff5c", "think", "/think", "reason", "/reason", "s>", "/s>", "start_of", "end_of", "tool", "/tool", "bos", "eos", "unk", "pad", "image", "video", "audio", "seed:", "function", "/function"}
	squared = []string{"INST", "/INST", "TOOL", "/TOOL", "AVAILABLE", "gMASK", "PAD", "CLS", "SEP", "/AVAILABLE", "SYSTEM", "/SYSTEM", "THINK", "/THINK", "IMG", "MASK", "BEGIN", "CALL", "ARGS"}
)

// plainText reports whether the raw content of a string holds no marker.
func plainText(raw []byte) bool {
	for {
		i := bytes.IndexAny(raw, `<[\`)
		if i < 0 {
			return true
		}
		opening := raw[i]
		raw = raw[i+1:]
		if opening == '\\' {
			var ok bool
			if opening, raw, ok = escape(raw); !ok {
				return false
			}
		}
		if opening == '<' && beginsWith(raw, angled) || opening == '[' && beginsWith(raw, squared) {
			return false
		}
	}
}

// escape reads what follows a backslash. ok is false for a printable ASCII character in the form \u00XX, other than those
// that some encoders always write so: it may hide a part of a marker.
func escape(rest []byte) (char byte, after []byte, ok bool) {
	if at(rest, 0) != 'u' {
		return 0, rest[min(1, len(rest)):], len(rest) > 0
	}
	if len(rest) < 5 {
		return 0, nil, false
	}
	code, after := rest[1:5], rest[5:]
	if code[0] != '0' || code[1] != '0' {
		return 0, after, true
	}
	switch string(code[2:]) {
	case "3c", "3C":
		return '<', after, true
	case "3e", "3E", "26", "27", "22", "7f", "7F": // > & ' " and delete
		return 0, after, true
	}
	return 0, after, code[2] < '2' || code[2] > '7'
}

// beginsWith reports whether a text begins with one of some words, in any case, or with an escape that may hide one.
func beginsWith(text []byte, words []string) bool {
	if at(text, 0) == '\\' && at(text, 1) == 'u' {
		return true
	}
	for _, word := range words {
		if n := len(word); len(text) >= n && bytes.EqualFold(text[:n], []byte(word)) {
			return true
		}
	}
	return false
}
