package metrics

import (
	"bytes"
	"strconv"
	"strings"
)

// The grammar is that of the Prometheus text format, https://prometheus.io/docs/instrumenting/exposition_formats/, read
// leniently: lines may end in CRLF, and what OpenMetrics puts behind a value (a timestamp in seconds, an exemplar) is
// allowed.

// isBlank reports whether a byte separates tokens.
func isBlank(c byte) bool { return c == ' ' || c == '\t' }

func skipBlanks(b []byte) []byte {
	for len(b) > 0 && isBlank(b[0]) {
		b = b[1:]
	}
	return b
}

// nextLabel takes the next label off what follows the opening brace or the label before. The value still has its
// escapes. With the closing brace, which it takes off as well, done is true.
func nextLabel(b []byte) (name, value, rest []byte, done, ok bool) {
	b = skipBlanks(b)
	if len(b) > 0 && b[0] == '}' {
		return nil, nil, b[1:], true, true
	}
	if name, b, ok = labelName(b); !ok || len(b) == 0 || b[0] != '"' {
		return nil, nil, nil, false, false
	}
	end := endOfString(b[1:])
	if end < 0 {
		return nil, nil, nil, false, false
	}
	value, b = b[1:1+end], skipBlanks(b[end+2:])
	if len(b) > 0 && b[0] == ',' {
		return name, value, b[1:], false, true
	}
	return name, value, b, false, len(b) > 0 && b[0] == '}'
}

// labelName takes a label's name and the equals sign off; the name may stand in quotes.
func labelName(b []byte) (name, rest []byte, ok bool) {
	if len(b) > 0 && b[0] == '"' {
		end := endOfString(b[1:])
		if end < 0 {
			return nil, nil, false
		}
		name, b = b[1:1+end], skipBlanks(b[end+2:])
		return name, skipBlanks(bytes.TrimPrefix(b, []byte("="))), len(b) > 0 && b[0] == '='
	}
	equals := bytes.IndexByte(b, '=')
	if equals <= 0 {
		return nil, nil, false
	}
	name = bytes.TrimRight(b[:equals], " \t")
	return name, skipBlanks(b[equals+1:]), len(name) > 0
}

// endOfString is the index of the quote that ends a string, or -1.
func endOfString(b []byte) int {
	for from := 0; ; {
		i := bytes.IndexByte(b[from:], '"')
		if i < 0 {
			return -1
		}
		i += from
		escapes := 0
		for i-escapes > 0 && b[i-escapes-1] == '\\' {
			escapes++
		}
		if escapes%2 == 0 {
			return i
		}
		from = i + 1
	}
}

// unescaped is a label's value without its escapes.
func unescaped(value string) string {
	if !strings.Contains(value, `\`) {
		return value
	}
	return escapes.Replace(value)
}

var escapes = strings.NewReplacer(`\\`, `\`, `\"`, `"`, `\n`, "\n")

// number reads the value at the start of what follows a sample's labels, and checks what comes behind it.
func number(b []byte) (v float64, ok bool) {
	b = skipBlanks(b)
	end := 0
	for end < len(b) && !isBlank(b[end]) {
		end++
	}
	v, ok = parseFloat(b[:end])
	return v, ok && validTail(skipBlanks(b[end:]))
}

func parseFloat(b []byte) (float64, bool) {
	for _, c := range b {
		if c == '_' || c|0x20 == 'x' || c|0x20 == 'p' {
			return 0, false // Go's notation, not the format's
		}
	}
	v, err := strconv.ParseFloat(string(b), 64) // a number of usual length stays on the stack
	return v, err == nil
}

// validTail reports whether what follows a value is nothing, a timestamp, or an exemplar behind either.
func validTail(b []byte) bool {
	if len(b) == 0 || b[0] == '#' {
		return true
	}
	end := 0
	for end < len(b) && !isBlank(b[end]) {
		end++
	}
	if _, ok := parseFloat(b[:end]); !ok {
		return false
	}
	rest := skipBlanks(b[end:])
	return len(rest) == 0 || rest[0] == '#'
}

// positiveInt reads a label's value as a whole number above 0; 0 where it is none ("None", "auto").
func positiveInt(b []byte) int {
	n, err := strconv.Atoi(string(b))
	if err != nil || n < 0 {
		return 0
	}
	return n
}
