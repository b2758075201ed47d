package scheduling_test

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"

	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// TestDecide runs the scripts in testdata. After a change of what is meant to happen run
//
//	go test ./scheduling -run TestDecide -rewrite
//
// and read the difference. The grammar:
//
//	profile [max-picks=N]       one line a plugin: NAME [TYPE] [weight=W] [{parameters}]; a line that starts with "-"
//	                            declares a plugin without putting it into the profile; prints the graph, or what is wrong
//	endpoints                   one line an endpoint: NAME [key=value …] as for set; replaces all
//	set NAME [key=value …]      changes one endpoint: state, match=MATCHED/TOTAL[xBLOCKSIZE], cached, load=REQUESTS,TOKENS,
//	                            DECODING, uncached, waiting, kv; "key=?" makes it unknown; any other key is a label
//	prompt tokens=N             what the tokenizer says; without it the length is unknown
//	decide id=N [bytes=N] [subset=(a,b)]    previews one request and prints all of it
//	spread requests=N           previews requests 1 to N and counts their first picks
//	commit as=F id=N            decides, charges, prints the picks; done F ends it
//	commit requests=N           commits requests 1 to N at once and counts their first picks
func TestDecide(t *testing.T) {
	datadriven.Walk(t, "testdata/decide", func(t *testing.T, path string) {
		script := &script{flights: map[string]*scheduling.Flight{}, pool: scheduling.NewPool()}
		datadriven.RunTest(t, path, script.run)
	})
}

// script is the state of one file.
type script struct {
	table     schedtest.Table
	names     []string // of the table's endpoints
	lives     int      // how often all endpoints were replaced: none of them is the same instance afterwards
	pool      *scheduling.Pool
	scheduler *scheduling.Scheduler
	flights   map[string]*scheduling.Flight
}

func (s *script) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "profile":
		return s.profile(t, d)
	case "endpoints":
		s.table.Endpoints, s.names = nil, nil
		s.lives++
		for line := range strings.Lines(d.Input) {
			name, values, _ := strings.Cut(strings.TrimSpace(line), " ")
			s.names = append(s.names, name)
			s.table.Endpoints = append(s.table.Endpoints, schedtest.Endpoint{})
			s.set(t, d, len(s.names)-1, strings.Fields(values))
		}
		s.update()
		return ""
	case "set":
		var values []string
		for _, arg := range d.CmdArgs[1:] {
			values = append(values, arg.Key+"="+strings.Join(arg.Vals, ","))
		}
		s.set(t, d, s.ordinal(t, d, d.CmdArgs[0].Key), values)
		s.update()
		return ""
	case "prompt":
		var n int
		d.ScanArgs(t, "tokens", &n)
		s.table.Prompt = &scheduling.TokenizedPrompt{Count: n, Exact: true, BytesPerToken: 4}
		return ""
	case "decide":
		return s.decide(t, d)
	case "spread":
		return s.spread(t, d)
	case "commit":
		return s.commit(t, d)
	case "done":
		f := s.flights[d.CmdArgs[0].Key]
		if f == nil {
			d.Fatalf(t, "no flight %s", d.CmdArgs[0].Key)
		}
		f.Done(scheduling.Outcome{}, 0)
		delete(s.flights, d.CmdArgs[0].Key)
		return ""
	}
	d.Fatalf(t, "unknown command %q", d.Cmd)
	return ""
}

// update gives the pool the table's endpoints: the instances there are, with what set changed of them, or new ones in
// the order of the list.
func (s *script) update() {
	specs := make([]scheduling.EndpointSpec, len(s.names))
	for i, name := range s.names {
		specs[i] = s.table.Endpoints[i].EndpointSpec
		specs[i].Address, specs[i].UID = name, fmt.Sprint(s.lives)
	}
	snapshot := s.pool.Update(specs)
	if s.scheduler != nil {
		s.scheduler.SnapshotChanged(snapshot)
	}
}

func (s *script) ordinal(t *testing.T, d *datadriven.TestData, name string) int {
	t.Helper()
	i := slices.Index(s.names, name)
	if i < 0 {
		d.Fatalf(t, "no endpoint %q", name)
	}
	return i
}

