package openai

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/sluice-epp/sluice/scheduling"
)

// maxChoices bounds Request.Choices; engines refuse more.
const maxChoices = 1 << 14

// limits are the counts that a body gives; 0 where it gives none.
type limits struct {
	n, bestOf                              int
	tokens, completionTokens, outputTokens int
}

// output is the limit on generated tokens that engines follow for the operation.
func (l *limits) output(op scheduling.Operation) int {
	switch {
	case op == scheduling.OperationResponses:
		return l.outputTokens
	case op == scheduling.OperationChat && l.completionTokens > 0:
		return l.completionTokens
	}
	return l.tokens
}

// atCut reports whether the value just read may have been shortened by a cut.
func (r *request) atCut() bool { return r.partial && r.pos == len(r.b) }

// name reads a value that counts where it is a string.
func (r *request) name(into *scheduling.Span) bool {
	*into = scheduling.Span{}
	if r.peek() != '"' {
		return r.skip()
	}
	s, ok := r.str()
	if ok {
		*into = s
	}
	return ok
}

// limit reads a count: a positive number, or one in a string, which engines take too.
func (r *request) limit(into *int) bool {
	raw, ok := r.scalar()
	if ok && !r.atCut() {
		*into = count(raw)
	}
	return ok
}

// flag reads true, or what engines take for it: "true", "t", "yes", "y", "on", "1" in any case, and 1.
func (r *request) flag(into *bool) bool {
	raw, ok := r.scalar()
	if !ok || r.atCut() {
		return ok
	}
	*into = false
	for _, yes := range [...]string{"true", "t", "yes", "y", "on", "1", "1.0"} {
		if len(raw) == len(yes) && strings.EqualFold(string(raw), yes) {
			*into = true
		}
	}
	return true
}

// yes reads a value that counts where it is true itself.
func (r *request) yes(into *bool) bool {
	start := r.pos
	ok := r.skip()
	*into = string(r.b[start:r.pos]) == "true"
	return ok
}

// extras reads vllm_xargs: engine arguments beside the API's own.
func (r *request) extras() bool {
	r.into.KVReportFull = false
	if r.peek() != '{' {
		return r.skip()
	}
	more, ok := r.enter('}'), true
	for more && ok {
		key, found := r.key()
		if !found {
			return false
		}
		if string(key) == "kv_cache_report_mode" {
			ok = r.reportMode()
		} else {
			ok = r.skip()
		}
		if !ok {
			return false
		}
		more, ok = r.next('}')
	}
	return ok
}

// reportMode reads which KV blocks the engine is asked to announce.
func (r *request) reportMode() bool {
	var mode scheduling.Span
	ok := r.name(&mode)
	r.into.KVReportFull = ok && string(unescaped(r.b, mode)) == "full"
	return ok
}

// scalar reads a value of any kind and returns its text, or a string's contents.
func (r *request) scalar() (raw []byte, ok bool) {
	if r.peek() == '"' {
		s, ok := r.str()
		return r.b[s.Start:s.End], ok
	}
	start := r.pos
	ok = r.skip()
	return r.b[start:r.pos], ok
}

// count is the positive whole number that raw holds, at most MaxInt32, else 0.
func count(raw []byte) int {
	raw = bytes.TrimSpace(raw)
	n := 0
	for i, b := range raw {
		if b-'0' > 9 {
			if i == 0 {
				return 0
			}
			return countFloat(raw)
		}
		n = min(n*10+int(b-'0'), math.MaxInt32)
	}
	return n
}

// countFloat is count for numbers written with a fraction or an exponent.
func countFloat(raw []byte) int {
	if len(raw) > 32 {
		return 0
	}
	f, err := strconv.ParseFloat(string(raw), 64)
	if err != nil || f < 1 || f != math.Trunc(f) {
		return 0
	}
	return int(min(f, math.MaxInt32))
}

// Bounds of a salt. What vLLM takes, 1,024 characters, is kept as it is, since the engine's KV events carry the salt so.
// A digest is longer than any salt kept as it is, so the two can't be equal.
const (
	maxSalt    = 4096
	saltPrefix = maxSalt - 2*sha256.Size + 1
)

// boundedSalt is salt, or, where it is long, its beginning and the SHA-256 of the whole.
func boundedSalt(salt []byte) []byte {
	if len(salt) <= maxSalt {
		return salt
	}
	sum := sha256.Sum256(salt)
	bounded := append(make([]byte, 0, saltPrefix+2*sha256.Size), salt[:saltPrefix]...)
	return hex.AppendEncode(bounded, sum[:])
}

// unescaped is the text of the string whose contents are at s. It aliases body where that holds no escape.
func unescaped(body []byte, s scheduling.Span) []byte {
	raw := body[s.Start:s.End]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	return unescape(raw)
}

// unescape resolves a string's escapes. Surrogates that pair up become one character; others are kept apart, each as
// three bytes, so that two valid strings never become one here. Escapes that JSON doesn't know stay as they are.
func unescape(raw []byte) []byte {
	out := make([]byte, 0, len(raw))
	for i := 0; i < len(raw); {
		if raw[i] != '\\' || i+1 == len(raw) {
			out = append(out, raw[i])
			i++
			continue
		}
		if raw[i+1] == 'u' {
			r, n := hexRune(raw[i:])
			if n > 0 {
				out = appendRune(out, r)
				i += n
				continue
			}
		}
		if at := strings.IndexByte(escapeNames, raw[i+1]); at >= 0 {
			out = append(out, escapeValues[at])
		} else {
			out = append(out, raw[i], raw[i+1])
		}
		i += 2
	}
	return out
}

// The escapes of one letter and what they stand for.
const (
	escapeNames  = `"\/bfnrt`
	escapeValues = "\"\\/\b\f\n\r\t"
)

// hexRune reads the \u escape, or the surrogate pair of two, at the start of raw; n is 0 where it is none.
func hexRune(raw []byte) (r rune, n int) {
	high, ok := hex4(raw)
	if !ok {
		return 0, 0
	}
	if low, ok := hex4(raw[6:]); ok && utf16.IsSurrogate(high) {
		if pair := utf16.DecodeRune(high, low); pair != utf8.RuneError {
			return pair, 12
		}
	}
	return high, 6
}

func hex4(raw []byte) (rune, bool) {
	if len(raw) < 6 || raw[0] != '\\' || raw[1] != 'u' {
		return 0, false
	}
	v, err := strconv.ParseUint(string(raw[2:6]), 16, 16)
	return rune(v), err == nil
}

// appendRune appends r in UTF-8, and a lone surrogate in the same three-byte form.
func appendRune(out []byte, r rune) []byte {
	if utf16.IsSurrogate(r) {
		return append(out, 0xe0|byte(r>>12), 0x80|byte(r>>6)&0x3f, 0x80|byte(r)&0x3f)
	}
	return utf8.AppendRune(out, r)
}
