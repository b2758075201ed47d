package policies_test

import (
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/policies"
	"github.com/sluice-epp/sluice/sim/trace"
)

// played is a scheduler and a pool through which a test sends requests at times that it says.
type played struct {
	*scheduling.Scheduler
	pool *scheduling.Pool
	next uint64
}

func play(t *testing.T, table *schedtest.Table, plugin, parameters string) *played {
	return &played{Scheduler: schedulerOf(t, table, plugin, parameters), pool: table.Pool()}
}

// send sends a request to one endpoint, or to any where only is negative.
func (p *played) send(t *testing.T, now time.Duration, tokens []uint32, only int) *scheduling.Flight {
	t.Helper()
	p.next++
	c := p.Begin(p.pool.Snapshot(), &scheduling.Request{ID: p.next, Tokens: tokens, TokenCount: len(tokens)}, now)
	defer p.End(c)
	if only >= 0 {
		allowed := scheduling.NewSet(len(p.pool.Snapshot().Endpoints))
		allowed.Add(only)
		c.Restrict(allowed)
	}
	p.Produce(t.Context(), c)
	f, err := p.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// picks are the endpoints to which a request could go now.
func (p *played) picks(t *testing.T, now time.Duration, tokens []uint32) []int {
	t.Helper()
	seen := map[int]bool{}
	for id := range uint64(200) {
		c := p.Begin(p.pool.Snapshot(), &scheduling.Request{ID: id, Tokens: tokens, TokenCount: len(tokens)}, now)
		p.Produce(t.Context(), c)
		p.Preview(c)
		seen[c.Picks[0]] = true
		p.End(c)
	}
	return slices.Sorted(maps.Keys(seen))
}

func (p *played) want(t *testing.T, what string, now time.Duration, tokens []uint32, want ...int) {
	t.Helper()
	if got := p.picks(t, now, tokens); !slices.Equal(got, want) {
		t.Errorf("%s: picks %v, want %v", what, got, want)
	}
}

// shifted is a prompt of 100 tokens of which the first n are those of hundred.
func shifted(n int) []uint32 {
	tokens := hundred()
	for i := n; i < len(tokens); i++ {
		tokens[i] += 10_000
	}
	return tokens
}

// Blocks are of 10 tokens: the cost is w · (tokens ahead + own) / 10 and the blocks in use, each once.
func TestDynamosRule(t *testing.T) {
	for _, r := range []rule{
		{"6 + 10 < 10 + 10", "blockTokens: 10", []state{{0, 0, 0}, {4, 0, 0}}, []int{1}},
		{"tokens ahead count", "blockTokens: 10", []state{{0, 0, 0}, {4, 1, 50}}, []int{0}},
		{"equal costs", "blockTokens: 10", []state{{0, 0, 0}, {4, 1, 40}}, []int{0, 1}},
	} {
		table := tableOf(r.states...)
		play(t, table, "sim-dynamo-picker", r.parameters).want(t, r.name, 0, hundred(), r.want...)
	}

	table := tableOf(state{}, state{})
	p := play(t, table, "sim-dynamo-picker", "blockTokens: 10")
	first := p.send(t, 0, hundred(), 0) // 10 blocks in use on 0
	p.want(t, "nothing shared: where nothing is in use", 0, shifted(0), 1)
	p.want(t, "all shared: 10 + 10 on both", 0, hundred(), 0, 1)
	p.want(t, "half shared: 10 + 15 against 10 + 10", 0, shifted(50), 1)
	table.Endpoints[0].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(40))
	p.want(t, "half shared, and cached there: 4 + 15 against 10 + 10", 0, shifted(50), 0)
	table.Endpoints[0].Uncached = schedtest.Ref(scheduling.UncachedRequestTokens(100))

	second := p.send(t, 0, shifted(50), 0) // 15 in use
	first.FirstToken(1)
	first.Done(scheduling.Outcome{}, 2)
	p.want(t, "five went with the first, ten stay", 3, shifted(50), 0, 1)
	p.want(t, "ten stay", 3, shifted(0), 1)
	second.Done(scheduling.Outcome{}, 4)
	p.want(t, "nothing is in use", 5, shifted(0), 0, 1)

	weighed := tableOf(state{0, 0, 0}, state{2, 0, 0})
	light := play(t, weighed, "sim-dynamo-picker", "{blockTokens: 10, overlapWeight: 2}")
	light.send(t, 0, shifted(0), 1)
	light.want(t, "2 · 10 + 10 against 2 · 8 + 20", 0, hundred(), 0)
	heavy := play(t, weighed, "sim-dynamo-picker", "{blockTokens: 10, overlapWeight: 8}")
	heavy.send(t, 0, shifted(0), 1)
	heavy.want(t, "8 · 10 + 10 against 8 · 8 + 20", 0, hundred(), 1)
}

