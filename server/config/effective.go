package config

import (
	"crypto/sha256"
	"encoding/hex"
	"reflect"
	"slices"

	"github.com/sluice-epp/sluice/scheduling"
)

// Effective is the whole configuration as YAML: what the file leaves out filled in with defaults, secrets redacted. After
// Build it includes the plugins that nobody declared. types is where plugins' defaults come from.
func (f *File) Effective(types []scheduling.PluginType) string {
	e := &emitter{}
	e.line(0, "apiVersion: %s", Versions[0])
	e.line(0, "kind: %s", Kind)
	e.mapping(0, reflect.ValueOf(&f.Config).Elem())
	e.line(0, "plugins:")
	for _, pl := range f.allPlugins() {
		e.line(1, "- name: %s", plainText(pl.name))
		e.line(2, "type: %s", plainText(pl.kind))
		if text := f.parameterText(types, pl); text != "" {
			e.line(2, "parameters:")
			e.b.WriteString(text)
		}
	}
	e.line(0, "schedulingProfiles:")
	e.line(1, "- name: %s", plainText(f.profileName))
	e.line(2, "plugins:")
	for _, ref := range f.refs {
		e.line(3, "- pluginRef: %s", plainText(ref.Name))
		if ref.Weight != 1 {
			e.line(4, "weight: %s", scalarYAML(reflect.ValueOf(ref.Weight)))
		}
	}
	return e.b.String()
}

// Hash names the effective configuration: two configurations with the same hash do the same, secrets aside. Secrets do
// not enter it, so it may be shown.
func (f *File) Hash(types []scheduling.PluginType) string {
	sum := sha256.Sum256([]byte(f.Effective(types)))
	f.hash = hex.EncodeToString(sum[:8])
	return f.hash
}

// allPlugins are those declared, of the built-in profile, and made on demand.
func (f *File) allPlugins() []plugin {
	all := slices.Clone(f.plugins)
	for _, c := range f.created {
		if !slices.ContainsFunc(all, func(pl plugin) bool { return pl.name == c.name }) {
			all = append(all, plugin{name: c.name, kind: c.kind, builtIn: true})
		}
	}
	return all
}

// parameterIndent is how deep a plugin's parameters stand.
const parameterIndent = 3

// parameterText is a plugin's effective parameters: as the build left them, or else the file's over the defaults.
func (f *File) parameterText(types []scheduling.PluginType, pl plugin) string {
	for _, in := range f.created {
		if in.name == pl.name && in.values != nil {
			return in.parameters
		}
	}
	params := f.effectiveParameters(types, pl)
	if !params.IsValid() {
		return ""
	}
	e := &emitter{}
	e.mapping(parameterIndent, params)
	return e.b.String()
}

// effectiveParameters is a plugin's parameter struct, defaults and file together; invalid where it has none.
func (f *File) effectiveParameters(types []scheduling.PluginType, pl plugin) reflect.Value {
	i := slices.IndexFunc(types, func(t scheduling.PluginType) bool { return t.Type == pl.kind })
	if i < 0 || types[i].Parameters == nil {
		return reflect.Value{}
	}
	v := reflect.New(reflect.TypeOf(types[i].Parameters).Elem()).Elem()
	v.Set(reflect.ValueOf(types[i].Parameters).Elem())
	if pl.document != nil && pl.parameters.node != nil {
		quiet := &File{lookup: f.lookup}  // its warnings have been given
		_ = quiet.decodeParameters(pl, v) // and its faults
	}
	return v
}
