package config

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// expansion is a scalar of the file that held references to the environment. Errors show it as written: what a variable
// holds may be a secret that was put under the wrong key.
type expansion struct {
	path, written, text string
	// replacements are what a message must not hold, with what it says instead: the text, and each variable's value.
	replacements []replacement
}

type replacement struct{ secret, shown string }

// newExpansion describes a scalar; values are those of the variables in it.
func newExpansion(path, written, text string, values []replacement) expansion {
	e := expansion{path: path, written: clip(written), text: text}
	for _, r := range append(values, replacement{text, e.written}) {
		if r.secret == "" || r.secret == r.shown {
			continue
		}
		e.replacements = append(e.replacements, r)
		// Messages quote texts, and shorten those that are long.
		if inner := strconv.Quote(r.secret); inner[1:len(inner)-1] != r.secret {
			e.replacements = append(e.replacements, replacement{inner[1 : len(inner)-1], r.shown})
		}
	}
	slices.SortStableFunc(e.replacements, func(a, b replacement) int { return cmp.Compare(len(b.secret), len(a.secret)) })
	return e
}

// Redact returns err with references in the place of what the file's variables hold.
func (f *File) Redact(err error) error {
	if err == nil || len(f.expansions) == 0 {
		return err
	}
	was := err.Error()
	if text := f.redacted(Fault{Message: was}).Message; text != was {
		return errors.New(text)
	}
	return err
}

// err is faults as an error, with nothing of what variables hold; nil where there are none.
func (f *File) err(faults Faults) error {
	err := faults.err()
	var kept Faults
	if !errors.As(err, &kept) {
		return err
	}
	for i := range kept {
		kept[i] = f.redacted(kept[i])
	}
	return kept
}

func (f *File) redacted(fault Fault) Fault {
	for _, e := range f.expansions {
		if e.path == fault.Path {
			fault.Message = e.withoutValue(fault.Message)
		}
	}
	for _, e := range f.expansions {
		near := fault.Path == "" || e.path == fault.Path || strings.HasPrefix(e.path, fault.Path+".") || strings.HasPrefix(e.path, fault.Path+"[")
		for _, r := range e.replacements {
			fault.Message = replace(fault.Message, r, near && len(r.secret) >= 4)
		}
		fault.Message = e.withoutParts(fault.Message, near)
		if e.path == fault.Path {
			fault.Message = e.withoutWords(fault.Message)
		}
	}
	return fault
}

// valueShown matches the value at the end of a message, whatever form its check has brought it to.
var valueShown = regexp.MustCompile(`\bgot .*?($|; | \(did you mean)`)

func (e expansion) withoutValue(message string) string {
	return valueShown.ReplaceAllStringFunc(message, func(s string) string {
		end := valueShown.FindStringSubmatch(s)[1]
		return "got " + strconv.Quote(e.written) + end
	})
}

// quotedPart matches what a message quotes.
var quotedPart = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// withoutParts hides quoted parts of the text, such as one setting of an endpoint's entry; where the message is about
// something else, only long ones.
func (e expansion) withoutParts(message string, near bool) string {
	return quotedPart.ReplaceAllStringFunc(message, func(s string) string {
		part, err := strconv.Unquote(s)
		part = strings.TrimSuffix(part, "…")
		if err != nil || part == "" || !near && len(part) < 4 || !e.hides(part) {
			return s
		}
		return strconv.Quote(e.written)
	})
}

// word matches what a message may have taken out of a text.
var word = regexp.MustCompile(`[\pL\pN_.-]{3,}`)

// withoutWords hides words of the text, such as the key of a setting.
func (e expansion) withoutWords(message string) string {
	return word.ReplaceAllStringFunc(message, func(s string) string {
		if e.hides(strings.TrimRight(s, ".")) {
			return "…"
		}
		return s
	})
}

// hides reports whether a part of the text comes out of a variable.
func (e expansion) hides(part string) bool {
	return strings.Contains(e.text, part) && !strings.Contains(e.written, part)
}

// replace replaces a secret where it stands by itself; anywhere says that it may be part of a word too.
func replace(message string, r replacement, anywhere bool) string {
	if anywhere {
		return strings.ReplaceAll(message, r.secret, r.shown)
	}
	var b strings.Builder
	for {
		at := strings.Index(message, r.secret)
		if at < 0 {
			break
		}
		end := at + len(r.secret)
		before, _ := utf8.DecodeLastRuneInString(message[:at])
		after, _ := utf8.DecodeRuneInString(message[end:])
		b.WriteString(message[:at])
		if partOfWord(before) || partOfWord(after) {
			b.WriteString(r.secret)
		} else {
			b.WriteString(r.shown)
		}
		message = message[end:]
	}
	b.WriteString(message)
	return b.String()
}

func partOfWord(r rune) bool {
	return r != utf8.RuneError && (r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r))
}
