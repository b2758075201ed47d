package config

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Redacted stands for a secret in whatever is shown of a configuration.
const Redacted = "(redacted)"

// emitter writes values as block YAML that Parse reads back to the same values.
type emitter struct{ b strings.Builder }

func (e *emitter) line(indent int, format string, args ...any) {
	fmt.Fprintf(&e.b, "%s%s\n", strings.Repeat("  ", indent), fmt.Sprintf(format, args...))
}

// mapping writes a struct's fields. Of fields tagged secret:"true" only whether they are set is said; nil pointers are
// left out.
func (e *emitter) mapping(indent int, v reflect.Value) {
	for _, f := range fieldsOf(v) {
		if f.name == "-" || f.value.Type() == rawType || isNil(f.value) {
			continue
		}
		if isSecret(f) { // as a comment: read back, it must not become a seed that everybody knows
			e.line(indent, "# %s: %s", f.name, secretState(f.value))
			continue
		}
		e.entry(indent, f.name, f.value)
	}
}

func isNil(v reflect.Value) bool {
	return (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface || v.Kind() == reflect.Map) && v.IsNil()
}

func secretState(v reflect.Value) string {
	if v.IsZero() {
		return "(not set)"
	}
	return Redacted
}

// isSecret also knows the name that the hash seed goes by, whoever declares it.
func isSecret(f field) bool { return f.tag.Get("secret") == "true" || f.name == "hashSeed" }

func (e *emitter) entry(indent int, key string, v reflect.Value) {
	v = indirect(v)
	switch {
	case isScalar(v):
		e.line(indent, "%s: %s", plainText(key), scalarYAML(v))
	case v.Kind() == reflect.Slice && v.Len() == 0:
		e.line(indent, "%s: []", plainText(key))
	case v.Kind() == reflect.Slice:
		e.line(indent, "%s:", plainText(key))
		for i := range v.Len() {
			e.item(indent+1, v.Index(i))
		}
	case v.Kind() == reflect.Map && v.Len() == 0 || v.Kind() == reflect.Struct && len(fieldsOf(v)) == 0:
		e.line(indent, "%s: {}", plainText(key))
	case v.Kind() == reflect.Map:
		e.line(indent, "%s:", plainText(key))
		e.table(indent+1, v)
	default:
		e.line(indent, "%s:", plainText(key))
		e.mapping(indent+1, v)
	}
}

func (e *emitter) table(indent int, v reflect.Value) {
	keys := v.MapKeys()
	slices.SortFunc(keys, func(a, b reflect.Value) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		e.entry(indent, k.String(), v.MapIndex(k))
	}
}

// item writes an element of a list; the dash takes the place of two spaces of the first line.
func (e *emitter) item(indent int, v reflect.Value) {
	v = indirect(v)
	if isScalar(v) {
		e.line(indent, "- %s", scalarYAML(v))
		return
	}
	inner := &emitter{}
	switch v.Kind() {
	case reflect.Map:
		inner.table(indent+1, v)
	case reflect.Struct:
		inner.mapping(indent+1, v)
	}
	text, dash := inner.b.String(), strings.Repeat("  ", indent)+"- "
	if text == "" {
		e.line(indent, "- {}")
		return
	}
	e.b.WriteString(dash + text[len(dash):])
}

func indirect(v reflect.Value) reflect.Value {
	for (v.Kind() == reflect.Pointer || v.Kind() == reflect.Interface) && !v.IsNil() {
		v = v.Elem()
	}
	return v
}

func isScalar(v reflect.Value) bool {
	if _, ok := v.Interface().(encoding.TextMarshaler); ok {
		return true
	}
	switch v.Kind() {
	case reflect.Struct, reflect.Slice, reflect.Map:
		return false
	}
	return true
}

func scalarYAML(v reflect.Value) string {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		text, err := m.MarshalText()
		if err != nil {
			return quoted(err.Error())
		}
		return plainText(string(text))
	}
	if d, ok := v.Interface().(time.Duration); ok {
		return shortDuration(d)
	}
	switch {
	case v.Kind() == reflect.String:
		return plainText(v.String())
	case v.CanFloat():
		return strconv.FormatFloat(v.Float(), 'f', -1, v.Type().Bits())
	}
	return fmt.Sprint(v.Interface())
}

// shortDuration leaves out the zero minutes and seconds that time.Duration writes.
func shortDuration(d time.Duration) string {
	s := d.String()
	if short, ok := strings.CutSuffix(s, "m0s"); ok {
		s = short + "m"
	}
	if short, ok := strings.CutSuffix(s, "h0m"); ok {
		s = short + "h"
	}
	return s
}

// safePlain matches text that every YAML reader takes for that text.
var safePlain = regexp.MustCompile(`^[A-Za-z/][A-Za-z0-9_./-]*(:[A-Za-z0-9_./-]+)*$`)

// plainText writes text without quotes where that is safe.
func plainText(s string) string {
	switch strings.ToLower(s) {
	case "true", "false", "null", "yes", "no", "on", "off", "y", "n", "nan", "inf":
		return quoted(s)
	}
	if safePlain.MatchString(s) {
		return s
	}
	return quoted(s)
}

// quoted writes a double-quoted scalar; JSON's escapes are YAML's. References to the environment are escaped.
func quoted(s string) string {
	b, err := json.Marshal(strings.ReplaceAll(s, "${", "$${"))
	if err != nil { // a string always marshals
		return `""`
	}
	return string(b)
}
