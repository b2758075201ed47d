package top

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// look is how a view is shown.
type look struct {
	address       string
	order         Order
	width, height int
	ascii         bool
	styles        display.Styles
	paused        bool
}

// The smallest screen on which something can be shown.
const (
	leastWidth  = 30
	leastHeight = 8
)

// leastDecisions is how many lines the decisions get at least, where there is room for them at all.
const leastDecisions = 6

// frame is a screen of at most height lines, none of them longer than width.
func (l *look) frame(v *view) []string {
	if l.width < leastWidth || l.height < leastHeight {
		return []string{display.ClipEnd("sluice top: the terminal is too small", max(0, l.width))}[:min(1, max(0, l.height))]
	}
	lines := append(l.head(v), "")
	foot := l.foot(v)
	room := l.height - len(lines) - 1 // for the foot
	want := len(v.endpoints) + 1
	forDecisions := min(max(min(leastDecisions, len(v.decisions)+1), room-want-1), room-3)
	if forDecisions < min(3, len(v.decisions)+1) { // a heading and two of them
		forDecisions = -1
	}
	most := room - forDecisions - 2 // an empty line, and the heading
	if most < len(v.endpoints) {
		most-- // how many are hidden
	}
	lines = append(lines, l.endpoints(v, most)...)
	if forDecisions > 0 {
		lines = append(append(lines, ""), l.decisions(v, newest(v.decisions, forDecisions-1))...)
	}
	for len(lines) < l.height-1 {
		lines = append(lines, "")
	}
	return append(lines[:l.height-1], foot)
}

// block is a view in plain text: so many endpoints at most, 0 for all, and the decisions that are given.
func (l *look) block(v *view, endpoints int, decisions []shown, more int) []string {
	lines := l.head(v)
	if endpoints == 0 {
		endpoints = len(v.endpoints)
	}
	lines = append(lines, l.endpoints(v, endpoints)...)
	if more > 0 {
		lines = append(lines, l.line(display.Faint, fmt.Sprintf("%s older decisions left out", display.Count(float64(more)))))
	}
	lines = append(lines, l.decisions(v, decisions)...)
	return append(lines, "")
}

func (l *look) table(v *view) *table {
	return &table{now: v.now, cells: l.width, ascii: l.ascii, styles: l.styles}
}

// line is one of plain text, as far as there is room.
func (l *look) line(style display.Style, s string) string {
	return l.styles.In(style, display.ClipEnd(display.Plain(s), l.width))
}

// head says whose view it is, and what all endpoints together do.
func (l *look) head(v *view) []string {
	title := fmt.Sprintf("sluice top  %s  %s  %s", l.address, v.now.Format(time.TimeOnly), census(v))
	if l.paused {
		title += "  PAUSED"
	}
	style := display.Bold
	switch v.process {
	case schedulerv1.ProcessState_PROCESS_STATE_STARTING:
		title, style = title+"  NOT READY YET", display.Yellow
	case schedulerv1.ProcessState_PROCESS_STATE_DRAINING:
		title, style = title+"  DRAINING", display.Yellow
	case schedulerv1.ProcessState_PROCESS_STATE_READY, schedulerv1.ProcessState_PROCESS_STATE_UNSPECIFIED:
	}
	lines := []string{l.line(style, title)}
	if v.fault != "" {
		since := "yet"
		if !v.heard.IsZero() {
			since = "since " + v.heard.Format(time.TimeOnly) + " (" + display.Since(v.now.Sub(v.heard)) + ")"
		}
		lines = append(lines, l.line(display.Red, "NO ANSWER "+since+", trying again"), l.line(display.Red, v.fault))
	}
	lines = append(lines, l.line("", totals(v)))
	for _, i := range v.indices[:min(len(v.indices), mostIndices)] {
		lines = append(lines, l.line("", index(i)))
	}
	return lines
}

// mostIndices is how many indices get a line. A configuration has one, seldom two.
const mostIndices = 3

