package fields

import (
	"bytes"

	"github.com/sluice-epp/sluice/scheduling"
)

// at is the byte at i, or 0 behind the end; 0 begins no JSON token.
func at(b []byte, i int) byte {
	if i < len(b) {
		return b[i]
	}
	return 0
}

// space is the index of the first byte from i on that is no white space.
func space(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\n' || b[i] == '\t' || b[i] == '\r') {
		i++
	}
	return i
}

// pair reads the key at i, its colon and its value.
func pair(b []byte, i int) (name []byte, value scheduling.Span, ok bool) {
	if at(b, i) != '"' {
		return nil, value, false
	}
	end := stringEnd(b, i+1)
	if end < 0 {
		return nil, value, false
	}
	name = b[i+1 : end]
	i = space(b, end+1)
	if at(b, i) != ':' {
		return nil, value, false
	}
	i = space(b, i+1)
	end = valueEnd(b, i)
	return name, scheduling.Span{Start: i, End: end}, end > i
}

// stringEnd is the index of the quote that ends the string whose content begins at i, or -1. A quote behind an odd number
// of backslashes is part of the content.
func stringEnd(b []byte, i int) int {
	for {
		n := bytes.IndexByte(b[i:], '"')
		if n < 0 {
			return -1
		}
		end := i + n
		slash := end
		for slash > i && b[slash-1] == '\\' {
			slash--
		}
		if (end-slash)&1 == 0 {
			return end
		}
		i = end + 1
	}
}

// valueEnd is the index behind the value that begins at i, or -1 where there is none. Brackets are counted, not matched
// by kind, and scalars reach up to the next delimiter.
func valueEnd(b []byte, i int) int {
	switch at(b, i) {
	case '"':
		return stringEnd(b, i+1) + 1
	case '{', '[':
		return nestedEnd(b, i)
	}
	start := i
	for i < len(b) {
		switch b[i] {
		case ',', '}', ']', ':', '"', '{', '[', ' ', '\n', '\t', '\r':
			return ended(start, i)
		}
		i++
	}
	return ended(start, i)
}

func ended(start, i int) int {
	if i == start {
		return -1
	}
	return i
}

func nestedEnd(b []byte, i int) int {
	depth := 0
	for i < len(b) {
		switch b[i] {
		case '"':
			end := stringEnd(b, i+1)
			if end < 0 {
				return -1
			}
			i = end
		case '{', '[':
			depth++
		case '}', ']':
			if depth--; depth == 0 {
				return i + 1
			}
		}
		i++
	}
	return -1
}

// Elements appends the ranges of the elements of the array at list to dst. ok is false where it is none, or has more than
// limit elements.
func Elements(b []byte, list scheduling.Span, dst []scheduling.Span, limit int) (elements []scheduling.Span, ok bool) {
	if at(b, list.Start) != '[' {
		return dst, false
	}
	b = b[:list.End]
	i := space(b, list.Start+1)
	if at(b, i) == ']' {
		return dst, i+1 == list.End
	}
	for n := 0; n < limit; n++ {
		end := valueEnd(b, i)
		if end <= i {
			return dst, false
		}
		dst = append(dst, scheduling.Span{Start: i, End: end})
		i = space(b, end)
		switch at(b, i) {
		case ',':
			i = space(b, i+1)
		case ']':
			return dst, i+1 == list.End
		default:
			return dst, false
		}
	}
	return dst, false
}
