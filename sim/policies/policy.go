package policies

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"slices"
	"strconv"
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
	// Pooled says that the run's engines share one cache of all their memory (fleet.Config.Pooled).
	Pooled bool

	set    Params                         // what differs from the defaults
	config string                         // the configuration's file
	picker func(*fleet.View) fleet.Picker // in the configuration's stead
}

// Open builds a scheduler from a configuration's text. name is what errors call it; lookup knows the values of the ${…} in
// it; more are plugin types beside those that serve.
type Open func(name string, text []byte, lookup func(string) (string, bool), more []scheduling.PluginType) (*scheduling.Scheduler, error)

// The parameters that many policies have, and values of theirs.
const (
	indexParameter, approx, precise = "index", "approx", "precise"
	capacityParameter, engines      = "capacity", "engines"
)

func indexBy(byDefault string) Parameter {
	return Parameter{Name: indexParameter, Default: byDefault, Help: "the prefix index: precise (KV events) or approx (a record of the picks)"}
}

func capacityOf(byDefault, there string) Parameter {
	return Parameter{Name: capacityParameter, Default: byDefault, Help: "size of the record of each endpoint's prompts, in tokens" + there}
}

// tunedCapacity is what approximate indices take the engines' word for.
func tunedCapacity() Parameter {
	return capacityOf(engines, ", where the index is approx; engines: as large as theirs")
}

//go:embed configs
var configs embed.FS

// All are the policies, cache-blind ones first.
func All() []Policy {
	return slices.Concat(blind(), hashed(), llmd(), sglang(), aibrix(), dynamo(), lmetric(), preble(), pooled())
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
	if p.picker != nil {
		return p.picker(view), nil
	}
	text, err := p.text()
	if err != nil {
		return nil, fmt.Errorf("policy %s: %w", p.Label(), err)
	}
	s, err := open("policy "+p.Label(), text, p.lookup(view.BlockTokens()), Types())
	if err != nil {
		return nil, p.plain(err)
	}
	return fleet.NewScheduled(view, s), nil
}

// plain says the values that a configuration hides, as it does those of its environment: a policy's are no secrets.
func (p *Policy) plain(err error) error {
	words := err.Error()
	for range p.Parameters { // one may be hidden within another's name
		for _, q := range p.Parameters {
			value, _ := p.Value(q.Name)
			words = strings.ReplaceAll(words, "${"+q.Name+"}", value)
		}
	}
	return errors.New(words)
}

// text is the policy's configuration, with the prefix index that its parameter names.
func (p *Policy) text() ([]byte, error) {
	text, err := configs.ReadFile("configs/" + p.config)
	if err != nil {
		return nil, err
	}
	index, ok := p.Value(indexParameter)
	if !ok {
		index = approx
	} else if index != approx && index != precise {
		return nil, fmt.Errorf("index: must be %s or %s, got %q%s", approx, precise, index, scheduling.Hint(index, []string{approx, precise}))
	}
	fragment, err := configs.ReadFile("configs/index-" + index + ".yaml")
	if err != nil {
		return nil, err
	}
	return bytes.Replace(text, []byte("  # index\n"), fragment, 1), nil
}

// lookup knows the values of the ${…} in the policy's configuration: its parameters, the size of the engines' blocks in
// tokens, and in such blocks that of the record that the approximate index keeps of an endpoint.
func (p *Policy) lookup(blockTokens int) func(name string) (string, bool) {
	return func(name string) (string, bool) {
		switch name {
		case "blockTokens":
			return strconv.Itoa(blockTokens), true
		case "autoTune":
			capacity, _ := p.Value(capacityParameter)
			return strconv.FormatBool(capacity == engines), true
		case "recordBlocks":
			capacity, _ := p.Value(capacityParameter)
			tokens, err := strconv.Atoi(capacity)
			if err != nil && capacity != engines {
				return capacity, true // whoever reads it says what is wrong
			}
			return strconv.Itoa(tokens / blockTokens), true
		}
		return p.Value(name)
	}
}

// Types are the plugins that exist for simulation alone. Their names begin with "sim-".
func Types() []scheduling.PluginType {
	return []scheduling.PluginType{
		roundRobinType(),
		workType(),
		twoChoicesType(),
		hashType(),
		sglangType(),
		aibrixType(),
		dynamoType(),
		lmetricType(),
		prebleType(),
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
