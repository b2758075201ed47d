package config

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxFileBytes is the largest configuration file.
const MaxFileBytes = 1 << 20

// maxNesting bounds how deep collections may nest, and how many may open on one line: the YAML parser recurses.
const maxNesting = 64

// shield is added to each ASCII character between the braces of a ${…} before YAML is parsed, so that a reference is
// plain text in every context, flow collections included, whatever its default holds. The range is private use; a
// source that holds any of it is refused.
const shield rune = 0x10F800

// shieldReferences makes every ${…} that ends on its line opaque to YAML. Characters are replaced one for one, so that
// columns stay right.
func shieldReferences(text string) string {
	var b strings.Builder
	for {
		start := strings.Index(text, "${")
		if start < 0 {
			break
		}
		end := strings.IndexAny(text[start:], "}\r\n")
		if end < 0 || text[start+end] != '}' {
			b.WriteString(text[:start+2])
			text = text[start+2:]
			continue
		}
		b.WriteString(text[:start+1])
		for _, r := range text[start+1 : start+end+1] {
			if r < utf8.RuneSelf {
				r += shield
			}
			b.WriteRune(r)
		}
		text = text[start+end+1:]
	}
	b.WriteString(text)
	return b.String()
}

// unshield undoes shieldReferences.
func unshield(text string) string {
	return strings.Map(func(r rune) rune {
		if r >= shield && r < shield+utf8.RuneSelf {
			return r - shield
		}
		return r
	}, text)
}

// checkSource reports what would confuse the YAML parser or this package, with its position.
func checkSource(name, text string) Faults {
	if len(text) > MaxFileBytes {
		return Faults{{File: name, Line: 1, Column: 1, Message: fmt.Sprintf("has %d bytes; at most %d are read", len(text), MaxFileBytes)}}
	}
	var faults Faults
	for i, line := range strings.Split(text, "\n") {
		column := 0
		for j := 0; j < len(line); {
			r, size := utf8.DecodeRuneInString(line[j:])
			column++
			if message := badCharacter(r, size, line[j:]); message != "" {
				faults = append(faults, Fault{File: name, Line: i + 1, Column: column, Message: message})
				break // one a line is enough
			}
			j += size
		}
	}
	return faults
}

func badCharacter(r rune, size int, rest string) string {
	switch {
	case r == utf8.RuneError && size == 1:
		return "is not UTF-8"
	case r == '\r' && len(rest) > 1:
		return "carriage return within a line"
	case r < ' ' && r != '\t' && r != '\r' || r == 0x7f:
		return fmt.Sprintf("control character %q", r)
	case r >= 0x10F000:
		return fmt.Sprintf("private-use character %U", r)
	case r == '\\' && len(rest) >= 6 && strings.EqualFold(rest[:6], `\U0010`) && rest[1] == 'U':
		return `escape \U0010… of a private-use character`
	}
	return ""
}
