package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

const (
	maxFileEntries = 65536
	maxFaults      = 20 // reported of one file; the rest is counted
	maxNesting     = 32 // of a file; a list of endpoints needs five levels
)

// fileKeys are the keys of an entry that is a mapping, beside those of settings.
var fileKeys = []string{"address", "host", "port", "ports", "labels", kvEventsKey, "namespace"}

// Listing is what an endpoints file holds.
type Listing struct {
	// Entries are the valid entries, in the file's order.
	Entries []Entry
	// Faults say what is wrong with the entries that were skipped: at most 20, the last says how many more there are.
	Faults []error
	// Skipped is the number of entries left out.
	Skipped int
}

// ParseFile reads an endpoints file: YAML (or JSON) with one key, endpoints, a list of entries in the notation or as
// mappings. A bad entry is skipped and reported in the listing. The error is for a file that is no such list, and for one
// whose entries are all bad; nothing of it is to be used.
func ParseFile(data []byte) (Listing, error) {
	list, anchors, err := parseYAML(data)
	if err != nil {
		return Listing{}, err
	}
	if len(list) > maxFileEntries {
		return Listing{}, fmt.Errorf("endpoints: at most %d entries are allowed, got %d", maxFileEntries, len(list))
	}
	var l Listing
	for i, node := range list {
		e, err := anchors.entry(node)
		if err == nil {
			l.Entries = append(l.Entries, e)
			continue
		}
		l.Skipped++
		if len(l.Faults) < maxFaults {
			l.Faults = append(l.Faults, fmt.Errorf("%sendpoints[%d]%w", lineOf(node), i, err))
		}
	}
	if more := l.Skipped - len(l.Faults); more > 0 {
		l.Faults = append(l.Faults, fmt.Errorf("%d more entries are bad", more))
	}
	if l.Skipped > 0 && len(l.Entries) == 0 {
		return Listing{}, fmt.Errorf("no entry is valid: %w", errors.Join(l.Faults...))
	}
	return l, nil
}

// parseYAML returns the nodes of the list and what its anchors stand for.
func parseYAML(data []byte) ([]ast.Node, anchors, error) {
	if err := checkNesting(data); err != nil {
		return nil, nil, err
	}
	// Duplicate keys are found entry by entry, so that they spoil no more than theirs.
	file, err := guard(func() (*ast.File, error) {
		return parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	})
	if err != nil {
		return nil, nil, flatten(err)
	}
	switch {
	case len(file.Docs) > 1:
		return nil, nil, fmt.Errorf("holds %d YAML documents, must be one", len(file.Docs))
	case len(file.Docs) == 0 || file.Docs[0].Body == nil:
		return nil, nil, errors.New(`is empty; write "endpoints: []" for no endpoints`)
	}
	body := file.Docs[0].Body
	found := make(anchors)
	if err := found.collect(body); err != nil {
		return nil, nil, err
	}
	fields, err := found.fields(body)
	if err != nil {
		return nil, nil, fmt.Errorf("file%w", err)
	}
	if len(fields) == 0 {
		return nil, nil, errors.New(`endpoints: is missing; write "endpoints: []" for no endpoints`)
	}
	var list ast.Node
	for _, f := range fields {
		if f.key != "endpoints" {
			return nil, nil, fmt.Errorf("%s%s: unknown key, %w", lineOf(f.value), clip(f.key), mustBe(f.key, []string{"endpoints"}))
		}
		list = found.resolve(f.value)
	}
	seq, ok := list.(*ast.SequenceNode)
	if !ok {
		return nil, nil, fmt.Errorf(`%sendpoints: must be a list, got %s; write "endpoints: []" for no endpoints`, lineOf(list), kindOf(list))
	}
	return seq.Values, found, nil
}

// guard turns a panic of the YAML parser into an error: malformed input has made releases of it panic, and a file that is
// being edited must not end the process that serves by the last good one.
func guard(parse func() (*ast.File, error)) (file *ast.File, err error) {
	defer func() {
		if p := recover(); p != nil {
			file, err = nil, fmt.Errorf("cannot be parsed as YAML: %v", p)
		}
	}()
	return parse()
}

