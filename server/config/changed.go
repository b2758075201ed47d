package config

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sluice-epp/sluice/scheduling"
)

// Changed is the text of a configuration file with other parameters and weights. parameters are by the plugin's name and the
// parameter's, as in "prefix-cache-affinity-filter.maxTTFTPenaltyMs"; weights are by the name that a profile refers to. Both
// must be in the text already: the plugin, not the parameter. The values are what a file decodes to. Comments are lost.
func Changed(text []byte, parameters map[string]any, weights map[string]float64) ([]byte, error) {
	var root yaml.MapSlice
	if err := yaml.UnmarshalWithOptions([]byte(shieldReferences(string(text))), &root, yaml.UseOrderedMap()); err != nil {
		return nil, fmt.Errorf("not valid YAML: %w", err)
	}
	var errs []error
	for _, key := range slices.Sorted(maps.Keys(parameters)) {
		if err := setParameter(root, key, parameters[key]); err != nil {
			errs = append(errs, err)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(weights)) {
		if err := setWeight(root, name, weights[name]); err != nil {
			errs = append(errs, err)
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	out, err := yaml.Marshal(root)
	return []byte(unshield(string(out))), err
}

func setParameter(root yaml.MapSlice, key string, value any) error {
	name, path, ok := strings.Cut(key, ".")
	if !ok || path == "" {
		return fmt.Errorf("%s: must be a plugin and its parameter, with a dot between them", key)
	}
	list, _ := valueOf(root, "plugins").([]any)
	var valid []string
	for i, entry := range list {
		m, _ := entry.(yaml.MapSlice)
		called := nameOf(m, "name")
		if called == "" {
			called = nameOf(m, "type")
		}
		if called != name {
			valid = append(valid, called)
			continue
		}
		list[i] = with(m, append([]string{"parameters"}, strings.Split(path, ".")...), plain(value))
		return nil
	}
	return fmt.Errorf("%s: the configuration has no plugin %q%s", key, name, scheduling.Hint(name, valid))
}

func setWeight(root yaml.MapSlice, name string, weight float64) error {
	profiles, _ := valueOf(root, "schedulingProfiles").([]any)
	found, valid := false, []string(nil)
	for _, profile := range profiles {
		p, _ := profile.(yaml.MapSlice)
		refs, _ := valueOf(p, "plugins").([]any)
		for i, ref := range refs {
			m, _ := ref.(yaml.MapSlice)
			if called := nameOf(m, "pluginRef"); called != name {
				valid = append(valid, called)
				continue
			}
			found, refs[i] = true, with(m, []string{"weight"}, plain(weight))
		}
	}
	if !found {
		return fmt.Errorf("%s: no profile of the configuration refers to it%s", name, scheduling.Hint(name, valid))
	}
	return nil
}

// with is a mapping with a value at a path of keys, which are made where they are not there.
func with(m yaml.MapSlice, path []string, value any) yaml.MapSlice {
	m = slices.Clone(m)
	i := slices.IndexFunc(m, func(e yaml.MapItem) bool { return e.Key == path[0] })
	if i < 0 {
		i, m = len(m), append(m, yaml.MapItem{Key: path[0]})
	}
	if len(path) > 1 {
		inner, _ := m[i].Value.(yaml.MapSlice)
		value = with(inner, path[1:], value)
	}
	m[i].Value = value
	return m
}

func valueOf(m yaml.MapSlice, key string) any {
	for _, e := range m {
		if e.Key == key {
			return e.Value
		}
	}
	return nil
}

func nameOf(m yaml.MapSlice, key string) string {
	name, _ := valueOf(m, key).(string)
	return unshield(name)
}

// plain writes whole numbers without a decimal point.
func plain(v any) any {
	if f, ok := v.(float64); ok && f == math.Trunc(f) && math.Abs(f) < maxNumber {
		return int64(f)
	}
	return v
}
