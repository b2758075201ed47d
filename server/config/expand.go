package config

import (
	"errors"
	"fmt"
	"strings"
)

// expand replaces ${NAME} and ${NAME:-default} in a scalar by what lookup knows of NAME; $${ stands for ${. It reports
// whether anything was replaced. The result is a value and is never parsed as YAML.
//
// The default, taken literally, is for names that are unset or empty; a name that is set to nothing and has no default
// is empty.
func expand(text string, lookup func(string) (string, bool)) (string, bool, error) {
	if !strings.Contains(text, "${") {
		return text, false, nil
	}
	var b strings.Builder
	var errs []error
	replaced := false
	for {
		at := strings.Index(text, "${")
		if at < 0 {
			break
		}
		if at > 0 && text[at-1] == '$' {
			b.WriteString(text[:at-1])
			b.WriteString("${")
			text = text[at+2:]
			continue
		}
		b.WriteString(text[:at])
		inner, rest, closed := strings.Cut(text[at+2:], "}")
		if !closed {
			errs = append(errs, errors.New(`"${" is not closed by "}" (write "$${" for a literal "${")`))
			text = ""
			break
		}
		value, err := resolve(inner, lookup)
		if err != nil {
			errs = append(errs, err)
		}
		b.WriteString(value)
		replaced = true
		text = rest
	}
	b.WriteString(text)
	return b.String(), replaced, errors.Join(errs...)
}

// resolve is the value of what stands between the braces.
func resolve(inner string, lookup func(string) (string, bool)) (string, error) {
	name, fallback, hasDefault := strings.Cut(inner, ":-")
	if !isVariable(name) {
		return "", fmt.Errorf(`"${%s}" is no reference to an environment variable: write ${NAME} or ${NAME:-default}, or "$${" for a literal "${"`, inner)
	}
	if strings.Contains(fallback, "${") {
		return "", fmt.Errorf("the default of ${%s} holds another reference; references do not nest", name)
	}
	value, ok := lookup(name)
	switch {
	case hasDefault && value == "":
		return fallback, nil
	case !ok:
		return "", fmt.Errorf("environment variable %s is not set and has no default (${%s:-default})", name, name)
	}
	return value, nil
}

func isVariable(name string) bool {
	for i, r := range name {
		letter := r == '_' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
		if !letter && (i == 0 || r < '0' || r > '9') {
			return false
		}
	}
	return name != ""
}
