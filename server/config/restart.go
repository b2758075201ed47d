package config

import (
	"reflect"
	"strings"
)

// Waiting is a key that a reload cannot change and that the file sets to something else than what is in force.
type Waiting struct {
	// Key is its path, such as server.maxOpenStreams.
	Key string
	// Value is what the file says, as YAML on one line.
	Value string
}

// KeepStarted gives the keys that are read at the start only the values of the configuration that the process was started
// with, so that f describes what will be in force, and returns those for which the file has another value.
//
// They are the fields tagged reload:"restart", and those of a struct with that tag but for its fields tagged reload:"live".
func (f *File) KeepStarted(started *Config) []Waiting {
	var waiting []Waiting
	keepStarted("", false, reflect.ValueOf(&f.Config).Elem(), reflect.ValueOf(started).Elem(), &waiting)
	return waiting
}

func keepStarted(path string, restart bool, now, started reflect.Value, waiting *[]Waiting) {
	before := fieldsOf(started)
	for i, f := range fieldsOf(now) {
		restart := restart
		if tag := f.tag.Get("reload"); tag != "" {
			restart = tag == "restart"
		}
		key := strings.TrimPrefix(path+"."+f.name, ".")
		switch {
		case f.value.Kind() == reflect.Struct:
			keepStarted(key, restart, f.value, before[i].value, waiting)
		case restart && !sameValue(f.value, before[i].value):
			value := onOneLine(f.value)
			if isSecret(f) {
				value = secretState(f.value)
			}
			*waiting = append(*waiting, Waiting{Key: key, Value: value})
			f.value.Set(before[i].value)
		}
	}
}

// sameValue takes an absent list and an empty one for the same.
func sameValue(a, b reflect.Value) bool {
	return reflect.DeepEqual(a.Interface(), b.Interface()) || a.Kind() == reflect.Slice && a.Len()+b.Len() == 0
}

func onOneLine(v reflect.Value) string {
	if v.Kind() != reflect.Slice {
		return scalarYAML(v)
	}
	items := make([]string, v.Len())
	for i := range items {
		items[i] = scalarYAML(v.Index(i))
	}
	return "[" + strings.Join(items, ", ") + "]"
}
