package scheduling_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// graphTypes is a small world: alpha's default producer needs beta, whose default producer needs nothing; gamma is made
// inside the critical section.
func graphTypes() []scheduling.PluginType {
	return []scheduling.PluginType{
		defaultFor[alpha](fake("alpha-producer", idleProducer{}, makes[alpha](), needs[beta](""))),
		defaultFor[beta](fake("beta-producer", idleProducer{}, makes[beta]())),
		defaultFor[gamma](fake("gamma-producer", idleFiller{}, makes[gamma](), wants[alpha](""))),
		fake("alpha-scorer", idleScorer{}, needs[alpha]("")),
		fake("beta-scorer", idleScorer{}, needs[beta]("")),
		fake("gamma-filter", idleFilter{}, needs[gamma]("")),
		fake("hopeful-scorer", idleScorer{}, wants[alpha]("")),
		fake("plain-scorer", idleScorer{}),
		schedtest.First,
		fake("other-picker", schedtestPicker{}),
		{Type: "later-producer", Unavailable: "not in this version"},
		fake("no-plugin", struct{}{}),
		{Type: "refusing-scorer", New: func(*scheduling.Builder) (any, error) {
			return nil, errors.New("parameters.size: must be > 0, got -1")
		}},
	}
}

// schedtestPicker is a second type of picker.
type schedtestPicker struct{}

func (schedtestPicker) Pick(_ *scheduling.Cycle, _ scheduling.Set, _ []float64, picks []int) []int {
	return picks
}

// plugins writes declared plugins as "name" or "name=type".
func plugins(names ...string) []scheduling.Spec {
	specs := make([]scheduling.Spec, len(names))
	for i, n := range names {
		name, typ, found := strings.Cut(n, "=")
		if !found {
			typ = name
		}
		specs[i] = scheduling.Spec{Name: name, Type: typ, Path: fmt.Sprintf("plugins[%d]", i)}
	}
	return specs
}

