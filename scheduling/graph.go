package scheduling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Ref is a profile's reference to a plugin.
type Ref struct {
	// Name is a declared plugin's name, or a known type's, which is then created with its defaults.
	Name string
	// Weight scales a scorer's scores; other kinds of plugin ignore it.
	Weight float64
	// Path says where the configuration has the reference, for errors.
	Path string
}

// Config is what a Scheduler is built from.
type Config struct {
	// Plugins are the declared plugins.
	Plugins []Spec
	// ProfileName is the profile's name.
	ProfileName string
	// Profile are the profile's filters, scorers and picker, in order.
	Profile []Ref
	// MaxPicks is the length of the ordered list of picks; at least 1.
	MaxPicks int
}

// Build makes a Scheduler: it creates the plugins, resolves who consumes what from whom, creates what is missing and has
// a default, and sorts. previous is the scheduler that the new one will replace, or nil; plugins of the same name and
// type may take over its state. The error lists every fault, each with the plugin, the key and the nearest valid name.
func Build(types []PluginType, cfg Config, previous *Scheduler) (*Scheduler, error) {
	g := &graph{types: types, previous: previous, scheduler: &Scheduler{maxPicks: max(1, cfg.MaxPicks)}}
	for _, spec := range cfg.Plugins {
		g.create(spec)
	}
	refs := g.profileInstances(cfg.Profile)
	g.resolve()
	g.checkUnused(refs)
	order := g.sort()
	if err := g.errs.err(); err != nil {
		g.scheduler.plugins = g.instances
		return nil, cmpOr(err, g.scheduler.Close())
	}
	g.assemble(cfg, refs, order)
	return g.scheduler, nil
}

// cmpOr reports err; a failure to close what was half built is only said beside it.
func cmpOr(err, closing error) error {
	if closing != nil {
		return fmt.Errorf("%w (and closing: %w)", err, closing)
	}
	return err
}

type graph struct {
	types     []PluginType
	previous  *Scheduler
	instances []*instance
	scheduler *Scheduler
	edges     map[*instance][]*instance // consumer → producers
	errs      errList
	failed    []string // names that were declared but could not be built: said once
}

func (g *graph) typeNamed(name string) *PluginType {
	for i := range g.types {
		if g.types[i].Type == name {
			return &g.types[i]
		}
	}
	return nil
}

func (g *graph) named(name string) *instance {
	for _, in := range g.instances {
		if in.spec.Name == name {
			return in
		}
	}
	return nil
}

// create builds one plugin and returns it, or nil after noting why not.
func (g *graph) create(spec Spec) *instance {
	where := cmp.Or(spec.Path, spec.Name)
	t := g.typeNamed(spec.Type)
	if t == nil {
		g.fail(spec.Name, "%s.type: unknown plugin type %q%s", where, spec.Type, Hint(spec.Type, g.typeNames()))
		return nil
	}
	if g.named(spec.Name) != nil {
		g.errs.addf("%s.name: duplicate plugin name %q", where, spec.Name)
		return nil
	}
	in, err := newInstance(t, spec, g.previousPlugin(spec))
	if err != nil {
		g.fail(spec.Name, "%s: %w", where, err)
		return nil
	}
	g.instances = append(g.instances, in)
	return in
}

func (g *graph) fail(name, format string, args ...any) {
	g.failed = append(g.failed, name)
	g.errs.addf(format, args...)
}

func (g *graph) previousPlugin(spec Spec) any {
	if g.previous == nil {
		return nil
	}
	for _, p := range g.previous.plugins {
		if p.spec.Name == spec.Name && p.spec.Type == spec.Type {
			return p.plugin
		}
	}
	return nil
}

func (g *graph) typeNames() []string {
	names := make([]string, len(g.types))
	for i := range g.types {
		names[i] = g.types[i].Type
	}
	return names
}

// profileInstances finds or creates what a profile refers to; the result is parallel to refs, nil where it failed.
func (g *graph) profileInstances(refs []Ref) []*instance {
	found := make([]*instance, len(refs))
	pickers := 0
	for i, ref := range refs {
		in := g.named(ref.Name)
		if in == nil && !slices.Contains(g.failed, ref.Name) {
			if g.typeNamed(ref.Name) == nil {
				g.errs.addf("%s: unknown plugin %q%s", ref.Path, ref.Name, Hint(ref.Name, g.knownNames()))
				continue
			}
			in = g.create(Spec{Name: ref.Name, Type: ref.Name})
		}
		if in == nil {
			continue
		}
		if slices.Contains(found[:i], in) {
			g.errs.addf("%s: plugin %q stands in the profile twice", ref.Path, ref.Name)
			continue
		}
		if _, ok := in.plugin.(Picker); ok {
			if pickers++; pickers > 1 {
				g.errs.addf("%s: %q is a second picker; a profile has exactly one", ref.Path, ref.Name)
			}
		}
		if _, ok := in.plugin.(Scorer); ok && (!Finite(ref.Weight) || ref.Weight == 0) {
			g.errs.addf("%s.weight: must be a finite number > 0, got %v", ref.Path, ref.Weight)
		}
		found[i] = in
	}
	if pickers == 0 && len(g.failed) == 0 {
		g.errs.addf("the profile has no picker (for example max-score-picker)")
	}
	return found
}

