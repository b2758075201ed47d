package page

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

// shownEndpoints is how many endpoints have a row. Where there are more, all have a cell in a grid, and the busiest, or
// those that are searched for, have rows.
const shownEndpoints = 24

// levels is how many shades a cell of the grid has, beside none.
const levels = 8

// scales are what full bars stand for.
type scales struct {
	tokens float64 // in flight
	cached float64 // tokens, or blocks where their size is not known
}

// leastScale is what a full bar stands for at least, in tokens: less than that is next to nothing.
const leastScale = 1000

func scalesOf(all []*schedulerv1.Endpoint) scales {
	var s scales
	for _, e := range all {
		s.tokens = max(s.tokens, float64(e.GetInFlight().GetTokens()))
		for _, c := range e.GetCaches() {
			s.cached = max(s.cached, cachedTokens(c))
		}
	}
	return scales{ceiling(max(s.tokens, leastScale)), ceiling(max(s.cached, leastScale))}
}

func cachedTokens(c *schedulerv1.CacheKnowledge) float64 {
	return float64(c.GetBlocks()) * float64(max(1, c.GetBlockSizeTokens()))
}

// endpointRow is an endpoint in the table.
type endpointRow struct {
	Name, Address       string // Address is empty where it is the name
	State, StateClass   string
	Asleep              bool
	Load, Requests      string
	LoadShare           int
	Waiting, Running    string
	KV                  string
	KVShare             int
	Metrics             string // why there are none, or that they are old
	Caches              []cacheCell
	Prefill, Wait, Even string
}

// cacheCell is what one index knows of an endpoint.
type cacheCell struct {
	Producer            string // empty where there is only one
	Held                string
	Share               int
	Events, EventsClass string
	Audit               string
	AuditKnown          bool
}

// note is what stands above the endpoints' table.
type note struct {
	Shown, All, Found int
	Search            string
	Tokens, Cached    string
	States            string
}

// renderEndpoints renders the table of the endpoints and the note above it.
func renderEndpoints(v *view, words string, before *view) ([]list, error) {
	shown, found := choose(v.endpoints, words)
	n := note{
		Shown: len(shown), All: len(v.endpoints), Found: found, Search: words,
		Tokens: number(v.scales.tokens), Cached: number(v.scales.cached), States: statesOf(v.endpoints),
	}
	pieces := make([]piece, 0, len(shown))
	for _, e := range shown {
		pieces = append(pieces, piece{"e" + strconv.Itoa(int(e.GetOrdinal())), rowOf(e, v.scales)})
	}
	into := v
	if words != "" {
		into = &view{}
	}
	above, err := into.render(listEndpointsNote, "note", []piece{{"note", n}}, before)
	if err != nil {
		return nil, err
	}
	rows, err := into.render(listEndpoints, "endpoint", pieces, before)
	if err != nil {
		return nil, err
	}
	return []list{above, rows}, nil
}

// choose picks the endpoints that have rows; found is how many the search finds.
func choose(all []*schedulerv1.Endpoint, words string) (shown []*schedulerv1.Endpoint, found int) {
	shown = all
	if words != "" {
		shown = nil
		for _, e := range all {
			if strings.Contains(strings.ToLower(e.GetName()+" "+e.GetAddress()), words) {
				shown = append(shown, e)
			}
		}
	}
	if found = len(shown); found <= shownEndpoints {
		return shown, found
	}
	shown = slices.Clone(shown)
	slices.SortStableFunc(shown, func(a, b *schedulerv1.Endpoint) int {
		return cmp.Or(
			cmp.Compare(b.GetInFlight().GetTokens(), a.GetInFlight().GetTokens()),
			cmp.Compare(b.GetInFlight().GetRequests(), a.GetInFlight().GetRequests()),
		)
	})
	return shown[:shownEndpoints], found
}

// statesOf counts endpoints by their states.
func statesOf(all []*schedulerv1.Endpoint) string {
	by := map[decisionv1.EndpointState]int{}
	asleep := 0
	for _, e := range all {
		by[e.GetState()]++
		if e.GetAsleep() {
			asleep++
		}
	}
	var parts []string
	for _, s := range []decisionv1.EndpointState{
		decisionv1.EndpointState_ENDPOINT_STATE_READY, decisionv1.EndpointState_ENDPOINT_STATE_NOT_READY,
		decisionv1.EndpointState_ENDPOINT_STATE_DRAINING,
	} {
		if by[s] > 0 {
			text, _ := endpointState(s)
			parts = append(parts, count(by[s])+" "+text)
		}
	}
	if asleep > 0 {
		parts = append(parts, count(asleep)+" asleep")
	}
	return strings.Join(parts, ", ")
}

