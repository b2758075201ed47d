package main

import (
	"errors"
	"fmt"
	"strings"
)

// metric is one that a process may serve.
type metric struct {
	kind   string // counter, gauge or histogram
	labels map[string]bool
}

// fewest is how many metrics the page must list at least: one that is cut short would let everything pass as unknown.
const fewest = 40

// readPage reads the rows "| `name` | type | `label`, `label` | meaning |".
func readPage(page []byte) (map[string]metric, error) {
	all := map[string]metric{}
	for line := range strings.SplitSeq(string(page), "\n") {
		if !strings.HasPrefix(line, "| `sluice_") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if len(cells) < 4 || strings.Contains(cells[0], "{") {
			continue // a row of another table
		}
		m := metric{kind: strings.TrimSpace(cells[1]), labels: map[string]bool{}}
		switch m.kind {
		case "counter", "gauge", "histogram":
		default:
			continue
		}
		for label := range strings.SplitSeq(cells[2], ",") {
			if label = strings.Trim(strings.TrimSpace(label), "`"); label != "" {
				m.labels[label] = true
			}
		}
		all[strings.Trim(cells[0], "`")] = m
	}
	if len(all) < fewest {
		return nil, fmt.Errorf("%d metrics are listed, fewer than %d", len(all), fewest)
	}
	return all, nil
}

// ofProcess are the metrics of Go's and the process's collectors that may be asked for.
var ofProcess = map[string]metric{
	"process_resident_memory_bytes": {kind: "gauge"},
	"process_cpu_seconds_total":     {kind: "counter"},
	"go_goroutines":                 {kind: "gauge"},
}

// target are the labels that Prometheus gives every series.
var target = map[string]bool{"instance": true, "job": true}

var errUnknownMetric = errors.New("no such metric")

// find is a metric by the name of one of its series; part is the suffix of a histogram's.
func find(known map[string]metric, series string) (m metric, part string, err error) {
	if m, ok := ofProcess[series]; ok {
		return m, "", nil
	}
	if m, ok := known[series]; ok {
		if m.kind == "histogram" {
			return m, "", fmt.Errorf("%s is a histogram: ask for its _bucket, _sum or _count", series)
		}
		return m, "", nil
	}
	for _, suffix := range []string{"_bucket", "_sum", "_count"} {
		if base, ok := strings.CutSuffix(series, suffix); ok && known[base].kind == "histogram" {
			return known[base], suffix, nil
		}
	}
	return m, "", fmt.Errorf("%w: %s", errUnknownMetric, series)
}
