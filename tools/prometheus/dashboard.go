package main

import (
	"encoding/json"
	"fmt"
	"strings"
)

// dashboard is what is looked at of Grafana's model.
type dashboard struct {
	UID           string  `json:"uid"`
	Title         string  `json:"title"`
	SchemaVersion int     `json:"schemaVersion"`
	Panels        []panel `json:"panels"`
	Templating    struct {
		List []struct {
			Name, Type string
		} `json:"list"`
	} `json:"templating"`
}

type panel struct {
	ID         int         `json:"id"`
	Type       string      `json:"type"`
	Title      string      `json:"title"`
	GridPos    grid        `json:"gridPos"`
	Datasource *datasource `json:"datasource"`
	Targets    []struct {
		RefID      string      `json:"refId"`
		Expr       string      `json:"expr"`
		Datasource *datasource `json:"datasource"`
	} `json:"targets"`
}

type datasource struct {
	Type, UID string
}

type grid struct{ X, Y, W, H int }

func (a grid) overlaps(b grid) bool {
	return a.X < b.X+b.W && b.X < a.X+a.W && a.Y < b.Y+b.H && b.Y < a.Y+a.H
}

const boardWidth = 24

// variables are what an expression may use of Grafana, with what stands for it when it is read as PromQL.
var variables = strings.NewReplacer("$__rate_interval", "5m", "$instance", ".*")

// checkDashboard checks a dashboard and every expression in it, and returns the number of its panels.
func checkDashboard(content []byte, known map[string]metric) (panels int, faults []error) {
	var d dashboard
	if err := json.Unmarshal(content, &d); err != nil {
		return 0, []error{err}
	}
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	if d.UID == "" || d.Title == "" || d.SchemaVersion < 30 {
		fault("uid %q, title %q, schemaVersion %d: must all be given, the last at least 30", d.UID, d.Title, d.SchemaVersion)
	}
	chosen := false
	for _, v := range d.Templating.List {
		chosen = chosen || v.Name == "datasource" && v.Type == "datasource"
	}
	if !chosen {
		fault("no variable chooses the data source")
	}
	ids := map[int]string{}
	for i, p := range d.Panels {
		if other, taken := ids[p.ID]; taken || p.ID <= 0 {
			fault("panel %q: its id %d must be positive, and is that of %q", p.Title, p.ID, other)
		}
		ids[p.ID] = p.Title
		if g := p.GridPos; g.X < 0 || g.Y < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > boardWidth {
			fault("panel %q: out of the board: %+v", p.Title, g)
		}
		for _, other := range d.Panels[:i] {
			if p.GridPos.overlaps(other.GridPos) {
				fault("panels %q and %q overlap", other.Title, p.Title)
			}
		}
		for _, err := range checkPanel(p, known) {
			fault("panel %q: %w", p.Title, err)
		}
	}
	if len(d.Panels) == 0 {
		fault("no panels")
	}
	return len(d.Panels), faults
}

func checkPanel(p panel, known map[string]metric) (faults []error) {
	if p.Title == "" {
		faults = append(faults, fmt.Errorf("no title"))
	}
	if p.Type == "row" {
		return faults
	}
	ofVariable := func(d *datasource) bool { return d != nil && d.Type == "prometheus" && d.UID == "${datasource}" }
	if len(p.Targets) == 0 || !ofVariable(p.Datasource) {
		faults = append(faults, fmt.Errorf("it must have targets, and the chosen data source"))
	}
	refs := map[string]bool{}
	for _, t := range p.Targets {
		if refs[t.RefID] || t.RefID == "" || !ofVariable(t.Datasource) {
			faults = append(faults, fmt.Errorf("target %q: its refId must be its own, and its data source the chosen one", t.RefID))
		}
		refs[t.RefID] = true
		if !strings.Contains(t.Expr, `instance=~"$instance"`) {
			faults = append(faults, fmt.Errorf("target %q: it does not keep to the chosen instances", t.RefID))
		}
		faults = append(faults, checkExpr(variables.Replace(t.Expr), known)...)
	}
	return faults
}
