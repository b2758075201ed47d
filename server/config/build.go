package config

import (
	"fmt"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// Build makes the scheduler that the file describes out of the plugin types. previous is the one that it will replace,
// or nil. The error is a Faults, with everything that is wrong. A build may add to the file's warnings; a file must not
// be built by two goroutines at once.
func (f *File) Build(types []scheduling.PluginType, previous *scheduling.Scheduler) (*scheduling.Scheduler, error) {
	scheduler, faults := f.build(types, previous)
	return scheduler, f.err(faults)
}

func (f *File) build(types []scheduling.PluginType, previous *scheduling.Scheduler) (*scheduling.Scheduler, Faults) {
	f.Warnings, f.created = f.Warnings[:f.parseWarnings:f.parseWarnings], nil
	b := &building{File: f, decoded: map[string]reflect.Value{}}
	scheduler, err := scheduling.Build(b.recording(types), b.config(), previous)
	if err != nil {
		b.collect("", err)
	}
	b.undecoded()
	if scheduler != nil {
		b.faults = append(b.faults, f.unlike(scheduler)...)
	}
	if len(b.faults) > 0 {
		if scheduler != nil {
			if err := scheduler.Close(); err != nil {
				b.faults = append(b.faults, Fault{File: f.Name, Message: fmt.Sprintf("closing what was built: %v", err)})
			}
		}
		return nil, f.withoutEchoes(b.faults)
	}
	scheduler.SetConfigHash(f.Hash(types))
	f.warnAcross(types, scheduler)
	f.Warnings = append(f.Warnings[:f.parseWarnings], Faults(f.Warnings[f.parseWarnings:]).sorted()...)
	return scheduler, nil
}

// Open is Load, or Default where path is empty, and Build in one, with the faults of both. changes are made to the
// server's sections in between, as command-line flags do.
func Open(path string, lookup func(string) (string, bool), types []scheduling.PluginType, changes ...func(*Config)) (*File, *scheduling.Scheduler, error) {
	if path == "" {
		return open("built-in configuration", []byte(DefaultText), lookup, types, changes...)
	}
	data, err := read(path)
	if err != nil {
		return nil, nil, err
	}
	return open(path, data, lookup, types, changes...)
}

func open(name string, data []byte, lookup func(string) (string, bool), types []scheduling.PluginType, changes ...func(*Config)) (*File, *scheduling.Scheduler, error) {
	f, faults := parse(name, data, lookup)
	if f == nil {
		return nil, nil, faults.err()
	}
	for _, change := range changes {
		change(&f.Config)
	}
	scheduler, more := f.build(types, nil)
	if len(faults)+len(more) == 0 {
		return f, scheduler, nil
	}
	faults = append(faults, more...)
	if scheduler != nil {
		if err := scheduler.Close(); err != nil {
			faults = append(faults, Fault{File: name, Message: fmt.Sprintf("closing what was built: %v", err)})
		}
	}
	return nil, nil, f.err(f.withoutEchoes(faults))
}

type building struct {
	*File
	faults  Faults
	decoded map[string]reflect.Value // the parameters that plugins read, by plugin
}

// made notes a plugin that was built, with its parameters as it left them: defaults that depend on others filled in.
func (b *building) made(name, kind string) {
	in := instance{name: name, kind: kind}
	if v, ok := b.decoded[name]; ok && v.Kind() == reflect.Struct {
		e := &emitter{}
		e.mapping(parameterIndent, v)
		in.parameters, in.values = e.b.String(), append([]parameterValue{}, scalarsOf(v)...)
	}
	b.created = append(b.created, in)
}

// recording wraps the types so that the build shows which plugins it made, the undeclared ones included.
func (b *building) recording(types []scheduling.PluginType) []scheduling.PluginType {
	out := slices.Clone(types)
	for i := range out {
		if out[i].New == nil {
			continue
		}
		kind, build := out[i].Type, out[i].New
		out[i].New = func(sb *scheduling.Builder) (any, error) {
			p, err := build(sb)
			if err == nil {
				b.made(sb.Name, kind)
			}
			return p, err
		}
	}
	return out
}

func (b *building) config() scheduling.Config {
	cfg := scheduling.Config{ProfileName: b.profileName, Profile: b.refs, MaxPicks: b.Config.Server.MaxEndpointsInPick}
	for _, pl := range b.plugins {
		spec := scheduling.Spec{Name: pl.name, Type: pl.kind, Decode: func(into any) error {
			v := reflect.ValueOf(into).Elem()
			b.decoded[pl.name] = v
			// What is wrong is gathered here, so that the plugin goes on to judge the rest.
			b.faults = append(b.faults, b.decodeParameters(pl, v)...)
			return nil
		}}
		if !pl.builtIn {
			spec.Path = pl.at.String()
		}
		cfg.Plugins = append(cfg.Plugins, spec)
	}
	return cfg
}

func (f *File) decodeParameters(pl plugin, v reflect.Value) Faults {
	d := f.decoder(pl.document)
	d.drop = f.dropForeign(pl, d)
	d.decode(pl.at.path+".parameters", pl.parameters.node, v)
	return d.faults
}

// undecoded reports parameters that no plugin read: their type has none.
func (b *building) undecoded() {
	for _, pl := range b.plugins {
		_, read := b.decoded[pl.name]
		if pl.parameters.node == nil || read || !slices.ContainsFunc(b.created, func(in instance) bool { return in.name == pl.name }) {
			continue
		}
		var none struct{}
		b.faults = append(b.faults, b.decodeParameters(pl, reflect.ValueOf(&none).Elem())...)
	}
}

// collect splits an error of scheduling.Build into faults. prefix is the text that the errors around it put before it.
func (b *building) collect(prefix string, err error) {
	switch wrapped := err.(type) { //nolint:errorlint // the tree itself is walked
	case interface{ Unwrap() []error }:
		for _, e := range wrapped.Unwrap() {
			b.collect(prefix, e)
		}
		return
	case interface{ Unwrap() error }:
		inner := wrapped.Unwrap()
		if before, ok := strings.CutSuffix(err.Error(), inner.Error()); ok {
			b.collect(prefix+before, inner)
			return
		}
	}
	for _, line := range strings.Split(err.Error(), "\n") {
		b.faults = append(b.faults, b.hinted(b.locate(prefix+line)))
	}
}

// withoutEchoes drops faults that only follow from others: a profile whose picker is at fault has none, and a plugin
// may be used in a profile that does not run.
func (f *File) withoutEchoes(faults Faults) Faults {
	inProfile := func(other Fault) bool {
		return strings.HasPrefix(other.Path, f.profileAt.path) && !strings.HasPrefix(other.Message, noPicker)
	}
	return slices.DeleteFunc(faults, func(fault Fault) bool {
		switch {
		case strings.HasPrefix(fault.Message, noPicker):
			return f.profileAt.path != "" && slices.ContainsFunc(faults, inProfile)
		case strings.HasPrefix(fault.Message, unused):
			return slices.ContainsFunc(f.plugins, func(pl plugin) bool {
				return pl.at.path == fault.Path && slices.Contains(f.elsewhere, pl.name)
			})
		}
		return false
	})
}

// What messages of package scheduling begin with or hold.
const (
	several  = ": several plugins produce "
	noPicker = "the profile has no picker"
	unused   = "is in no scheduling profile"
)

// hinted adds to a fault what to do where the file does not show what is at fault: the built-in profile, or a plugin that was made
// on demand.
func (b *building) hinted(f Fault) Fault {
	switch {
	case strings.HasPrefix(f.Message, unused) && b.builtInProfile():
		f.Message += "; without schedulingProfiles the built-in profile runs, which has no place for it: write one that refers to it"
	case f.Path == "" && strings.Contains(f.Message, several):
		name, _, _ := strings.Cut(f.Message, ": ")
		f.Message += "; declare " + name + " under plugins and set it there"
	}
	return f
}

// leadingKey matches the key that an error of a plugin begins with.
var leadingKey = regexp.MustCompile(`^([A-Za-z][A-Za-z0-9]*(?:\.[A-Za-z0-9]+|\[\d+\])*): `)

// locate gives the text of an error the place that it is about: the parameter that it begins with where the file sets
// it, else the plugin or the reference.
func (b *building) locate(text string) Fault {
	for _, pl := range b.plugins {
		rest, ok := strings.CutPrefix(text, pl.at.String())
		if !ok || pl.builtIn {
			continue
		}
		rest = strings.TrimPrefix(rest, " ("+pl.name+")")
		if key, message, ok := strings.Cut(rest, ": "); ok && key != "" && strings.HasPrefix(key, ".") {
			return Fault{pl.at.file, pl.at.line, pl.at.column, pl.at.path + key, message}.atPlace(b.places)
		}
		return b.inParameters(pl, strings.TrimPrefix(rest, ": "))
	}
	for _, ref := range b.refs {
		_, path, written := strings.Cut(ref.Path, ": ")
		for _, prefix := range []string{ref.Path + ": ", ref.Name + ": "} { // the latter: made for the reference
			if rest, ok := strings.CutPrefix(text, prefix); ok && written {
				return b.place(path).fault("%s", rest)
			}
		}
	}
	if strings.HasPrefix(text, "the profile ") {
		return b.profileAt.fault("%s", text)
	}
	return Fault{File: b.Name, Line: 1, Column: 1, Message: text} // nobody wrote what is at fault: it was made on demand
}

func (b *building) inParameters(pl plugin, message string) Fault {
	at := pl.at
	message = strings.TrimPrefix(message, "parameters.")
	if m := leadingKey.FindStringSubmatch(message); m != nil {
		if node := pl.parameter(m[1]); node != nil {
			at = pl.document.at(node, pl.at.path+".parameters."+m[1])
			message = message[len(m[0]):]
		}
	}
	return at.fault("%s", message)
}

// atPlace moves a fault to where its path stands in the file, if it does.
func (f Fault) atPlace(places map[string]origin) Fault {
	if at, ok := places[f.Path]; ok {
		f.Line, f.Column = at.line, at.column
	}
	return f
}
