package scheduling

import (
	"errors"
	"fmt"
	"reflect"
)

// PluginType describes a kind of plugin to the graph and to the configuration reference.
type PluginType struct {
	// Type is its name in configuration files.
	Type string
	// Summary says in one sentence what it does.
	Summary string
	// DefaultFor lists the data types (see DataTypeOf) for which this type is created where nothing else produces them.
	DefaultFor []string
	// Parameters is a pointer to its parameter struct with the defaults filled in, for the configuration reference;
	// nil when it has none.
	Parameters any
	// Unavailable, where not empty, says why the type cannot be used; using it is an error.
	Unavailable string
	// New builds one. It declares what the plugin produces and consumes on the Builder, and reads its parameters there.
	// What it returns implements at least one of this package's plugin interfaces.
	New func(b *Builder) (any, error)
}

// Spec is a plugin to build.
type Spec struct {
	// Name is unique within a configuration.
	Name string
	// Type is a PluginType's.
	Type string
	// Path says where the configuration has it, for errors; empty for a plugin that nobody wrote.
	Path string
	// Decode reads its parameters into a pointer to a struct, strictly; nil leaves the struct's defaults.
	Decode func(into any) error
}

// Builder is what a plugin is built with.
type Builder struct {
	// Name is the plugin's name in its configuration.
	Name string
	// Previous is the plugin of the same name and type in the configuration that this one replaces, or nil. A plugin
	// may take over state from it that must outlive a reload; the other one may still be serving.
	Previous any

	spec     Spec
	produces []*slot
	consumes []consumption
	states   []*slot
}

type consumption struct {
	slot     *slot // index and producer are filled in by the graph
	param    string
	named    string // the producer's name in the configuration; empty: the only one
	optional bool
}

// Parameters reads the plugin's parameters into a pointer to its parameter struct, which holds the defaults.
func (b *Builder) Parameters(into any) error {
	if b.spec.Decode == nil {
		return nil
	}
	return b.spec.Decode(into)
}

// Stream is the plugin's random stream, for Cycle.Rand.
func (b *Builder) Stream() uint64 { return StreamOf(b.Name) }

// DataTypeOf is the name under which the graph knows a Go type.
func DataTypeOf[T any]() string { return reflect.TypeFor[T]().Name() }

// ProduceColumn declares a column that the plugin fills, one value of type T per endpoint.
func ProduceColumn[T any](b *Builder) Key[T] {
	s := &slot{data: DataTypeOf[T](), producer: b.Name, index: -1, plain: plain[T](), make: func() storage { return &Column[T]{} }}
	b.produces = append(b.produces, s)
	return Key[T]{s}
}

// ProduceValue declares a value that the plugin fills, one of type T per request.
func ProduceValue[T any](b *Builder) ValueKey[T] {
	s := &slot{data: DataTypeOf[T](), producer: b.Name, index: -1, plain: plain[T](), make: func() storage { return &Value[T]{} }}
	b.produces = append(b.produces, s)
	return ValueKey[T]{s}
}

// ConsumeColumn declares a column that the plugin needs. param is the name of the parameter that names the producer, for
// errors, and producer its value: empty means the only producer of the type, or else the default one, made on demand.
func ConsumeColumn[T any](b *Builder, param, producer string) Key[T] {
	return Key[T]{b.consume(DataTypeOf[T](), param, producer, false)}
}

// ConsumeOptionalColumn is ConsumeColumn for a column that the plugin can do without: where nobody produces it, nobody is
// made to, and the key's column is nil. It orders the plugin behind the producer all the same.
func ConsumeOptionalColumn[T any](b *Builder, param, producer string) Key[T] {
	return Key[T]{b.consume(DataTypeOf[T](), param, producer, true)}
}

// ConsumeValue is ConsumeColumn for a value of the whole request.
func ConsumeValue[T any](b *Builder, param, producer string) ValueKey[T] {
	return ValueKey[T]{b.consume(DataTypeOf[T](), param, producer, false)}
}

func (b *Builder) consume(data, param, producer string, optional bool) *slot {
	s := &slot{data: data, index: -1}
	b.consumes = append(b.consumes, consumption{slot: s, param: param, named: producer, optional: optional})
	return s
}

// KeepState declares state of type T that the plugin, a Follower or Charger, keeps per flight.
func KeepState[T any](b *Builder) StateKey[T] {
	s := &slot{index: -1, make: func() storage { return &State[T]{} }}
	b.states = append(b.states, s)
	return StateKey[T]{s}
}

// instance is a built plugin and its declarations.
type instance struct {
	spec    Spec
	plugin  any
	builder *Builder
}

func newInstance(t *PluginType, spec Spec, previous any) (*instance, error) {
	if t.Unavailable != "" {
		return nil, fmt.Errorf("type %q: %s", t.Type, t.Unavailable)
	}
	b := &Builder{Name: spec.Name, spec: spec, Previous: previous}
	plugin, err := t.New(b)
	if err != nil {
		return nil, err
	}
	if !implementsAny(plugin) {
		return nil, fmt.Errorf("type %q builds a %T, which is no plugin", t.Type, plugin)
	}
	return &instance{spec: spec, plugin: plugin, builder: b}, nil
}

func implementsAny(plugin any) bool {
	switch plugin.(type) {
	case Producer, Filler, Filter, Scorer, Picker, Charger, Follower:
		return true
	}
	return false
}

// late reports whether the instance fills its columns inside the critical section.
func (i *instance) late() bool {
	_, filler := i.plugin.(Filler)
	return filler
}

// where names the instance in errors.
func (i *instance) where() string {
	if i.spec.Path == "" {
		return i.spec.Name
	}
	return fmt.Sprintf("%s (%s)", i.spec.Path, i.spec.Name)
}

// errList gathers every fault of a configuration, so that a user sees all of them at once.
type errList struct{ errs []error }

func (l *errList) addf(format string, args ...any) {
	l.errs = append(l.errs, fmt.Errorf(format, args...))
}

func (l *errList) err() error { return errors.Join(l.errs...) }
