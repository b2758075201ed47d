package config

import (
	"encoding"
	"fmt"
	"math"
	"net"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/sluice-epp/sluice/scheduling"
)

// maxNumber bounds every number: beyond it float64 is no longer exact to the unit, and nothing here is meant.
const maxNumber = 1e15

// scalarText is a scalar with its references expanded.
type scalarText struct {
	text string
	// quoted is text that can only be a string.
	quoted bool
	// shown is how errors quote it: as written, never what an environment variable holds.
	shown string
}

// read expands a scalar; ok is false after noting why there is none.
func (d *decoder) read(at origin, n ast.Node) (s scalarText, ok bool) {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode, *ast.SequenceNode:
		d.addf(at, "must be a single value, got %s", kindOf(n))
		return s, false
	case *ast.TagNode:
		return s, false // the structure walk has reported it
	}
	written := nodeText(n)
	var values []replacement
	text, replaced, err := expand(written, func(name string) (string, bool) {
		value, ok := d.lookup(name)
		if !ok && d.secret {
			value, ok = d.lookup(secretName + name)
		}
		values = append(values, replacement{value, "${" + name + "}"})
		return value, ok
	})
	if err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			d.addf(at, "%s", line)
		}
		return s, false
	}
	if replaced {
		d.note(newExpansion(at.path, written, text, values))
	}
	return scalarText{text: text, quoted: isQuoted(n) && !replaced, shown: strconv.Quote(clip(written))}, true
}

// note remembers a scalar with references.
func (d *decoder) note(e expansion) {
	if d.shown == nil {
		d.shown = map[string]string{}
	}
	d.shown[e.path] = strconv.Quote(e.written)
	if d.expanded != nil {
		d.expanded(e)
	}
}

// got is how errors quote the value at a place: as written where it held references.
func (d *decoder) got(at origin, value string) string {
	if shown, ok := d.shown[at.path]; ok {
		return shown
	}
	return value
}

func isQuoted(n ast.Node) bool {
	switch v := n.(type) {
	case *ast.LiteralNode:
		return true
	case *ast.StringNode:
		return v.Token != nil && (v.Token.Type == token.SingleQuoteType || v.Token.Type == token.DoubleQuoteType)
	}
	return false
}

func (d *decoder) scalar(at origin, n ast.Node, v reflect.Value) {
	s, ok := d.read(at, n)
	if !ok {
		return
	}
	var problem string
	switch kind := v.Kind(); {
	case v.Type() == durationType:
		problem = setDuration(s, v)
	case v.CanAddr() && v.Addr().Type().Implements(textType):
		if err := v.Addr().Interface().(encoding.TextUnmarshaler).UnmarshalText([]byte(s.text)); err != nil {
			problem = err.Error()
		}
	case kind == reflect.String:
		v.SetString(s.text)
	case kind == reflect.Bool:
		problem = setBool(s, v)
	case v.CanInt() || v.CanUint():
		problem = setInteger(s, v)
	case v.CanFloat():
		problem = setFloat(s, v)
	default:
		problem = fmt.Sprintf("cannot be configured (its type is %s)", v.Type())
	}
	if problem != "" {
		d.addf(at, "%s, got %s", problem, s.shown)
	}
}

func setBool(s scalarText, v reflect.Value) string {
	switch {
	case s.text != "true" && s.text != "false":
		return "must be true or false"
	case s.quoted:
		return "must be true or false without quotes"
	}
	v.SetBool(s.text == "true")
	return ""
}

// number reads decimal notation only: what Go or YAML also take for numbers (hexadecimal, underscores, .nan, leading
// zeros as octal) is more often a slip.
func (s scalarText) number(noun string) (float64, string) {
	lower := strings.TrimLeft(strings.ToLower(s.text), "+-.")
	if lower == "nan" || lower == "inf" || lower == "infinity" {
		return 0, "must be a finite number"
	}
	f, err := strconv.ParseFloat(s.text, 64)
	if math.IsInf(f, 0) || err == nil && math.Abs(f) > maxNumber {
		return 0, fmt.Sprintf("is out of range: the largest number is %g", maxNumber)
	}
	if err != nil || strings.ContainsAny(s.text, "xX_pP") {
		if _, err := time.ParseDuration(s.text); err == nil {
			return 0, noun + " without a unit"
		}
		return 0, noun
	}
	if s.quoted {
		return 0, noun + " without quotes"
	}
	return f, ""
}