// At a temperature of 0.5 and costs of 0, 0.5 and 1 between the least and the highest, the odds are 1 : e⁻¹ : e⁻².
func TestDynamosTemperature(t *testing.T) {
	table := tableOf(state{10, 0, 0}, state{5, 0, 0}, state{0, 0, 0})
	counts := picked(t, schedulerOf(t, table, "sim-dynamo-picker", "{blockTokens: 10, temperature: 0.5}"), table,
		scheduling.Request{Tokens: hundred(), TokenCount: 100})
	sum := 1 + math.Exp(-1) + math.Exp(-2)
	for e := range 3 {
		if want, got := math.Exp(-float64(e))/sum, float64(counts[e])/400; math.Abs(got-want) > 0.08 {
			t.Errorf("endpoint %d: %.2f of the picks, want %.2f", e, got, want)
		}
	}
}

// A second of prefill is 100 tokens here.
func TestPreblesRule(t *testing.T) {
	const perSecond = "{prefillThroughput: 100, window: 3m, balance: 1.5}"
	table := tableOf(state{cached: 6}, state{cached: 6}, state{})
	p := play(t, table, "sim-preble-picker", perSecond)
	p.want(t, "exploit: either of the two with the match", 0, hundred(), 0, 1)
	f := p.send(t, 0, hundred(), 0) // a load of 0.4 on 0
	p.want(t, "the one with the lower load", 0, hundred(), 1)
	g := p.send(t, 0, hundred(), 1)
	p.want(t, "both are the busiest, and more than half as busy again as the idlest", time.Second, hundred(), 2)
	h := p.send(t, 0, hundred(), 2) // 1 on 2
	p.want(t, "no longer the busiest", time.Second, hundred(), 0, 1)
	p.want(t, "the window's end", 3*time.Minute, hundred(), 0, 1)
	for _, f := range []*scheduling.Flight{f, g, h} {
		f.Done(scheduling.Outcome{}, time.Second)
	}

	// Half of the prompt is not more than half: the least L + M + P is picked.
	table = tableOf(state{cached: 5}, state{})
	p = play(t, table, "sim-preble-picker", perSecond)
	p.want(t, "explore: 0.5 against 1", 0, hundred(), 0)
	p.send(t, 0, hundred(), 0) // L 0.5, half of its tokens were cached
	p.want(t, "0.5 + 1.5 · 0.5 against 1", 0, hundred(), 1)
	p.send(t, 0, hundred(), 1) // L 1, nothing was cached
	p.want(t, "0.5 + 1.5 · 0.5 against 1 + 1", 0, hundred(), 0)

	// Requests in flight count by how long answers took.
	table = tableOf(state{requests: 1}, state{})
	p = play(t, table, "sim-preble-picker", perSecond)
	p.want(t, "no answer is known yet", 0, hundred(), 0, 1)
	answered := p.send(t, 0, hundred(), 0)
	answered.FirstToken(time.Second)
	answered.Done(scheduling.Outcome{}, 4*time.Second)
	other := p.send(t, 0, hundred(), 1)
	p.want(t, "equal windows, and 3 s of answers on 0", 5*time.Second, hundred(), 1)
	other.Done(scheduling.Outcome{}, time.Second) // without a first token it tells nothing

	// By what is in flight alone.
	table = tableOf(state{6, 3, 200}, state{6, 9, 100}, state{0, 0, 80})
	p = play(t, table, "sim-preble-picker", "{load: inflight, prefillThroughput: 100}")
	p.want(t, "exploit where less is in flight", 0, hundred(), 1)
	table.Endpoints[1].Load.Tokens = 300
	table.Endpoints[0].Load.Tokens = 300
	p.want(t, "both too busy", 0, hundred(), 2)
}