// entry reads one item of the list. Its errors begin with what follows "endpoints[i]".
func (a anchors) entry(node ast.Node) (Entry, error) {
	if text, err := a.text(node); err == nil {
		e, err := parseEntry(strings.TrimSpace(text))
		if err != nil {
			return Entry{}, fmt.Errorf(": %w", err)
		}
		return e, nil
	}
	fields, err := a.fields(node)
	if err != nil {
		return Entry{}, err
	}
	var (
		e  Entry
		at place
	)
	for _, f := range fields {
		if err := a.setField(&e, &at, f); err != nil {
			return Entry{}, fmt.Errorf(".%s: %w", clip(f.key), err)
		}
	}
	if err := at.apply(&e); err != nil {
		return Entry{}, err
	}
	if err := e.check(); err != nil {
		return Entry{}, fmt.Errorf(": %w", err)
	}
	return e, nil
}

// place gathers the keys that together say where an entry's endpoints are.
type place struct {
	address, host, namespace string
	ports                    []string
}

func (a anchors) setField(e *Entry, at *place, f field) (err error) {
	switch f.key {
	case "address":
		at.address, err = a.nonEmpty(f.value)
	case "host":
		at.host, err = a.nonEmpty(f.value)
	case "namespace":
		if at.namespace, err = a.nonEmpty(f.value); err == nil {
			err = checkText(at.namespace, maxNameBytes)
		}
	case "port", "ports":
		if at.ports != nil {
			return errors.New("port and ports exclude each other")
		}
		at.ports, err = a.texts(f.value)
	case "labels":
		return a.setLabels(e, f.value)
	case kvEventsKey:
		return a.setKVEvents(e, f.value)
	default:
		set := findSetting(f.key)
		if set == nil {
			return fmt.Errorf("unknown key, %w", mustBe(f.key, append(slices.Clone(fileKeys), keysOf(settings)...)))
		}
		value, err := a.nonEmpty(f.value)
		if err != nil {
			return err
		}
		return set(e, value)
	}
	return err
}

func (a anchors) setLabels(e *Entry, node ast.Node) error {
	labels, err := a.fields(node)
	if err != nil {
		return nested(err)
	}
	for _, l := range labels {
		value, err := a.text(l.value)
		if err != nil {
			return fmt.Errorf("%s: %w", clip(l.key), err)
		}
		if err := e.setLabel(l.key, value); err != nil {
			return fmt.Errorf("%s: %w", clip(l.key), err)
		}
	}
	return nil
}

// nested is an error of fields for a mapping whose own path is to follow.
func nested(err error) error { return errors.New(strings.TrimLeft(err.Error(), ":. ")) }

// apply sets the entry's target. Its errors begin with what follows "endpoints[i]".
func (p *place) apply(e *Entry) (err error) {
	if p.namespace != "" && e.name != "" {
		if e.name = p.namespace + "/" + e.name; len(e.name) > maxNameBytes {
			return fmt.Errorf(".name: has %d bytes with its namespace, at most %d are allowed", len(e.name), maxNameBytes)
		}
	}
	switch {
	case p.address != "" && p.host != "":
		return errors.New(": address and host exclude each other")
	case p.address != "" && p.ports == nil:
		targets := strings.Split(p.address, ",")
		if err = e.setTarget(targets[0], targets[1:]); err != nil {
			return fmt.Errorf(".address: %w", err)
		}
		return nil
	case p.address != "":
		// The address alone, its port under a key of its own.
		if err = e.setHost(unbracket(p.address), false); err != nil {
			return fmt.Errorf(".address: with a port key it holds no port: %w", err)
		}
	case p.host != "":
		if err = e.setHost(unbracket(p.host), false); err != nil {
			return fmt.Errorf(".host: %w", err)
		}
	default:
		return errors.New(": address is missing; write address: host:port")
	}
	if len(p.ports) == 0 {
		return errors.New(".ports: is missing; write ports: [8000]")
	}
	if err = e.setPorts(p.ports); err != nil {
		return fmt.Errorf(".ports: %w", err)
	}
	return nil
}

// unbracket takes the brackets of an IPv6 address off; anything else stays for the error message.
func unbracket(s string) string {
	if len(s) > 2 && s[0] == '[' && s[len(s)-1] == ']' {
		if addr, err := netip.ParseAddr(s[1 : len(s)-1]); err == nil && addr.Is6() {
			return s[1 : len(s)-1]
		}
	}
	return s
}

// flatten brings the parser's error, which quotes the file over several lines, onto one line.
func flatten(err error) error {
	var e yaml.Error
	if !errors.As(err, &e) {
		return errors.New(clip(strings.ReplaceAll(err.Error(), "\n", " ")))
	}
	if tk := e.GetToken(); tk != nil && tk.Position != nil {
		return fmt.Errorf("line %d, column %d: %s", tk.Position.Line, tk.Position.Column, e.GetMessage())
	}
	return errors.New(e.GetMessage())
}