func setFloat(s scalarText, v reflect.Value) string {
	f, problem := s.number("must be a number")
	if problem == "" {
		v.SetFloat(f)
	}
	return problem
}

func setInteger(s scalarText, v reflect.Value) string {
	f, problem := s.number("must be a whole number")
	switch {
	case problem != "":
		return problem
	case f != math.Trunc(f):
		return "must be a whole number"
	case v.CanInt() && v.OverflowInt(int64(f)):
		return "is out of range"
	case v.CanUint() && f < 0:
		return "must be >= 0"
	case v.CanUint() && v.OverflowUint(uint64(f)):
		return "is out of range"
	}
	if v.CanInt() {
		v.SetInt(int64(f))
	} else {
		v.SetUint(uint64(f))
	}
	return ""
}

func setDuration(s scalarText, v reflect.Value) string {
	d, err := time.ParseDuration(s.text)
	if err != nil {
		return `must be a duration with a unit such as "500ms" or "30s"`
	}
	v.SetInt(int64(d))
	return ""
}

// inRange checks a value that was decoded.
func (d *decoder) inRange(path string, node ast.Node, f field) {
	at := d.document.at(node, path)
	if d.document.resolve(node) == nil || d.faulty(at) {
		return
	}
	if message := f.problem(func(value string) string { return d.got(at, value) }); message != "" {
		d.addf(at, "%s", message)
	}
}

// problem says what is wrong with a value by the tags that this package's own sections carry: range:"low..high" or
// range:"0|low..high", oneof:"a b", form:"address". got is how the value is to be quoted; by default as it is.
func (f field) problem(got func(string) string) string {
	if r := f.tag.Get("range"); r != "" {
		if problem := checkRange(r, f.value); problem != "" {
			return problem + ", got " + got(fmt.Sprint(display(f.value)))
		}
	}
	if choices := strings.Fields(f.tag.Get("oneof")); len(choices) > 0 && !slices.Contains(choices, f.value.String()) {
		value := f.value.String()
		return fmt.Sprintf("must be one of %s, got %s%s", strings.Join(choices, ", "), got(strconv.Quote(clip(value))), scheduling.Hint(value, choices))
	}
	if f.tag.Get("form") == "address" && f.value.String() != "" {
		if _, port, err := net.SplitHostPort(f.value.String()); err != nil || !isPort(port) {
			return `must be "host:port" or ":port" with a port from 0 to 65535, got ` + got(strconv.Quote(clip(f.value.String())))
		}
	}
	return ""
}

func (d *decoder) faulty(at origin) bool {
	for _, f := range d.faults {
		if f.Path == at.path && f.Line == at.line {
			return true
		}
	}
	return false
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// checkRange compares a value with "low..high", written as the value itself would be, and says what is wrong. With "0|"
// before it 0 is allowed too.
func checkRange(tag string, v reflect.Value) string {
	bounds, zero := strings.CutPrefix(tag, "0|")
	low, high, _ := strings.Cut(bounds, "..")
	lowest, highest := reflect.New(v.Type()).Elem(), reflect.New(v.Type()).Elem()
	for text, bound := range map[string]reflect.Value{low: lowest, high: highest} {
		d := decoder{}
		d.scalar(origin{}, &ast.StringNode{BaseNode: &ast.BaseNode{}, Value: text}, bound)
		if len(d.faults) > 0 {
			return fmt.Sprintf("has the range %q, which is none (%v)", tag, d.faults)
		}
	}
	within := func(v reflect.Value) bool { return v.Int() >= lowest.Int() && v.Int() <= highest.Int() }
	if v.CanFloat() {
		within = func(v reflect.Value) bool { return v.Float() >= lowest.Float() && v.Float() <= highest.Float() }
	}
	switch {
	case within(v) || zero && v.IsZero():
		return ""
	case zero:
		return fmt.Sprintf("must be 0 or from %s to %s", low, high)
	}
	return fmt.Sprintf("must be from %s to %s", low, high)
}

// display writes a value as the file would.
func display(v reflect.Value) any {
	if m, ok := v.Interface().(encoding.TextMarshaler); ok {
		if text, err := m.MarshalText(); err == nil {
			return string(text)
		}
	}
	return v.Interface()
}
