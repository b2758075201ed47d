package policies

import (
	"embed"
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// Parameter is a number or a word that a policy's user sets.
type Parameter struct {
	// Name is what it is called in a policy's specification.
	Name string
	// Default is the value that the project ships.
	Default string
	// Help says what it does, with its unit.
	Help string
}

// Params are values of parameters by name.
type Params map[string]string

// Policy is a routing policy with the values of its parameters.
type Policy struct {
	// Name is what it is called on a command line.
	Name string
	// Summary says in a line what it does.
	Summary string
	// Source is where the rule is read from: a project's file at a commit, or a paper.
	Source string
	// Parameters are what can be set.
	Parameters []Parameter
	// Tuned are the settings beside the defaults that somebody who tunes the policy by hand would try.
	Tuned []Params

	set    Params // what differs from the defaults
	config string // the configuration's file
}

// Open builds a scheduler from a configuration's text. name is what errors call it; lookup knows the values of the ${…} in
// it; more are plugin types beside those that serve.
type Open func(name string, text []byte, lookup func(string) (string, bool), more []scheduling.PluginType) (*scheduling.Scheduler, error)

//go:embed configs
var configs embed.FS

// All are the policies, cache-blind ones first.
func All() []Policy {
	return slices.Concat(blind(), llmd())
}

// Find is the policy of a name, with its defaults. The error names the nearest.
func Find(name string) (Policy, error) {
	var names []string
	for _, p := range All() {
		if p.Name == name {
			return p, nil
		}
		names = append(names, p.Name)
	}
	return Policy{}, fmt.Errorf("unknown policy %q%s", name, scheduling.Hint(name, names))
}

// Parse is the policy of a specification: NAME or NAME:PARAMETER=VALUE,….
func Parse(spec string) (Policy, error) {
	name, settings, more := strings.Cut(spec, ":")
	p, err := Find(name)
	if err != nil || !more {
		return p, err
	}
	set := Params{}
	for setting := range strings.SplitSeq(settings, ",") {
		key, value, ok := strings.Cut(setting, "=")
		if _, twice := set[key]; !ok || value == "" || twice {
			return Policy{}, fmt.Errorf("policy %s: want PARAMETER=VALUE once each, got %q", name, setting)
		}
		set[key] = value
	}
	return p.With(set)
}

// With is the policy with other values of its parameters, whose other values stay.
func (p Policy) With(set Params) (Policy, error) {
	next := Params{}
	for key, value := range p.set {
		next[key] = value
	}
	for key, value := range set {
		i := slices.IndexFunc(p.Parameters, func(q Parameter) bool { return q.Name == key })
		if i < 0 {
			var names []string
			for _, q := range p.Parameters {
				names = append(names, q.Name)
			}
			return Policy{}, fmt.Errorf("policy %s has no parameter %q%s", p.Name, key, scheduling.Hint(key, names))
		}
		if next[key] = value; value == p.Parameters[i].Default {
			delete(next, key)
		}
	}
	p.set = next
	return p, nil
}

// Label is the policy's specification: Parse makes the same of it.
func (p *Policy) Label() string {
	var set []string
	for _, q := range p.Parameters {
		if value, ok := p.set[q.Name]; ok {
			set = append(set, q.Name+"="+value)
		}
	}
	if len(set) == 0 {
		return p.Name
	}
	return p.Name + ":" + strings.Join(set, ",")
}

// Value is the value of a parameter.
func (p *Policy) Value(name string) (value string, ok bool) {
	if value, ok = p.set[name]; ok {
		return value, true
	}
	for _, q := range p.Parameters {
		if q.Name == name {
			return q.Default, true
		}
	}
	return "", false
}

// NewPicker makes a picker that follows the policy and sees a fleet through view.
func (p *Policy) NewPicker(view *fleet.View, open Open) (fleet.Picker, error) {
	text, err := configs.ReadFile("configs/" + p.config)
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Name, err)
	}
	s, err := open("policy "+p.Label(), text, p.Value, Types())
	if err != nil {
		return nil, err
	}
	return fleet.NewScheduled(view, s), nil
}

// Types are the plugins that exist for simulation alone. Their names begin with "sim-".
func Types() []scheduling.PluginType {
	return []scheduling.PluginType{
		roundRobinType(),
		twoChoicesType(),
	}
}

// grid is every combination of the values of some parameters, the last one's changing fastest, without the defaults.
func grid(defaults []Parameter, axes ...axis) []Params {
	all := []Params{{}}
	for _, a := range axes {
		var next []Params
		for _, p := range all {
			for _, v := range a.values {
				q := Params{a.name: v}
				for k, old := range p {
					q[k] = old
				}
				next = append(next, q)
			}
		}
		all = next
	}
	return slices.DeleteFunc(all, func(p Params) bool {
		for _, d := range defaults {
			if v, ok := p[d.Name]; ok && v != d.Default {
				return false
			}
		}
		return true
	})
}

// axis are the values that a grid tries of a parameter.
type axis struct {
	name   string
	values []string
}

// over is an axis of values apart by spaces.
func over(name, values string) axis { return axis{name, strings.Fields(values)} }
