package config_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/server/config"
)

type shopping struct {
	Name  string         `yaml:"name"`
	Items []shoppingItem `yaml:"items"`
	Wait  time.Duration  `yaml:"wait" range:"0s..1h"`
}

type shoppingItem struct {
	Count *int           `yaml:"count"`
	Set   map[string]any `yaml:"set"`
	Sizes []float64      `yaml:"sizes"`
}

func TestDecode(t *testing.T) {
	s := shopping{Name: "as it was"}
	places, err := config.Decode("list.yaml", []byte("wait: 3s\nitems:\n  - count: 2\n    sizes: [1, 2.5]\n    set: {a.b: 3, c: true, d: x}\n"), &s)
	if err != nil || s.Name != "as it was" || s.Wait != 3*time.Second || *s.Items[0].Count != 2 || s.Items[0].Sizes[1] != 2.5 ||
		s.Items[0].Set["a.b"] != 3.0 || s.Items[0].Set["c"] != true {
		t.Fatalf("%v: %+v", err, s)
	}
	for path, want := range map[string]string{
		"items[0].sizes[1]": "list.yaml:4:16: items[0].sizes[1]: is bad, got 2.5",
		"items[0].other":    "list.yaml:3:5: items[0].other: is bad, got 2.5",
		"items[7]":          "list.yaml:3:3: items[7]: is bad, got 2.5",
		"nothing":           "list.yaml:1:1: nothing: is bad, got 2.5",
		"":                  "list.yaml:1:1: is bad, got 2.5",
	} {
		if got := places.Fault(path, "is bad, got %v", 2.5).Error(); got != want {
			t.Errorf("%q: %q, want %q", path, got, want)
		}
	}
	for text, want := range map[string]string{
		"naem: x":                  `list.yaml:1:1: naem: unknown key (did you mean "name"?)`,
		"wait: 3":                  "list.yaml:1:7: wait: must be a duration with a unit",
		"wait: 1s\nwait: 2s":       "list.yaml:2:1: wait: duplicate key",
		"":                         "list.yaml:1:1: has nothing in it",
		"[1]":                      "list.yaml:1:1: must be a mapping",
		"items: {a: 1}":            "list.yaml:1:8: items: must be a list, got a mapping",
		"items: [{sizes: [1, x]}]": "items[0].sizes[1]: must be a number",
		"name: ${HOME}":            "HOME",
	} {
		if _, err := config.Decode("list.yaml", []byte(text), &shopping{}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

const changeable = `plugins:
  - type: prefix-cache-affinity-filter # the gate
    parameters: {affinityThreshold: 0.7}
  - {name: "${WHO}", type: queue-scorer}
  - type: max-score-picker
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: prefix-cache-affinity-filter
      - {pluginRef: "${WHO}", weight: 2}
      - pluginRef: max-score-picker
`

func TestChanged(t *testing.T) {
	got, err := config.Changed([]byte(changeable), map[string]any{
		"prefix-cache-affinity-filter.maxTTFTPenaltyMs": 5000.0, "prefix-cache-affinity-filter.affinityThreshold": 0.9,
	}, map[string]float64{"${WHO}": 3})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"affinityThreshold: 0.9\n", "maxTTFTPenaltyMs: 5000\n", "weight: 3\n", "${WHO}", "type: max-score-picker"} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
	if _, err := config.Parse("x", got, func(string) (string, bool) { return "queue", true }); err != nil {
		t.Errorf("%v in\n%s", err, got)
	}
	for _, c := range []struct {
		parameters map[string]any
		weights    map[string]float64
		want       string
	}{
		{parameters: map[string]any{"prefix-cache-afinity-filter.x": 1.0}, want: `the configuration has no plugin "prefix-cache-afinity-filter" (did you mean "prefix-cache-affinity-filter"?)`},
		{parameters: map[string]any{"plugin": 1.0}, want: "plugin: must be a plugin and its parameter, with a dot between them"},
		{weights: map[string]float64{"max-scor-picker": 1}, want: `max-scor-picker: no profile of the configuration refers to it (did you mean "max-score-picker"?)`},
	} {
		if _, err := config.Changed([]byte(changeable), c.parameters, c.weights); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v, want %s", err, c.want)
		}
	}
	if _, err := config.Changed([]byte("a: [\n"), nil, nil); err == nil {
		t.Error("no YAML was taken")
	}
}
