package config

import (
	"reflect"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// hint says what an unknown key may have been meant to be: the section that has it, or else what hint says.
func (d *decoder) hint(name string, valid []string) string {
	homes := homesOf(name, d.topPath, d.top)
	switch {
	case len(homes) != 1:
		return hint(name, valid)
	case homes[0] == "":
		return "; it belongs at the top of the file"
	}
	return "; it belongs in " + homes[0]
}

// hint is the nearest of the valid names, or, where none is near, all of them if they are few.
func hint(name string, valid []string) string {
	if h := scheduling.Hint(name, valid); h != "" {
		return h
	}
	switch {
	case len(valid) == 0:
		return "; none is valid here"
	case len(valid) <= 12:
		return "; valid are " + strings.Join(valid, ", ")
	}
	return ""
}

// homesOf are the paths of the structs with such a key: t at path, and those below it that are no items of lists.
func homesOf(key, path string, t reflect.Type) (homes []string) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct || t == rawType {
		return nil
	}
	for _, f := range fieldsOf(reflect.New(t).Elem()) {
		if f.name == key {
			homes = append(homes, path)
		}
		homes = append(homes, homesOf(key, join(path, f.name), f.value.Type())...)
	}
	return homes
}
