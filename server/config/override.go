package config

import (
	"errors"
	"fmt"
	"reflect"
	"strings"

	"github.com/sluice-epp/sluice/server/discovery"
)

// CheckOverride judges what change makes of a configuration by the rules that hold for files. names are what messages
// call the keys that it sets, such as the command-line flags, by path; a key without a name is called by its path.
func CheckOverride(change func(*Config), names map[string]string) error {
	c := defaultConfig()
	change(&c)
	var errs []error
	add := func(path, message string) {
		if name, ok := names[path]; ok {
			path = name
		}
		errs = append(errs, fmt.Errorf("%s: %s", path, message))
	}
	checkFields("", reflect.ValueOf(&c).Elem(), add)
	seen := map[string]bool{}
	for _, e := range c.Endpoints {
		if _, err := discovery.ParseEntry(e); err != nil {
			add("endpoints", err.Error())
		} else if seen[e] {
			add("endpoints", fmt.Sprintf("%q stands in the list twice", clip(e)))
		}
		seen[e] = true
	}
	// Where the flags name nothing to follow, what they say is about what a file names.
	if following := c.Kubernetes.Options(); following.Set() {
		for _, f := range following.Check() {
			add("kubernetes."+f.Field, f.Err.Error())
		}
	}
	return errors.Join(errs...)
}

// checkFields checks every value against its tags.
func checkFields(path string, v reflect.Value, add func(path, message string)) {
	for _, f := range fieldsOf(v) {
		at := strings.TrimPrefix(path+"."+f.name, ".")
		if f.value.Kind() == reflect.Struct {
			checkFields(at, f.value, add)
			continue
		}
		if problem := f.problem(func(value string) string { return value }); problem != "" {
			add(at, problem)
		}
	}
}
