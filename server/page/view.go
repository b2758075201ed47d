package page

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/decisions"
)

// The lists of the page, by the ids of their elements.
const (
	listStatus        = "status"
	listEndpoints     = "endpoints"
	listEndpointsNote = "endpoints-note"
	listGrid          = "grid"
	listDecisions     = "decisions"
	listDecisionsNote = "decisions-note"
	listGates         = "gates"
	listIndices       = "indices"
)

// view is what was seen at one time, and what it looked like.
type view struct {
	endpoints []*schedulerv1.Endpoint
	scales    scales
	decisions map[uint64]decisionRow
	made      map[string]rendered // by list and key
}

// rendered is a fragment and what it was made of.
type rendered struct {
	of   any
	html string
}

// piece is what a fragment is made of.
type piece struct {
	key  string
	data any
}

// render makes a list of fragments with a template. Those whose data are as they were are not made again.
func (v *view) render(name, layout string, pieces []piece, before *view) (list, error) {
	l := list{name: name, items: make([]fragment, 0, len(pieces))}
	var b strings.Builder
	for _, p := range pieces {
		place := name + "/" + p.key
		if before != nil {
			if old, ok := before.made[place]; ok && reflect.DeepEqual(old.of, p.data) {
				v.keep(place, old)
				l.items = append(l.items, fragment{p.key, old.html})
				continue
			}
		}
		b.Reset()
		if err := templates.ExecuteTemplate(&b, layout, keyed{p.key, p.data}); err != nil {
			return l, fmt.Errorf("rendering %s: %w", place, err)
		}
		html := strings.TrimSpace(b.String())
		v.keep(place, rendered{p.data, html})
		l.items = append(l.items, fragment{p.key, html})
	}
	return l, nil
}

// keep remembers a fragment, unless v is only read.
func (v *view) keep(place string, r rendered) {
	if v.made != nil {
		v.made[place] = r
	}
}

// keyed is what a template of a fragment gets.
type keyed struct {
	Key  string
	Data any
}

// window is the time over which requests a second are counted.
const window = 10 * time.Second

// fewDecisions are kept in any case, so that older ones have never gone while there are not as many.
const fewDecisions = 16

// look makes a state.
func (p *Page) look(before *state) *state {
	s := &state{at: time.Now(), view: &view{made: make(map[string]rendered), decisions: make(map[uint64]decisionRow)}}
	var old *view
	if before != nil {
		old = before.view
	}
	ctx := context.Background()
	known, err1 := p.config.Knowledge.ListEndpoints(ctx, &schedulerv1.ListEndpointsRequest{})
	indices, err2 := p.config.Knowledge.GetIndexStats(ctx, &schedulerv1.GetIndexStatsRequest{})
	config, err3 := p.config.Knowledge.GetConfig(ctx, &schedulerv1.GetConfigRequest{})
	s.view.endpoints = known.GetEndpoints()
	s.view.scales = scalesOf(s.view.endpoints)
	process := p.config.Process()
	recent := p.recent(s.at, process.Uptime, before)

	failed := ""
	add := func(l list, err error) {
		if err != nil {
			failed = err.Error()
			return
		}
		s.lists = append(s.lists, l)
	}
	for _, err := range []error{err1, err2, err3} {
		if err != nil {
			failed = err.Error()
		}
	}
	lists, err := renderEndpoints(s.view, "", old)
	s.lists = append(s.lists, lists...)
	if err != nil {
		failed = err.Error()
	}
	add(s.view.render(listGrid, "cell", s.view.cells(), old))
	add(p.renderDecisions(s.view, recent, old))
	add(s.view.render(listDecisionsNote, "decisions-note", []piece{{"decisions-note", recent.words()}}, old))
	add(s.view.render(listGates, "plot", plots(recent.gates, s.view.endpoints), old))
	add(s.view.render(listIndices, "index", indexRows(indices.GetIndices()), old))
	add(s.view.render(listStatus, "status", []piece{{listStatus, statusOf(process, config, recent, failed)}}, old))
	return s
}

// head is the head of the page.
type head struct {
	State, Class    string
	Version, Config string
	File, Since     string
	Uptime, Streams string
	Rate            string
	Failed          string
}

func statusOf(p Process, c *schedulerv1.GetConfigResponse, r recent, failed string) head {
	s := head{
		State: p.State, Class: "warn", Version: visible(c.GetVersion()), Config: c.GetHash(), File: visible(c.GetFile()),
		Since: c.GetSince().AsTime().UTC().Format("2006-01-02 15:04:05 MST"), Uptime: uptime(p.Uptime),
		Streams: count(p.OpenStreams), Rate: number(r.rate), Failed: failed,
	}
	if p.State == "ready" {
		s.Class = "good"
	}
	if s.Version == "" {
		s.Version = "unversioned"
	}
	if s.File == "" {
		s.File = "built in"
	}
	return s
}

// recent is what the newest decisions say without their records.
type recent struct {
	shown []decisions.Brief // without gates
	left  int               // how many newer ones than the last of these are not shown
	rate  float64           // decisions a second
	gates gates
}

// recent walks through the newest decisions.
func (p *Page) recent(now time.Time, up time.Duration, before *state) recent {
	var r recent
	var known map[uint64]decisionRow
	fresh := shownDecisions
	if before != nil {
		known = before.view.decisions
		if periods := int(now.Sub(before.at) / period); len(known) >= shownDecisions-freshDecisions && periods <= shownDecisions/freshDecisions {
			fresh = freshDecisions * max(1, periods)
		}
	}
	looked, within, lowest := 0, 0, uint64(0)
	var oldest time.Duration
	p.config.Decisions.Newest(func(b decisions.Brief) bool {
		if len(r.shown) < shownDecisions {
			_, old := known[b.ID]
			if old || fresh > 0 {
				r.shown = append(r.shown, b)
				r.shown[len(r.shown)-1].Gates = nil
			} else {
				r.left++
			}
			if !old {
				fresh--
			}
		}
		if looked < measuredDecisions {
			r.gates.add(b.Gates)
		}
		looked++
		lowest = b.ID
		age := now.Sub(b.At)
		if age <= window {
			within, oldest = within+1, max(oldest, age)
		}
		return age <= window || looked < measuredDecisions
	})
	span := min(window, max(up, time.Second))
	if looked == within && within >= fewDecisions && lowest > uint64(looked) { // older ones of the window are not kept any more
		span = max(oldest, time.Millisecond)
	}
	// Ids are given out when streams begin, which is not the order in which they are decided.
	slices.SortStableFunc(r.shown, func(a, b decisions.Brief) int { return b.At.Compare(a.At) })
	r.rate = float64(within) / span.Seconds()
	if r.rate >= 10 {
		r.rate = float64(int(r.rate + 0.5))
	}
	return r
}