// census counts the endpoints.
func census(v *view) string {
	states := map[decisionv1.EndpointState]int{}
	for _, e := range v.endpoints {
		states[e.GetState()]++
	}
	s := display.Things(float64(len(v.endpoints)), "endpoint")
	if n := states[decisionv1.EndpointState_ENDPOINT_STATE_NOT_READY]; n > 0 {
		s += fmt.Sprintf(", %d not ready", n)
	}
	if n := states[decisionv1.EndpointState_ENDPOINT_STATE_DRAINING]; n > 0 {
		s += fmt.Sprintf(", %d draining", n)
	}
	return s
}

// totals are what all endpoints together do, and of how many the rates have been learnt.
func totals(v *view) string {
	var requests, tokens int64
	ledger, learnt, breakEven := false, 0, ""
	for _, e := range v.endpoints {
		ledger = ledger || e.InFlight != nil
		requests += e.GetInFlight().GetRequests()
		tokens += e.GetInFlight().GetTokens()
		if e.Rates != nil {
			learnt++
		}
		if e.GetRates() != nil && e.GetRates().BreakEven != nil { // it is the pool's, and all endpoints' alike
			breakEven = ", break-even " + display.Score(e.GetRates().GetBreakEven())
		}
	}
	s := ""
	if ledger {
		s = fmt.Sprintf("in flight %s, %s | ", display.Things(float64(requests), "req"), display.Things(float64(tokens), "token"))
	}
	s += perSecond(v.rate) + " picks/s | "
	if !math.IsNaN(v.hit) {
		s += "hit " + display.Percent(v.hit) + " | "
	}
	if learnt == 0 {
		return s + "rates not yet known"
	}
	return s + fmt.Sprintf("rates known of %d%s", learnt, breakEven)
}

// index is what a prefix index holds and how well it predicts.
func index(i *schedulerv1.IndexStats) string {
	s := fmt.Sprintf("%s: %s", i.GetProducer(), display.Things(float64(i.GetHolderEntries()), "block"))
	if i.FalseHitRate != nil || i.MissRate != nil {
		s += fmt.Sprintf(", false hits %s, misses %s", optional(i.FalseHitRate), optional(i.MissRate))
	}
	if len(i.GetSources()) > 0 {
		s += ", events"
	}
	for _, state := range slices.Sorted(maps.Keys(i.GetSources())) {
		s += fmt.Sprintf(" %d %s", i.GetSources()[state], state)
	}
	if i.GetBytes() > 0 {
		s += ", " + display.Count(float64(i.GetBytes())) + "B"
	}
	if i.GetEvicted() > 0 {
		s += ", " + display.Count(float64(i.GetEvicted())) + " evicted"
	}
	return s
}

func optional(share *float64) string {
	if share == nil {
		return display.Unknown
	}
	return display.Percent(*share)
}

// endpoints are the first of them, so many at most, and how many are hidden.
func (l *look) endpoints(v *view, most int) []string {
	all := sorted(v.endpoints, l.order)
	most = min(len(all), max(0, most))
	lines := lay(l.table(v), endpointColumns, all[:most], endpoint.style)
	if hidden := len(all) - most; hidden > 0 {
		lines = append(lines, l.line(display.Faint, fmt.Sprintf("  %d more hidden, behind these by %s", hidden, l.order)))
	}
	return lines
}

// decisions are written under their heading.
func (l *look) decisions(v *view, all []shown) []string {
	if len(all) == 0 {
		none := "no decision yet"
		if v.seen > 0 {
			none = "no decision since"
		}
		return []string{l.line(display.Faint, none)}
	}
	return lay(l.table(v), decisionColumns, all, func(s shown) display.Style {
		if len(s.explanation.GetDecision().GetPicks()) == 0 {
			return display.Red
		}
		return ""
	})
}

// newest are the last n, the newest first.
func newest(all []shown, n int) []shown {
	last := slices.Clone(all[max(0, len(all)-n):])
	slices.Reverse(last)
	return last
}

// foot says what keys do.
func (l *look) foot(v *view) string {
	pause := "pause"
	if l.paused {
		pause = "go on"
	}
	return l.line(display.Faint, fmt.Sprintf("q quit  s sort: %s  p %s | %s", l.order, pause, counted(v)))
}
