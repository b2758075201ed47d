package scheduling

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// sort orders the instances so that each comes after the producers that it consumes; otherwise they keep their order.
func (g *graph) sort() []*instance {
	const (
		visiting = 1
		done     = 2
	)
	state := make(map[*instance]int)
	var order, path []*instance
	var visit func(in *instance)
	visit = func(in *instance) {
		switch state[in] {
		case done:
			return
		case visiting:
			start := slices.Index(path, in)
			g.errs.addf("plugins depend on one another in a cycle: %s", strings.Join(names(append(path[start:], in)), " → "))
			return
		}
		state[in] = visiting
		path = append(path, in)
		for _, producer := range g.edges[in] {
			visit(producer)
		}
		path = path[:len(path)-1]
		state[in] = done
		order = append(order, in)
	}
	for _, in := range g.instances {
		visit(in)
	}
	return order
}

func names(in []*instance) []string {
	out := make([]string, len(in))
	for i := range in {
		out[i] = in[i].spec.Name
	}
	return out
}

// assemble fills the scheduler in from resolved and sorted instances.
func (g *graph) assemble(cfg Config, refs, order []*instance) {
	s := g.scheduler
	s.plugins = order
	for _, in := range order {
		g.indexOwn(in)
		s.attach(in)
	}
	s.profile.name = cfg.ProfileName
	for i, in := range refs {
		s.profile.attach(in, cfg.Profile[i].Weight)
	}
}

// indexOwn gives columns that nobody consumes, and per-flight state, their places.
func (g *graph) indexOwn(in *instance) {
	for _, out := range in.builder.produces {
		if out.index < 0 {
			g.link(out, out)
		}
	}
	for _, st := range in.builder.states {
		st.index = len(g.scheduler.states)
		g.scheduler.states = append(g.scheduler.states, st)
	}
}

func (s *Scheduler) attach(in *instance) {
	if p, ok := in.plugin.(Producer); ok {
		s.producers = append(s.producers, namedProducer{name: in.spec.Name, Producer: p})
	}
	if p, ok := in.plugin.(Filler); ok {
		s.fillers = append(s.fillers, p)
	}
	if p, ok := in.plugin.(Charger); ok {
		s.chargers = append(s.chargers, p)
	}
	if p, ok := in.plugin.(Follower); ok {
		s.followers = append(s.followers, p)
	}
	if p, ok := in.plugin.(ChunkFollower); ok {
		s.chunkers = append(s.chunkers, p)
	}
	if p, ok := in.plugin.(Mover); ok {
		s.movers = append(s.movers, p)
	}
	if p, ok := in.plugin.(Answerer); ok {
		s.answerers = append(s.answerers, p)
	}
	if p, ok := in.plugin.(Watcher); ok {
		s.watchers = append(s.watchers, p)
	}
}

func (p *profile) attach(in *instance, weight float64) {
	if f, ok := in.plugin.(Filter); ok {
		_, preference := f.(Preference)
		p.filters = append(p.filters, namedFilter{name: in.spec.Name, Filter: f, preference: preference})
	}
	if sc, ok := in.plugin.(Scorer); ok {
		p.scorers = append(p.scorers, namedScorer{name: in.spec.Name, weight: weight, Scorer: sc})
	}
	if pk, ok := in.plugin.(Picker); ok {
		p.picker = pk
	}
}

// Describe lists the plugins in the order in which they run, each with what it produces and whom it consumes from, one
// a line.
func (s *Scheduler) Describe() []string {
	var lines []string
	for _, in := range s.profile.ordered(s.plugins) {
		line := fmt.Sprintf("%s (%s)", in.spec.Name, in.spec.Type)
		if out := in.builder.produces; len(out) > 0 {
			var data []string
			for _, o := range out {
				data = append(data, o.data)
			}
			line += " → " + strings.Join(data, ", ")
		}
		for _, c := range in.builder.consumes {
			from := c.slot.producer
			if from == "" {
				from = "nobody"
			}
			line += fmt.Sprintf("; %s ← %s", c.slot.data, from)
		}
		lines = append(lines, line)
	}
	return lines
}

// ordered puts the filters, the scorers and the picker, in their order, behind the plugins that know; the graph's order says
// only who needs whom.
func (p *profile) ordered(plugins []*instance) []*instance {
	turn := func(in *instance) int {
		name := in.spec.Name
		if i := slices.IndexFunc(p.filters, func(f namedFilter) bool { return f.name == name }); i >= 0 {
			return 1 + i
		}
		if i := slices.IndexFunc(p.scorers, func(sc namedScorer) bool { return sc.name == name }); i >= 0 {
			return 1 + len(p.filters) + i
		}
		if _, ok := in.plugin.(Picker); ok {
			return 1 + len(p.filters) + len(p.scorers)
		}
		return 0
	}
	return slices.SortedStableFunc(slices.Values(plugins), func(a, b *instance) int { return cmp.Compare(turn(a), turn(b)) })
}
