package config

import (
	"errors"
	"fmt"
	"strings"
	"sync"
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

// secretName comes before the name of a variable that is not set, when it is looked up once more for a secret's value. No
// variable is named so.
const secretName = "secret:"

// placeholder is the value of secrets that are not known.
const placeholder = "a placeholder for a variable that is not set"

// Offline is a lookup for commands that only read a configuration, and run where its secrets are not: a variable that is not set
// and that a secret's value refers to has a placeholder. unset is told its name, once.
func Offline(lookup func(string) (string, bool), unset func(name string)) func(string) (string, bool) {
	var mu sync.Mutex
	told := map[string]bool{}
	return func(name string) (string, bool) {
		name, secret := strings.CutPrefix(name, secretName)
		if value, ok := lookup(name); ok || !secret {
			return value, ok
		}
		mu.Lock()
		defer mu.Unlock()
		if !told[name] {
			told[name] = true
			unset(name)
		}
		return placeholder, true
	}
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