func (g *graph) knownNames() []string {
	names := g.typeNames()
	for _, in := range g.instances {
		names = append(names, in.spec.Name)
	}
	return names
}

// resolve gives every consumption its producer. Producers made on the way are resolved in turn.
func (g *graph) resolve() {
	g.edges = make(map[*instance][]*instance)
	for i := 0; i < len(g.instances); i++ { // grows while it runs
		in := g.instances[i]
		for _, c := range in.builder.consumes {
			producer := g.producerFor(in, c)
			if producer == nil {
				continue
			}
			from := producer.output(c.slot.data)
			c.slot.producer = producer.spec.Name
			g.edges[in] = append(g.edges[in], producer)
			g.link(c.slot, from)
			if !in.late() && producer.late() && isProducer(in) {
				g.errs.addf("%s: needs %s of %q, which is known only while picking", in.where(), c.slot.data, producer.spec.Name)
			}
		}
	}
}

func isProducer(in *instance) bool {
	_, ok := in.plugin.(Producer)
	return ok
}

// output is the slot in which the instance produces a data type, or nil.
func (in *instance) output(data string) *slot {
	for _, s := range in.builder.produces {
		if s.data == data {
			return s
		}
	}
	return nil
}

// link makes a consumer's slot show what a producer's slot holds.
func (g *graph) link(to, from *slot) {
	if from.index < 0 {
		from.index = len(g.scheduler.slots)
		g.scheduler.slots = append(g.scheduler.slots, from)
	}
	to.index = from.index
}

func (g *graph) producerFor(in *instance, c consumption) *instance {
	if c.named != "" {
		return g.namedProducer(in, c)
	}
	var all []*instance
	for _, p := range g.instances {
		if p.output(c.slot.data) != nil {
			all = append(all, p)
		}
	}
	switch {
	case len(all) == 1:
		return all[0]
	case len(all) > 1:
		g.errs.addf("%s: %s: several plugins produce %s: name one of %s", in.where(), c.param, c.slot.data, nameList(all))
		return nil
	case c.optional:
		return nil
	}
	return g.defaultProducer(in, c)
}

func (g *graph) namedProducer(in *instance, c consumption) *instance {
	p := g.named(c.named)
	if p == nil && slices.Contains(g.failed, c.named) {
		return nil
	}
	if p == nil && g.typeNamed(c.named) != nil {
		p = g.create(Spec{Name: c.named, Type: c.named})
		if p == nil {
			return nil
		}
	}
	var can []string
	for _, q := range g.instances {
		if q.output(c.slot.data) != nil {
			can = append(can, q.spec.Name)
		}
	}
	if p == nil {
		g.errs.addf("%s: %s: unknown producer %q%s", in.where(), c.param, c.named, Hint(c.named, append(can, g.typeNames()...)))
		return nil
	}
	if p.output(c.slot.data) == nil {
		g.errs.addf("%s: %s: %q does not produce %s; producers of it: %s",
			in.where(), c.param, c.named, c.slot.data, cmp.Or(strings.Join(can, ", "), "none"))
		return nil
	}
	return p
}

func (g *graph) defaultProducer(in *instance, c consumption) *instance {
	for i := range g.types {
		t := &g.types[i]
		if !slices.Contains(t.DefaultFor, c.slot.data) || slices.Contains(g.failed, t.Type) {
			continue
		}
		if g.named(t.Type) != nil {
			g.errs.addf("%s: needs %s; its default producer would be called %q, a name that is taken", in.where(), c.slot.data, t.Type)
			return nil
		}
		return g.create(Spec{Name: t.Type, Type: t.Type})
	}
	if len(g.failed) == 0 {
		g.errs.addf("%s: %s: nothing produces %s", in.where(), c.param, c.slot.data)
	}
	return nil
}

func nameList(in []*instance) string {
	names := make([]string, len(in))
	for i := range in {
		names[i] = in[i].spec.Name
	}
	return strings.Join(names, ", ")
}

// checkUnused reports declared filters, scorers and pickers that no profile uses: they would silently do nothing.
func (g *graph) checkUnused(refs []*instance) {
	for _, in := range g.instances {
		switch in.plugin.(type) {
		case Filter, Scorer, Picker:
			if !slices.Contains(refs, in) {
				g.errs.addf("%s: is in no scheduling profile and would do nothing", in.where())
			}
		}
	}
}