func rowOf(e *schedulerv1.Endpoint, s scales) endpointRow {
	row := endpointRow{Name: short(e.GetName()), Address: short(e.GetAddress()), Asleep: e.GetAsleep(), Load: unknown}
	if row.Name == "" || row.Name == row.Address {
		row.Name, row.Address = row.Address, ""
	}
	row.State, row.StateClass = endpointState(e.GetState())
	if l := e.GetInFlight(); l != nil {
		row.Load, row.LoadShare = plural(l.GetTokens(), "token"), share(float64(l.GetTokens()), s.tokens)
		row.Requests = plural(l.GetRequests(), "request")
		if d := l.GetDecoding(); d > 0 {
			row.Requests += ", " + count(d) + " decoding"
		}
	}
	row.addMetrics(e)
	for _, c := range e.GetCaches() {
		cell := cacheCell{Held: plural(c.GetBlocks(), "block"), Share: share(cachedTokens(c), s.cached)}
		if len(e.GetCaches()) > 1 {
			cell.Producer = short(c.GetProducer())
		}
		cell.Events, cell.EventsClass = eventState(c.GetEvents())
		cell.Audit, cell.AuditKnown = audit(c.FalseHitRate, c.MissRate, c.GetAudited(), c.GetUnconfirmed())
		row.Caches = append(row.Caches, cell)
	}
	r := e.GetRates()
	row.Prefill, row.Wait, row.Even = learnt(r.GetPrefillTokensPerSecond(), r == nil || r.PrefillTokensPerSecond == nil, " tokens/s"),
		learnt(r.GetWaitMsPerToken(), r == nil || r.WaitMsPerToken == nil, " ms/token"),
		learnt(r.GetBreakEven(), r == nil || r.BreakEven == nil, "")
	return row
}

func (row *endpointRow) addMetrics(e *schedulerv1.Endpoint) {
	m := e.GetEngineMetrics()
	if m == nil {
		row.Metrics = unknown
		return
	}
	if e.GetMetricsStale() {
		row.Metrics = "read " + duration(m.GetAgeMs()) + " ago, too old to count"
		if row.State == "ready" && !row.Asleep { // picked all the same, by what Sluice sees itself
			row.State, row.StateClass = "stale", "warn"
		}
	}
	if m.Waiting != nil {
		row.Waiting = number(m.GetWaiting())
	}
	if m.Running != nil {
		row.Running = number(m.GetRunning())
	}
	if m.KvUsage != nil {
		row.KV, row.KVShare = percent(m.GetKvUsage()), share(m.GetKvUsage(), 1)
	}
}

// audit is how well an index has predicted.
func audit(falseHits, misses *float64, of, unconfirmed uint64) (text string, known bool) {
	if of == 0 && unconfirmed > 0 {
		return "no engine has told what was cached, in " + plural(unconfirmed, "answer"), false
	}
	if of == 0 || falseHits == nil && misses == nil {
		return unknown, false
	}
	var parts []string
	if falseHits != nil {
		parts = append(parts, percent(*falseHits)+" false hits")
	}
	if misses != nil {
		parts = append(parts, percent(*misses)+" misses")
	}
	return strings.Join(parts, ", ") + " of " + plural(of, "answer"), true
}

func learnt(v float64, absent bool, unit string) string {
	if absent || math.IsNaN(v) {
		return unknown
	}
	return number(v) + unit
}

// cell is an endpoint in the grid.
type cell struct {
	Address, State string
	Level          int
	Class          string
}

// cells are the cells of the grid; none where all endpoints have rows.
func (v *view) cells() []piece {
	if len(v.endpoints) <= shownEndpoints {
		return nil
	}
	pieces := make([]piece, 0, len(v.endpoints))
	for _, e := range v.endpoints {
		c := cell{Address: short(e.GetAddress())}
		c.State, c.Class = endpointState(e.GetState())
		if c.Level = (share(float64(e.GetInFlight().GetTokens()), v.scales.tokens)*levels + 99) / 100; c.Class == "good" {
			c.Class = ""
		}
		pieces = append(pieces, piece{"g" + strconv.Itoa(int(e.GetOrdinal())), c})
	}
	return pieces
}
