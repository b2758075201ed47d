package observability

import (
	"bytes"
	"encoding/json"
	"strings"
)

// Row is a titled group of panels.
type Row struct {
	Title  string
	Panels []Panel
}

// Panel is one plot, or one number.
type Panel struct {
	// Title is what the plot shows; Description how to read it.
	Title, Description string
	// Kind is Plot or Number.
	Kind Kind
	// Unit is Grafana's name of the values' unit.
	Unit string
	// Queries are what is plotted.
	Queries []Query
	// Width is that of the panel, of 24; 0 means 8.
	Width int
}

// Kind is a panel's type as Grafana names it.
type Kind string

// The kinds of panels.
const (
	Plot   Kind = "timeseries"
	Number Kind = "stat"
)

// Query is one expression of a panel with the legend of its series. In Expr, $i stands for the matcher of the chosen
// instances and $r for the range of a rate.
type Query struct{ Expr, Legend string }

// promQL is the expression as Grafana takes it.
func (q Query) promQL() string {
	return strings.NewReplacer("$i", `instance=~"$instance"`, "$r", "[$__rate_interval]").Replace(q.Expr)
}

// The heights of panels in Grafana's units, and the width of the board.
const (
	boardWidth   = 24
	rowHeight    = 1
	plotHeight   = 8
	numberHeight = 4
	defaultWidth = 8
)

// source is the variable that chooses the Prometheus to ask.
func source() map[string]any { return map[string]any{"type": "prometheus", "uid": "${datasource}"} }

// dashboardJSON is the dashboard of Grafana with some rows.
func dashboardJSON(rows []Row) ([]byte, error) {
	var panels []any
	id, y := 0, 0
	next := func() int { id++; return id }
	for _, row := range rows {
		panels = append(panels, map[string]any{
			"id": next(), "type": "row", "title": row.Title, "collapsed": false, "panels": []any{},
			"gridPos": place(0, y, boardWidth, rowHeight),
		})
		y += rowHeight
		x, tallest := 0, 0
		for _, p := range row.Panels {
			width, height := p.Width, plotHeight
			if width == 0 {
				width = defaultWidth
			}
			if p.Kind == Number {
				height = numberHeight
			}
			if x+width > boardWidth {
				x, y, tallest = 0, y+tallest, 0
			}
			panels = append(panels, p.model(next(), place(x, y, width, height)))
			x, tallest = x+width, max(tallest, height)
		}
		y += tallest
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(map[string]any{
		"uid": "sluice", "title": "Sluice", "description": generated, "tags": []string{"sluice", "inference"},
		"schemaVersion": 39, "version": 1, "editable": true, "graphTooltip": 1, "timezone": "", "refresh": "30s",
		"time": map[string]any{"from": "now-1h", "to": "now"}, "annotations": map[string]any{"list": []any{}},
		"templating": map[string]any{"list": variables()}, "panels": panels, "links": []any{},
	})
	return b.Bytes(), err
}

func place(x, y, w, h int) map[string]any { return map[string]any{"x": x, "y": y, "w": w, "h": h} }

func variables() []any {
	const instances = "label_values(sluice_build_info, instance)"
	all := map[string]any{"selected": true, "text": "All", "value": "$__all"}
	return []any{
		map[string]any{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "refresh": 1},
		map[string]any{
			"name": "instance", "label": "Instance", "type": "query", "datasource": source(), "refresh": 2,
			"definition": instances, "query": map[string]any{"query": instances, "refId": "instance"},
			"multi": true, "includeAll": true, "allValue": ".*", "current": all, "sort": 1,
		},
	}
}

func (p Panel) model(id int, at map[string]any) map[string]any {
	var targets []any
	for i, q := range p.Queries {
		targets = append(targets, map[string]any{
			"refId": string(rune('A' + i)), "datasource": source(), "expr": q.promQL(), "legendFormat": q.Legend, "range": true,
		})
	}
	kind := p.Kind
	if kind == "" {
		kind = Plot
	}
	return map[string]any{
		"id": id, "type": string(kind), "title": p.Title, "description": p.Description, "gridPos": at, "datasource": source(),
		"targets": targets, "options": options(kind),
		"fieldConfig": map[string]any{"defaults": map[string]any{"unit": p.Unit, "min": 0}, "overrides": []any{}},
	}
}

func options(kind Kind) map[string]any {
	if kind == Number {
		return map[string]any{
			"colorMode": "value", "graphMode": "area", "textMode": "auto",
			"reduceOptions": map[string]any{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
		}
	}
	return map[string]any{
		"legend":  map[string]any{"displayMode": "list", "placement": "bottom", "showLegend": true},
		"tooltip": map[string]any{"mode": "multi", "sort": "desc"},
	}
}
