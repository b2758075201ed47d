package calibrate

import (
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
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
}

// The parameters that are measured, whatever plugin has them.
const (
	peakParameter    = "peakPrefillThroughput"
	penaltyParameter = "maxTTFTPenaltyMs"
)

// changes says which parameters of a configuration a deployment's measurements are for. effective is the configuration with
// all defaults filled in, as 'sluice config check' prints it. A bar that only is a ceiling is left alone.
func (d *Deployment) changes(effective []byte) ([]Change, error) {
	var file struct {
		Plugins []struct {
			Name       string         `yaml:"name"`
			Type       string         `yaml:"type"`
			Parameters map[string]any `yaml:"parameters"`
		} `yaml:"plugins"`
	}
	if err := yaml.Unmarshal(effective, &file); err != nil {
		return nil, fmt.Errorf("the effective configuration: %w", err)
	}
	var all []Change
	for _, p := range file.Plugins {
		add := func(parameter string, to *Interval) {
			from, err := strconv.ParseFloat(fmt.Sprint(p.Parameters[parameter]), 64)
			if to != nil && err == nil {
				all = append(all, Change{Plugin: p.Name, Type: p.Type, Parameter: parameter, From: from, To: math.Max(1, rounded(to.Value))})
			}
		}
		add(peakParameter, d.PeakPerS)
		if p.Parameters["penaltyMode"] == "static" {
			add(penaltyParameter, d.PricedMs)
		}
	}
	return all, nil
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

// YAML is the changes as a piece of a configuration file.
func YAML(changes []Change) string {
	var b strings.Builder
	b.WriteString("plugins:\n")
	plugin := ""
	for _, c := range changes {
		if c.Plugin != plugin {
			plugin = c.Plugin
			fmt.Fprintf(&b, "  - type: %s\n", c.Type)
			if c.Plugin != c.Type {
				fmt.Fprintf(&b, "    name: %s\n", strconv.Quote(c.Plugin))
			}
			b.WriteString("    parameters:\n")
		}
		was := "as it is"
		if c.isOne() {
			was = fmt.Sprintf("is %v", c.From)
		}
		fmt.Fprintf(&b, "      %s: %v # %s\n", c.Parameter, c.To, was)
	}
	return b.String()
}
