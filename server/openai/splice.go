package openai

import (
	"unicode/utf8"

	"github.com/sluice-epp/sluice/scheduling"
)

// SpliceModel is a request body with another model name, as three pieces to send one after the other: what stands
// before the old name, the new name as a JSON string, and the rest. The first and the last alias body. at is Info.Model.
// A body without a model name (at is empty) gets none: the first piece is then the whole body and the others are nil.
func SpliceModel(body []byte, at scheduling.Span, name string) [3][]byte {
	if at.End <= at.Start {
		return [3][]byte{body, nil, nil}
	}
	return [3][]byte{body[:at.Start:at.Start], quote(name), body[at.End:]}
}

// quote is s as a JSON string. What is not UTF-8 becomes U+FFFD.
func quote(s string) []byte {
	const hex = "0123456789abcdef"
	q := make([]byte, 0, len(s)+2)
	q = append(q, '"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			q = append(q, '\\', byte(r))
		case r < ' ':
			q = append(q, '\\', 'u', '0', '0', hex[r>>4], hex[r&15])
		default:
			q = utf8.AppendRune(q, r)
		}
	}
	return append(q, '"')
}
