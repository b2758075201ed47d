package config

import (
	"reflect"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// Places says where the keys of a YAML file stand.
type Places struct {
	name   string
	places map[string]origin
}

// Fault is something wrong with the value at a path such as scenarios[1].speed[0]. It stands where the path does, or the
// nearest of the keys around it.
func (p *Places) Fault(path, format string, args ...any) Fault {
	at, ok := p.places[path]
	for outer := path; !ok && outer != ""; at, ok = p.places[outer] {
		outer = outer[:max(0, strings.LastIndexAny(outer, ".["))]
	}
	at.file, at.path = p.name, path
	return at.fault(format, args...)
}

// Err is faults as an error, in the order of the file's lines; nil where there are none.
func (f Faults) Err() error { return f.err() }

// Decode reads another YAML file than the configuration into a struct, as strictly: unknown and duplicate keys, values of
// another kind and values out of their range are faults, and all of them are reported. into is a pointer to a struct with
// yaml tags, and range and oneof tags (on values, not on pointers) as those of [Config]; what the text leaves out keeps its value. References to the
// environment are not expanded. The error is a Faults.
func Decode(name string, data []byte, into any) (*Places, error) {
	doc, faults := parseDocument(name, data)
	if doc == nil {
		return nil, faults.err()
	}
	d := &decoder{document: doc, lookup: noEnvironment, places: map[string]origin{}}
	d.decode("", doc.root, reflect.ValueOf(into).Elem())
	if err := append(faults, d.faults...).err(); err != nil {
		return nil, err
	}
	return &Places{name: name, places: d.places}, nil
}

// OpenText is Open for the text of a file; name is what errors call it.
func OpenText(name string, data []byte, lookup func(string) (string, bool), types []scheduling.PluginType, changes ...func(*Config)) (*File, *scheduling.Scheduler, error) {
	return open(name, data, lookup, types, changes...)
}
