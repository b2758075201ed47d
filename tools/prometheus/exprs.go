package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/promql/parser"
)

var promQL = parser.NewParser(parser.Options{})

// rates are the functions that need a counter.
var rates = []string{"rate", "irate", "increase"}

// checkExpr parses an expression and holds every series that it asks for against the metrics that there are: its name, the
// labels that it is matched and grouped by, and that counters, and they alone, are asked for their rate.
func checkExpr(expr string, known map[string]metric) (faults []error) {
	parsed, err := promQL.ParseExpr(expr)
	if err != nil {
		return []error{fmt.Errorf("%q: %w", expr, err)}
	}
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("%q: "+format, append([]any{expr}, args...)...))
	}
	selectors := 0
	parser.Inspect(parsed, func(node parser.Node, path []parser.Node) error {
		switch n := node.(type) {
		case *parser.VectorSelector:
			selectors++
			m, part, err := find(known, n.Name)
			if err != nil {
				fault("%w", err)
				return nil
			}
			for _, l := range n.LabelMatchers {
				if l.Name != labels.MetricName && !has(m, part, l.Name) {
					fault("%s has no label %q", n.Name, l.Name)
				}
			}
			checkUse(n, m, part, path, fault)
		case *parser.AggregateExpr:
			of := labelsOf(n.Expr, known)
			for _, l := range n.Grouping {
				if !n.Without && len(of) > 0 && !of[l] {
					fault("nothing below has the label %q that it is grouped by", l)
				}
			}
		}
		return nil
	})
	if selectors == 0 {
		fault("it asks for no series")
	}
	return faults
}

func has(m metric, part, label string) bool {
	return m.labels[label] || target[label] || part == "_bucket" && label == "le"
}

// checkUse looks at what is done with a series.
func checkUse(n *parser.VectorSelector, m metric, part string, path []parser.Node, fault func(string, ...any)) {
	call := ""
	for _, p := range slices.Backward(path) {
		if c, ok := p.(*parser.Call); ok {
			call = c.Func.Name
			break
		}
	}
	counts := m.kind == "counter" || part != ""
	switch rated := slices.Contains(rates, call); {
	case rated && !counts:
		fault("%s is a %s: %s needs a counter", n.Name, m.kind, call)
	case !rated && counts:
		fault("%s is a counter: ask for its rate or increase", n.Name)
	}
	if strings.HasPrefix(call, "histogram_") && part != "_bucket" {
		fault("%s needs buckets, %s has none", call, n.Name)
	}
}

// labelsOf are all labels that a series below an expression may have.
func labelsOf(expr parser.Expr, known map[string]metric) map[string]bool {
	all := map[string]bool{}
	parser.Inspect(expr, func(node parser.Node, _ []parser.Node) error {
		n, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		m, part, err := find(known, n.Name)
		if err != nil {
			return nil
		}
		for l := range m.labels {
			all[l] = true
		}
		for l := range target {
			all[l] = true
		}
		if part == "_bucket" {
			all["le"] = true
		}
		return nil
	})
	return all
}
