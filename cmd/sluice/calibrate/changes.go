package calibrate

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/goccy/go-yaml"

	"github.com/sluice-epp/sluice/gate"
)

// Change is a parameter of a configuration and what was measured for it.
type Change struct {
	// Plugin and Type are the plugin's.
	Plugin string `json:"plugin"`
	Type   string `json:"type"`
	// Parameter is its name; From is its value now, To the measured one.
	Parameter string  `json:"parameter"`
	From      float64 `json:"from"`
	To        float64 `json:"to"`

	rest yaml.MapSlice // the plugin's parameters in force
}

// The parameters that are measured, whatever plugin has them.
const (
	peakParameter    = "peakPrefillThroughput"
	penaltyParameter = "maxTTFTPenaltyMs"
)

// changes says which parameters of a configuration a deployment's measurements are for, and which gates need none. effective is
// the configuration with all defaults filled in, as 'sluice config check' prints it. A bar that only is a ceiling is left alone,
// and so is a gate that breaks even: what it needs is learnt, from where the producer of rates starts.
func (d *Deployment) changes(effective []byte) (all []Change, measured []string, err error) {
	var file struct {
		Plugins []struct {
			Name       string        `yaml:"name"`
			Type       string        `yaml:"type"`
			Parameters yaml.MapSlice `yaml:"parameters"`
		} `yaml:"plugins"`
	}
	if err := yaml.Unmarshal(effective, &file); err != nil {
		return nil, nil, fmt.Errorf("the effective configuration: %w", err)
	}
	for _, p := range file.Plugins {
		inForce := p.Parameters.ToMap()
		if inForce["penaltyMode"] == gate.ModeBreakEven {
			measured = append(measured, p.Name)
			continue
		}
		c := Change{Plugin: p.Name, Type: p.Type, rest: p.Parameters}
		add := func(parameter string, to *Interval) {
			from, err := strconv.ParseFloat(fmt.Sprint(inForce[parameter]), 64)
			if to != nil && err == nil {
				c.Parameter, c.From, c.To = parameter, from, math.Max(1, rounded(to.Value))
				all = append(all, c)
			}
		}
		add(peakParameter, d.PeakPerS)
		if inForce["penaltyMode"] == gate.ModeStatic {
			add(penaltyParameter, d.PricedMs)
		}
	}
	return all, measured, nil
}

// rounded keeps three digits, which is more than any interval is narrow.
func rounded(v float64) float64 {
	if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 0
	}
	unit := math.Pow(10, math.Max(0, math.Floor(math.Log10(v))-2))
	return math.Round(v/unit) * unit
}

func (c *Change) isOne() bool { return c.From != c.To }

// YAML is the changes as a piece of a configuration file. A plugin comes with all of its parameters in force: those that a file
// leaves out have their defaults, which may be others than what was in force.
func YAML(changes []Change) string {
	var b strings.Builder
	b.WriteString("plugins:\n")
	for len(changes) > 0 {
		n := 1
		for n < len(changes) && changes[n].Plugin == changes[0].Plugin {
			n++
		}
		writePlugin(&b, changes[:n])
		changes = changes[n:]
	}
	return b.String()
}

// writePlugin writes the changes of one plugin.
func writePlugin(b *strings.Builder, changes []Change) {
	first := changes[0]
	fmt.Fprintf(b, "  - type: %s\n", first.Type)
	if first.Plugin != first.Type {
		fmt.Fprintf(b, "    name: %s\n", strconv.Quote(first.Plugin))
	}
	b.WriteString("    parameters:\n")
	for _, p := range first.rest {
		if slices.ContainsFunc(changes, func(c Change) bool { return c.Parameter == p.Key }) || p.Value == nil || p.Value == "" {
			continue // below, or not set
		}
		if value, err := json.Marshal(p.Value, json.Deterministic(true)); err == nil { // JSON is YAML, too
			fmt.Fprintf(b, "      %v: %s\n", p.Key, value)
		}
	}
	for _, c := range changes {
		was := "as it is"
		if c.isOne() {
			was = fmt.Sprintf("is %v", c.From)
		}
		fmt.Fprintf(b, "      %s: %v # %s\n", c.Parameter, c.To, was)
	}
}