func (s *script) profile(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	cfg := scheduling.Config{ProfileName: "golden", MaxPicks: 1}
	d.MaybeScanArgs(t, "max-picks", &cfg.MaxPicks)
	for line := range strings.Lines(d.Input) {
		line = strings.TrimSpace(line)
		declared := strings.HasPrefix(line, "-")
		head, parameters, found := strings.Cut(strings.TrimPrefix(line, "-"), "{")
		if found {
			parameters = "{" + parameters
		}
		words := strings.Fields(head)
		spec := scheduling.Spec{Name: words[0], Type: words[0], Decode: schedtest.YAML(parameters)}
		ref := scheduling.Ref{Name: words[0], Weight: 1, Path: words[0]}
		for _, word := range words[1:] {
			if weight, ok := strings.CutPrefix(word, "weight="); ok {
				scan(t, d, weight, "%g", &ref.Weight)
			} else {
				spec.Type = word
			}
		}
		cfg.Plugins = append(cfg.Plugins, spec)
		if !declared {
			cfg.Profile = append(cfg.Profile, ref)
		}
	}
	types := slices.Concat(s.table.Types(), scorer.Types(), picker.Types(), filter.Types(),
		[]scheduling.PluginType{gate.Type(), ledger.Type()})
	built, err := scheduling.Build(types, cfg, nil)
	if err != nil {
		return err.Error()
	}
	t.Cleanup(func() { _ = built.Close() })
	s.scheduler = built
	built.SnapshotChanged(s.pool.Snapshot())
	return strings.Join(built.Describe(), "\n")
}

func scan(t *testing.T, d *datadriven.TestData, from, format string, into ...any) {
	t.Helper()
	if _, err := fmt.Sscanf(from, format, into...); err != nil {
		d.Fatalf(t, "%q is not %s: %v", from, format, err)
	}
}

// set changes what is known of one endpoint.
func (s *script) set(t *testing.T, d *datadriven.TestData, i int, values []string) {
	t.Helper()
	e := &s.table.Endpoints[i]
	for _, pair := range values {
		key, value, _ := strings.Cut(pair, "=")
		known := value != "?"
		switch key {
		case "match":
			e.Match = matchOf(t, d, value)
		case "cached":
			scan(t, d, value, "%d", &e.Match.CachedBlockCount)
		case "load":
			e.Load = nil
			if known {
				e.Load = &scheduling.InFlightLoad{}
				scan(t, d, value, "%d,%d,%d", &e.Load.Requests, &e.Load.Tokens, &e.Load.Decoding)
			}
		case "uncached":
			e.Uncached = nil
			if known {
				e.Uncached = new(scheduling.UncachedRequestTokens)
				scan(t, d, value, "%d", e.Uncached)
			}
		case "waiting":
			setMetric(t, d, e, scheduling.MetricsWaiting, value)
		case "kv":
			setMetric(t, d, e, scheduling.MetricsKVUsage, value)
		case "state":
			states := []string{"ready", "not_ready", "draining"}
			if !slices.Contains(states, value) {
				d.Fatalf(t, "unknown state %q", value)
			}
			e.State = scheduling.EndpointState(slices.Index(states, value))
		default:
			labels := map[string]string{key: value}
			for k, v := range e.Labels {
				if k != key {
					labels[k] = v
				}
			}
			e.Labels = labels
		}
	}
}

func matchOf(t *testing.T, d *datadriven.TestData, value string) *scheduling.PrefixCacheMatchInfo {
	t.Helper()
	if value == "?" {
		return nil
	}
	matched, total, size := 0, 0, 16
	blocks, blockSize, found := strings.Cut(value, "x")
	scan(t, d, blocks, "%d/%d", &matched, &total)
	if found {
		scan(t, d, blockSize, "%d", &size)
	}
	info := scheduling.NewPrefixCacheMatchInfo(matched, total, size)
	return &info
}

func setMetric(t *testing.T, d *datadriven.TestData, e *schedtest.Endpoint, field scheduling.MetricsField, value string) {
	t.Helper()
	if e.Metrics == nil {
		e.Metrics = &scheduling.EngineMetrics{}
	}
	into := &e.Metrics.Waiting
	if field == scheduling.MetricsKVUsage {
		into = &e.Metrics.KVUsage
	}
	if value == "?" {
		e.Metrics.Known &^= field
		return
	}
	scan(t, d, value, "%g", into)
	e.Metrics.Known |= field
}