func TestGraphOrdersAndCreates(t *testing.T) {
	for _, tc := range []struct {
		name    string
		types   []scheduling.PluginType // beside graphTypes
		plugins []scheduling.Spec
		profile []string
		want    []string
	}{
		{
			name:    "defaults are created transitively, producers first",
			profile: []string{"alpha-scorer", "first-picker"},
			want: []string{
				"beta-producer (beta-producer) → beta",
				"alpha-producer (alpha-producer) → alpha; beta ← beta-producer",
				"alpha-scorer (alpha-scorer); alpha ← alpha-producer",
				"first-picker (first-picker)",
			},
		},
		{
			name:    "the only producer serves whatever its name",
			plugins: plugins("mine=beta-producer"),
			profile: []string{"beta-scorer", "first-picker"},
			want: []string{
				"mine (beta-producer) → beta",
				"beta-scorer (beta-scorer); beta ← mine",
				"first-picker (first-picker)",
			},
		},
		{
			name:    "a producer that nobody reads runs all the same",
			plugins: plugins("beta-producer"),
			profile: []string{"first-picker"},
			want:    []string{"beta-producer (beta-producer) → beta", "first-picker (first-picker)"},
		},
		{
			name:    "an optional producer that is there comes first, though declared last",
			plugins: plugins("gamma-producer", "alpha-producer"),
			profile: []string{"first-picker"},
			want: []string{
				"beta-producer (beta-producer) → beta",
				"alpha-producer (alpha-producer) → alpha; beta ← beta-producer",
				"gamma-producer (gamma-producer) → gamma; alpha ← alpha-producer",
				"first-picker (first-picker)",
			},
		},
		{
			name:    "nobody is made for an optional one",
			profile: []string{"hopeful-scorer", "gamma-filter", "first-picker"},
			want: []string{
				"gamma-producer (gamma-producer) → gamma; alpha ← nobody",
				"gamma-filter (gamma-filter); gamma ← gamma-producer",
				"hopeful-scorer (hopeful-scorer); alpha ← nobody",
				"first-picker (first-picker)",
			},
		},
		{
			name:    "an optional one sees a default made for somebody else",
			profile: []string{"alpha-scorer", "gamma-filter", "first-picker"},
			want: []string{
				"beta-producer (beta-producer) → beta",
				"alpha-producer (alpha-producer) → alpha; beta ← beta-producer",
				"gamma-producer (gamma-producer) → gamma; alpha ← alpha-producer",
				"gamma-filter (gamma-filter); gamma ← gamma-producer",
				"alpha-scorer (alpha-scorer); alpha ← alpha-producer",
				"first-picker (first-picker)",
			},
		},
		{
			name:    "what is declared in another order runs in the profile's",
			types:   []scheduling.PluginType{fake("other-filter", idleFilter{}), fake("late-scorer", idleScorer{})},
			plugins: plugins("first-picker=first-picker", "late-scorer=late-scorer", "other-filter=other-filter", "alpha-scorer=alpha-scorer"),
			profile: []string{"alpha-scorer", "gamma-filter", "late-scorer", "first-picker", "other-filter"},
			want: []string{
				"beta-producer (beta-producer) → beta",
				"alpha-producer (alpha-producer) → alpha; beta ← beta-producer",
				"gamma-producer (gamma-producer) → gamma; alpha ← alpha-producer",
				"gamma-filter (gamma-filter); gamma ← gamma-producer",
				"other-filter (other-filter)",
				"alpha-scorer (alpha-scorer); alpha ← alpha-producer",
				"late-scorer (late-scorer)",
				"first-picker (first-picker)",
			},
		},
		{
			name:    "of several producers the named one",
			types:   []scheduling.PluginType{fake("choosy-scorer", idleScorer{}, needs[beta]("two"))},
			plugins: plugins("one=beta-producer", "two=beta-producer"),
			profile: []string{"choosy-scorer", "first-picker"},
			want: []string{
				"one (beta-producer) → beta",
				"two (beta-producer) → beta",
				"choosy-scorer (choosy-scorer); beta ← two",
				"first-picker (first-picker)",
			},
		},
		{
			name:    "a named producer that is only a type is created",
			types:   []scheduling.PluginType{fake("choosy-scorer", idleScorer{}, needs[beta]("beta-producer"))},
			profile: []string{"choosy-scorer", "first-picker"},
			want: []string{
				"beta-producer (beta-producer) → beta",
				"choosy-scorer (choosy-scorer); beta ← beta-producer",
				"first-picker (first-picker)",
			},
		},
		{
			name: "values are wired as columns are",
			types: []scheduling.PluginType{
				defaultFor[int](fake("value-producer", idleProducer{}, makesValue[int]())),
				fake("value-scorer", idleScorer{}, needsValue[int]("")),
			},
			profile: []string{"value-scorer", "first-picker"},
			want: []string{
				"value-producer (value-producer) → int",
				"value-scorer (value-scorer); int ← value-producer",
				"first-picker (first-picker)",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := mustBuild(t, append(graphTypes(), tc.types...), schedtest.Config(tc.plugins, tc.profile...))
			if diff := cmp.Diff(tc.want, s.Describe()); diff != "" {
				t.Errorf("graph (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGraphRefuses(t *testing.T) {
	for _, tc := range []struct {
		name    string
		types   []scheduling.PluginType // beside graphTypes
		plugins []scheduling.Spec
		profile []string
		want    []string // every line of the error
	}{
		{
			name:    "unknown type",
			plugins: plugins("x=beta-producr"),
			profile: []string{"first-picker"},
			want:    []string{`plugins[0].type: unknown plugin type "beta-producr" (did you mean "beta-producer"?)`},
		},
		{
			name:    "unknown type unlike any other",
			plugins: plugins("x=completely-different-thing"),
			profile: []string{"first-picker"},
			want:    []string{`plugins[0].type: unknown plugin type "completely-different-thing"`},
		},
		{
			name:    "unknown reference, near a declared name",
			plugins: plugins("my-favourite=plain-scorer"),
			profile: []string{"my-favorite", "my-favourite", "first-picker"},
			want:    []string{`profile[0]: unknown plugin "my-favorite" (did you mean "my-favourite"?)`},
		},
		{
			name:    "unknown producer",
			types:   []scheduling.PluginType{fake("choosy-scorer", idleScorer{}, needs[beta]("beta-prodcer"))},
			plugins: plugins("beta-producer"),
			profile: []string{"choosy-scorer", "first-picker"},
			want:    []string{`choosy-scorer: producerName: unknown producer "beta-prodcer" (did you mean "beta-producer"?)`},
		},
		{
			name:    "a producer of something else",
			types:   []scheduling.PluginType{fake("choosy-scorer", idleScorer{}, needs[alpha]("beta"))},
			plugins: plugins("beta=beta-producer", "a1=alpha-producer", "a2=alpha-producer"),
			profile: []string{"choosy-scorer", "first-picker"},
			want:    []string{`choosy-scorer: producerName: "beta" does not produce alpha; producers of it: a1, a2`},
		},
		{
			name:    "a producer of something else, and none of this",
			types:   []scheduling.PluginType{fake("choosy-scorer", idleScorer{}, needs[gamma]("beta-producer"))},
			profile: []string{"choosy-scorer", "first-picker"},
			want:    []string{`choosy-scorer: producerName: "beta-producer" does not produce gamma; producers of it: none`},
		},
		{
			name:    "several producers and none named",
			plugins: plugins("one=beta-producer", "two=beta-producer"),
			profile: []string{"beta-scorer", "first-picker"},
			want:    []string{"beta-scorer: producerName: several plugins produce beta: name one of one, two"},
		},
		{
			name:    "several producers of an optional one",
			plugins: plugins("one=alpha-producer", "two=alpha-producer"),
			profile: []string{"hopeful-scorer", "first-picker"},
			want:    []string{"hopeful-scorer: producerName: several plugins produce alpha: name one of one, two"},
		},
		{
			name:    "nothing produces it",
			types:   []scheduling.PluginType{fake("lonely-scorer", idleScorer{}, needs[string](""))},
			profile: []string{"lonely-scorer", "first-picker"},
			want:    []string{"lonely-scorer: producerName: nothing produces string"},
		},
		{
			name:    "the default producer's name is taken",
			plugins: plugins("beta-producer=plain-scorer"),
			profile: []string{"beta-producer", "beta-scorer", "first-picker"},
			want:    []string{`beta-scorer: needs beta; its default producer would be called "beta-producer", a name that is taken`},
		},
		{
			name: "a cycle",
			types: []scheduling.PluginType{
				fake("hen", idleProducer{}, makes[string](), needs[rune]("egg")),
				fake("egg", idleProducer{}, makes[rune](), needs[string]("hen")),
			},
			plugins: plugins("hen"),
			profile: []string{"first-picker"},
			want:    []string{"plugins depend on one another in a cycle: hen → egg → hen"},
		},
		{
			name:    "a cycle of one",
			types:   []scheduling.PluginType{fake("ouroboros", idleProducer{}, makes[string](), needs[string](""))},
			plugins: plugins("ouroboros"),
			profile: []string{"first-picker"},
			want:    []string{"plugins depend on one another in a cycle: ouroboros → ouroboros"},
		},
		{
			name:    "an early producer of what is known only while picking",
			types:   []scheduling.PluginType{fake("hasty", idleProducer{}, makes[string](), needs[gamma](""))},
			plugins: plugins("hasty"),
			profile: []string{"first-picker"},
			want:    []string{`plugins[0] (hasty): needs gamma of "gamma-producer", which is known only while picking`},
		},
		{
			name:    "a name twice",
			plugins: plugins("one=beta-producer", "one=alpha-producer"),
			profile: []string{"first-picker"},
			want:    []string{`plugins[1].name: duplicate plugin name "one"`},
		},
		{
			name:    "two pickers",
			profile: []string{"first-picker", "other-picker"},
			want:    []string{`profile[1]: "other-picker" is a second picker; a profile has exactly one`},
		},
		{
			name:    "no picker",
			profile: []string{"plain-scorer"},
			want:    []string{"the profile has no picker (for example max-score-picker)"},
		},
		{
			name: "an empty profile",
			want: []string{"the profile has no picker (for example max-score-picker)"},
		},
		{
			name:    "one plugin twice in the profile",
			profile: []string{"plain-scorer", "plain-scorer", "first-picker"},
			want:    []string{`profile[1]: plugin "plain-scorer" stands in the profile twice`},
		},
		{
			name:    "a scorer, filter and picker in no profile",
			plugins: plugins("s=plain-scorer", "f=gamma-filter", "p=other-picker"),
			profile: []string{"first-picker"},
			want: []string{
				"plugins[0] (s): is in no scheduling profile and would do nothing",
				"plugins[1] (f): is in no scheduling profile and would do nothing",
				"plugins[2] (p): is in no scheduling profile and would do nothing",
			},
		},
		{
			name:    "a type that is still to come",
			plugins: plugins("later-producer"),
			profile: []string{"first-picker"},
			want:    []string{`plugins[0]: type "later-producer": not in this version`},
		},
		{
			name:    "a type that builds no plugin",
			plugins: plugins("no-plugin"),
			profile: []string{"first-picker"},
			want:    []string{`plugins[0]: type "no-plugin" builds a struct {}, which is no plugin`},
		},
		{
			name:    "a plugin that refuses its parameters is said once",
			plugins: plugins("refusing-scorer"),
			profile: []string{"refusing-scorer", "first-picker"},
			want:    []string{"plugins[0]: parameters.size: must be > 0, got -1"},
		},
		{
			name:    "a picker that cannot be built is no missing picker",
			plugins: plugins("p=later-producer"),
			profile: []string{"p"},
			want:    []string{`plugins[0]: type "later-producer": not in this version`},
		},
		{
			name: "all faults at once",
			types: []scheduling.PluginType{
				fake("choosy-scorer", idleScorer{}, needs[alpha]("beta-producer")),
			},
			plugins: plugins("x=nonsense", "one=beta-producer", "one=beta-producer", "two=beta-producer", "s=plain-scorer"),
			profile: []string{"beta-scorer", "plain-scorr", "choosy-scorer", "first-picker", "other-picker"},
			want: []string{
				`plugins[0].type: unknown plugin type "nonsense"`,
				`plugins[2].name: duplicate plugin name "one"`,
				`profile[1]: unknown plugin "plain-scorr" (did you mean "plain-scorer"?)`,
				`profile[4]: "other-picker" is a second picker; a profile has exactly one`,
				"beta-scorer: producerName: several plugins produce beta: name one of one, two",
				`choosy-scorer: producerName: "beta-producer" does not produce alpha; producers of it: none`,
				"plugins[4] (s): is in no scheduling profile and would do nothing",
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s, err := scheduling.Build(append(graphTypes(), tc.types...), schedtest.Config(tc.plugins, tc.profile...), nil)
			if err == nil {
				t.Fatalf("built: %v", s.Describe())
			}
			if diff := cmp.Diff(tc.want, strings.Split(err.Error(), "\n")); diff != "" {
				t.Errorf("error (-want +got):\n%s", diff)
			}
		})
	}
}

// TestC43_Weights: zero, a sign and what is not a number are refused, each with its path and value.
func TestC43_Weights(t *testing.T) {
	for weight, want := range map[float64]string{
		0: "got 0", -1: "got -1", math.Inf(1): "got +Inf", math.NaN(): "got NaN",
	} {
		cfg := schedtest.Config(nil, "plain-scorer", "first-picker")
		cfg.Profile[0].Weight = weight
		_, err := scheduling.Build(graphTypes(), cfg, nil)
		want = "profile[0].weight: must be a finite number > 0, " + want
		if err == nil || err.Error() != want {
			t.Errorf("weight %v: got %v, want %q", weight, err, want)
		}
	}
	cfg := schedtest.Config(nil, "plain-scorer", "first-picker")
	cfg.Profile[1].Weight = 0 // a picker's weight means nothing
	mustBuild(t, graphTypes(), cfg)
}

// keyHolder is a scorer that shows the keys that it was built with.
type keyHolder struct {
	idleScorer
	alpha scheduling.Key[alpha]
	value scheduling.ValueKey[int]
}

// TestAbsentColumns: a key that nobody produces has a nil column, on which every value is absent; so has the zero key.
func TestAbsentColumns(t *testing.T) {
	var holder *keyHolder
	types := append(graphTypes(), scheduling.PluginType{Type: "holder", New: func(b *scheduling.Builder) (any, error) {
		holder = &keyHolder{alpha: scheduling.ConsumeOptionalColumn[alpha](b, "producerName", "")}
		return holder, nil
	}})
	s := mustBuild(t, types, schedtest.Config(nil, "holder", "first-picker"))
	c := s.Begin(pool(3).Snapshot(), &scheduling.Request{}, 0)
	defer s.End(c)

	for name, key := range map[string]scheduling.Key[alpha]{"optional": holder.alpha, "zero": {}} {
		column := key.In(c)
		if column != nil {
			t.Errorf("%s key: a column exists", name)
		}
		if v, ok := column.Get(1); ok || v != 0 {
			t.Errorf("%s key: Get is %v, %t", name, v, ok)
		}
		if !column.Present().Empty() {
			t.Errorf("%s key: something is present", name)
		}
		if key.Producer() != "" {
			t.Errorf("%s key: producer %q", name, key.Producer())
		}
	}
	if v, ok := holder.value.In(c).Get(); ok || v != 0 || holder.value.Producer() != "" {
		t.Errorf("zero value key: %v, %t, producer %q", v, ok, holder.value.Producer())
	}
}

// TestColumnsForgetTheCycleBefore: absent is a state of its own, so a pooled cycle must not show old values.
func TestColumnsForgetTheCycleBefore(t *testing.T) {
	var key scheduling.Key[alpha]
	var value scheduling.ValueKey[int]
	types := []scheduling.PluginType{schedtest.First, {Type: "p", New: func(b *scheduling.Builder) (any, error) {
		key, value = scheduling.ProduceColumn[alpha](b), scheduling.ProduceValue[int](b)
		return idleProducer{}, nil
	}}}
	s := mustBuild(t, types, schedtest.Config(plugins("p"), "first-picker"))
	for _, n := range []int{5, 130, 2, 0, 70} {
		c := s.Begin(pool(n).Snapshot(), &scheduling.Request{}, 0)
		column := key.In(c)
		if !column.Present().Empty() {
			t.Fatalf("%d endpoints: values of the cycle before", n)
		}
		if _, ok := value.In(c).Get(); ok {
			t.Fatalf("%d endpoints: the value of the cycle before", n)
		}
		for i := range n {
			column.Set(i, alpha(i))
		}
		value.In(c).Set(0)
		if _, ok := value.In(c).Get(); !ok {
			t.Error("a zero that was set is absent")
		}
		if n > 1 {
			column.Unset(0)
			if _, ok := column.Get(0); ok || column.Present().Len() != n-1 {
				t.Errorf("%d endpoints: Unset left %d", n, column.Present().Len())
			}
			if v, ok := column.Get(1); !ok || v != 1 {
				t.Errorf("Get(1) is %v, %t", v, ok)
			}
		}
		if _, ok := column.Get(n); ok {
			t.Errorf("%d endpoints: a value beyond them", n)
		}
		s.End(c)
	}
	if key.Producer() != "p" || value.Producer() != "p" {
		t.Errorf("producers %q and %q", key.Producer(), value.Producer())
	}
}

// TestConsumersSeeTheirProducer runs the wiring: two producers of one type, and each reader gets its own.
func TestConsumersSeeTheirProducer(t *testing.T) {
	seen := map[string]alpha{}
	producer := func(typ string, v alpha) scheduling.PluginType {
		return scheduling.PluginType{Type: typ, New: func(b *scheduling.Builder) (any, error) {
			key := scheduling.ProduceColumn[alpha](b)
			return producerFunc(func(_ context.Context, c *scheduling.Cycle) error {
				key.In(c).Set(0, v)
				return nil
			}), nil
		}}
	}
	reader := func(typ, from string) scheduling.PluginType {
		return scheduling.PluginType{Type: typ, New: func(b *scheduling.Builder) (any, error) {
			key := scheduling.ConsumeColumn[alpha](b, "producerName", from)
			return scorerFunc(func(c *scheduling.Cycle, _ scheduling.Set, _ []float64) {
				seen[typ], _ = key.In(c).Get(0)
			}), nil
		}}
	}
	s := mustBuild(t, []scheduling.PluginType{producer("one", 1), producer("two", 2), reader("r1", "one"), reader("r2", "two"), schedtest.First},
		schedtest.Config(plugins("two", "one"), "r1", "r2", "first-picker"))
	c := s.Begin(pool(1).Snapshot(), &scheduling.Request{}, 0)
	defer s.End(c)
	s.Produce(t.Context(), c)
	s.Preview(c)
	if diff := cmp.Diff(map[string]alpha{"r1": 1, "r2": 2}, seen); diff != "" {
		t.Errorf("values (-want +got):\n%s", diff)
	}
}
