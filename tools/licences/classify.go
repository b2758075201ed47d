package main

import (
	"fmt"
	"slices"

	"github.com/google/licensecheck"
)

// compatible are the licences, by SPDX identifier, of which works may be part of one under Apache-2.0. MPL-2.0 binds the
// files that it covers and no others, and these are used as they come.
var compatible = map[string]bool{
	"0BSD": true, "Apache-2.0": true, "BSD-2-Clause": true, "BSD-3-Clause": true, "BSL-1.0": true, "CC0-1.0": true, "ISC": true,
	"MIT": true, "MIT-0": true, "MPL-2.0": true, "Unlicense": true, "Zlib": true,
}

// minCoverage is how much of a text must be known licences, in percent of its words. Names, years and appendices make up
// the rest.
const minCoverage = 75

// text is a licence text that was read.
type text struct {
	name     string // from the module's root
	ids      []string
	coverage float64 // percent
}

func classify(name string, content []byte) text {
	found := licensecheck.Scan(content)
	t := text{name: name, coverage: found.Percent}
	for _, m := range found.Match {
		if m.IsURL { // a mention, not a text
			continue
		}
		t.ids = append(t.ids, m.ID)
	}
	slices.Sort(t.ids)
	t.ids = slices.Compact(t.ids)
	return t
}

// fault says why a text does not do; nil where it does.
func (t text) fault() error {
	for _, id := range t.ids {
		if !compatible[id] {
			return fmt.Errorf("%s is %s, which is not among the licences that are compatible with Apache-2.0", t.name, id)
		}
	}
	if len(t.ids) == 0 || t.coverage < minCoverage {
		return fmt.Errorf("%s is not a licence that is known (%.0f %% of it is)", t.name, t.coverage)
	}
	return nil
}