// begin starts a cycle as the command's arguments say.
func (s *script) begin(t *testing.T, d *datadriven.TestData, id uint64) *scheduling.Cycle {
	t.Helper()
	r := &scheduling.Request{ID: id, Choices: 1}
	d.MaybeScanArgs(t, "bytes", &r.PromptBytes)
	c := s.scheduler.Begin(s.pool.Snapshot(), r, 0)
	if arg, ok := d.Arg("subset"); ok {
		allowed := scheduling.NewSet(len(s.names))
		for _, name := range arg.Vals {
			allowed.Add(s.ordinal(t, d, name))
		}
		c.Restrict(allowed)
	}
	s.scheduler.Produce(t.Context(), c)
	return c
}

func (s *script) decide(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var id uint64
	d.ScanArgs(t, "id", &id)
	c := s.begin(t, d, id)
	defer s.scheduler.End(c)
	s.scheduler.Preview(c)
	return s.print(c)
}

// print writes a whole decision: what was considered, what each filter left, every score, the picks.
func (s *script) print(c *scheduling.Cycle) string {
	var b strings.Builder
	fmt.Fprintf(&b, "considered: %s\n", s.list(slices.Collect(c.Considered.All())))
	for _, step := range c.Steps {
		fmt.Fprintf(&b, "%s leaves: %s\n", step.Filter, s.list(slices.Collect(step.Left.All())))
	}
	for _, g := range c.Gates {
		fmt.Fprintf(&b, "%s: %v; gap %s of %s ms, %s of %s tokens; sticky %s, other %s\n", g.Filter, g.Verdict,
			figure(g.GapMs), figure(g.BarMs), figure(g.GapTokens), figure(g.BarTokens), s.list([]int{g.Sticky}), s.list([]int{g.Other}))
	}
	for _, f := range c.Faults {
		fmt.Fprintf(&b, "fault: %s: %v\n", f.Producer, f.Err)
	}
	for e := range c.Considered.All() {
		if !c.Candidates.Has(e) && !slices.Contains(c.Picks, e) {
			continue
		}
		fmt.Fprintf(&b, "%s:", s.names[e])
		for _, sc := range c.Scores {
			fmt.Fprintf(&b, " %s %.6f × %v,", sc.Scorer, sc.Raw[e], sc.Weight)
		}
		fmt.Fprintf(&b, " total %.6f\n", c.Totals[e])
	}
	fmt.Fprintf(&b, "picks: %s\n", s.list(c.Picks))
	return b.String()
}

func figure(v float64) string {
	if math.IsNaN(v) {
		return "-"
	}
	return fmt.Sprintf("%.6g", v)
}

// list names ordinals; -1 is nobody.
func (s *script) list(ordinals []int) string {
	names := []string{}
	for _, o := range ordinals {
		if o >= 0 {
			names = append(names, s.names[o])
		}
	}
	if len(names) == 0 {
		return "-"
	}
	return strings.Join(names, " ")
}

func (s *script) spread(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var requests uint64
	d.ScanArgs(t, "requests", &requests)
	count := make([]int, len(s.names))
	for id := uint64(1); id <= requests; id++ {
		c := s.begin(t, d, id)
		s.scheduler.Preview(c)
		for _, pick := range c.Picks[:min(1, len(c.Picks))] {
			count[pick]++
		}
		s.scheduler.End(c)
	}
	return s.counts(count)
}

func (s *script) counts(count []int) string {
	var b strings.Builder
	for i, n := range count {
		fmt.Fprintf(&b, "%s: %d\n", s.names[i], n)
	}
	return b.String()
}

func (s *script) commit(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	if d.HasArg("requests") {
		return s.commitMany(t, d)
	}
	var as string
	var id uint64
	d.ScanArgs(t, "as", &as)
	d.ScanArgs(t, "id", &id)
	c := s.begin(t, d, id)
	defer s.scheduler.End(c)
	f, err := s.scheduler.Commit(c)
	if err != nil {
		return "error: " + err.Error()
	}
	s.flights[as] = f
	return "picks: " + s.list(c.Picks)
}

func (s *script) commitMany(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	var requests uint64
	d.ScanArgs(t, "requests", &requests)
	count := make([]int, len(s.names))
	for id := uint64(1); id <= requests; id++ {
		c := s.begin(t, d, id)
		f, err := s.scheduler.Commit(c)
		if err != nil {
			d.Fatalf(t, "request %d: %v", id, err)
		}
		count[f.Endpoint.Ordinal]++
		s.flights[fmt.Sprint(id)] = f
		s.scheduler.End(c)
	}
	return s.counts(count)
}