// The reference sends to who has least to compute, and knows that what one engine has all have.
func TestThePooledReference(t *testing.T) {
	p, err := policies.Find("pooled")
	if err != nil || !p.Pooled {
		t.Fatalf("%v: %+v", err, p)
	}
	params := sim.DefaultParams()
	params.BlockSize, params.MaxWaiting = 16, 1<<20
	blocks := make([]uint64, 200)
	for i := range blocks {
		blocks[i] = uint64(i)
	}
	tr := &trace.Trace{Name: "same", BlockTokens: 16}
	for i := range 9 { // the first is computed; of the rest only the last token's block is
		tr.Requests = append(tr.Requests, trace.Request{At: time.Duration(i) * 10 * time.Second, Blocks: blocks, PromptTokens: 3200, OutputTokens: 2})
	}
	run := func(pooled bool) *fleet.Result {
		r, err := fleet.Run(fleet.Config{
			Trace: tr, Engines: []sim.Params{params, params, params}, Seed: 1, Pooled: pooled,
			NewPicker: func(v *fleet.View) (fleet.Picker, error) { return p.NewPicker(v, nil) },
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	cold, where := 0, map[int]bool{}
	for i, s := range run(true).Samples {
		where[s.Endpoint] = true
		if want := 3184; i > 0 && s.CachedTokens != want || i == 0 && s.CachedTokens != 0 {
			t.Errorf("request %d found %d tokens", i, s.CachedTokens)
		}
	}
	for _, s := range run(false).Samples {
		if s.CachedTokens == 0 {
			cold++
		}
	}
	if len(where) != 3 || cold != 3 {
		t.Errorf("%d engines were used; with caches of their own %d requests found nothing", len(where), cold)
	}
}

// Where a prompt's cost is shared, what the picker believes to be in flight ends at nothing.
func TestThePooledReferenceReleasesWhatItCharged(t *testing.T) {
	p, err := policies.Find("pooled")
	if err != nil {
		t.Fatal(err)
	}
	params := sim.DefaultParams()
	params.MaxModelLen, params.MaxWaiting = 1000, 1<<20
	tr := &trace.Trace{Name: "some too long", BlockTokens: 16}
	for i := range 40 {
		r := trace.Request{At: time.Duration(i) * time.Millisecond, PromptTokens: 160, OutputTokens: 5}
		if i%4 == 0 {
			r.OutputTokens = 2000 // refused
		}
		for b := range 10 {
			r.Blocks = append(r.Blocks, uint64(i*10+b))
		}
		tr.Requests = append(tr.Requests, r)
	}
	var made *policies.Pooled
	r, err := fleet.Run(fleet.Config{
		Trace: tr, Engines: []sim.Params{params, params}, Pooled: true,
		NewPicker: func(v *fleet.View) (fleet.Picker, error) {
			picker, err := p.NewPicker(v, nil)
			made, _ = picker.(*policies.Pooled)
			return picker, err
		},
	})
	if err != nil || r.Refused != 10 {
		t.Fatalf("%v: %d refused", err, r.Refused)
	}
	if left := made.InFlight(); left != 0 {
		t.Errorf("%d tokens are in flight at the end", left)
	}
}

// Engines that wait for room which others hold go on once it is free, also where sequences lose theirs half way.
func TestThePooledReferenceComesToAnEnd(t *testing.T) {
	p, err := policies.Find("pooled")
	if err != nil {
		t.Fatal(err)
	}
	for blocks := 12; blocks <= 40; blocks += 7 {
		params := sim.DefaultParams()
		params.NumBlocks, params.MaxModelLen, params.MaxWaiting = blocks, 12*params.BlockSize, 1<<20
		tr := &trace.Trace{Name: "tight", BlockTokens: params.BlockSize}
		for i := range 120 {
			r := trace.Request{At: time.Duration(i) * 50 * time.Millisecond, PromptTokens: 4 * params.BlockSize, OutputTokens: 1 + 13*i%120}
			for b := range 4 {
				r.Blocks = append(r.Blocks, uint64(i*4+b))
			}
			tr.Requests = append(tr.Requests, r)
		}
		r, err := fleet.Run(fleet.Config{
			Trace: tr, Engines: []sim.Params{params, params, params}, Pooled: true,
			NewPicker: func(v *fleet.View) (fleet.Picker, error) { return p.NewPicker(v, nil) },
		})
		if err != nil || len(r.Samples) != 120 {
			t.Fatalf("%d blocks each: %v", blocks, err)
		}
	}
}
