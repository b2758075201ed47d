package ledger

import (
	"math"
	"math/big"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// TestUncached has the cases of the uncached-token function by name. The last two of the thirteen are whole-plugin
// tests: TestProducePublishesForEveryCandidate and TestCommitAndReleaseTheSameStoredAmount.
func TestUncached(t *testing.T) {
	type info = scheduling.PrefixCacheMatchInfo
	var nobody *scheduling.Column[info]
	made := scheduling.NewPrefixCacheMatchInfo(4, 10, 16)
	tests := map[string]struct {
		info  *info
		input int64
		want  int64
	}{
		"nil endpoint":       {nobody.At(0), 1000, 1000},
		"missing info":       {nil, 1000, 1000},
		"missing, no input":  {nil, -5, 0},
		"wrong info: zero":   {&info{}, 1000, 1000},
		"wrong info: counts": {&info{MatchBlocks: -1, CachedBlockCount: -1, TotalBlocks: 10, BlockSizeTokens: 16}, 1000, 1000},
		"wrong info: total":  {&info{TotalBlocks: -10, BlockSizeTokens: 16}, 1000, 1000},
		"fully cached with MatchBlocks ≠ CachedBlockCount": {
			&info{MatchBlocks: 8, CachedBlockCount: 10, TotalBlocks: 10, BlockSizeTokens: 16}, 160, 0,
		},
		"partly cached":                    {&info{MatchBlocks: 3, CachedBlockCount: 4, TotalBlocks: 10, BlockSizeTokens: 16}, 160, 96},
		"prompt beyond the indexed range":  {&info{MatchBlocks: 10, CachedBlockCount: 10, TotalBlocks: 10, BlockSizeTokens: 16}, 1000, 840},
		"partial final block":              {&info{MatchBlocks: 6, CachedBlockCount: 6, TotalBlocks: 6, BlockSizeTokens: 16}, 100, 4},
		"prompt shorter than a block":      {&info{BlockSizeTokens: 16}, 10, 10},
		"approximate-style info unchanged": {&made, 165, 101},
		"invalid block size: 0":            {&info{MatchBlocks: 4, CachedBlockCount: 4, TotalBlocks: 10}, 160, 160},
		"invalid block size: negative":     {&info{MatchBlocks: 4, CachedBlockCount: 4, TotalBlocks: 10, BlockSizeTokens: -16}, 160, 160},
		"invalid block size, no input":     {&info{MatchBlocks: 4, CachedBlockCount: 4, TotalBlocks: 10}, -160, 0},
		"cached above total never negative": {
			&info{MatchBlocks: 12, CachedBlockCount: 12, TotalBlocks: 10, BlockSizeTokens: 16}, 165, 5,
		},
		"blocks before a shorter estimate": {&info{MatchBlocks: 2, CachedBlockCount: 2, TotalBlocks: 10, BlockSizeTokens: 16}, 100, 128},
		"batch: the other prompts count in full": {
			&info{MatchBlocks: 6, CachedBlockCount: 6, TotalBlocks: 6, BlockSizeTokens: 16}, 100 + 300, 4 + 300,
		},
		"saturates":        {&info{TotalBlocks: math.MaxInt, BlockSizeTokens: math.MaxInt}, math.MaxInt64, maxTokens},
		"saturates, input": {nil, math.MaxInt64, maxTokens},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := Uncached(test.info, test.input); got != test.want {
				t.Errorf("Uncached(%+v, %d) = %d, want %d", test.info, test.input, got, test.want)
			}
		})
	}
}

// TestUncached_4096TokensOnTheCPUTier is the exact example: two counts that are not the same.
func TestUncached_4096TokensOnTheCPUTier(t *testing.T) {
	info := scheduling.PrefixCacheMatchInfo{MatchBlocks: 204, CachedBlockCount: 256, TotalBlocks: 256, BlockSizeTokens: 16}
	if got := info.Score(); got != 0.796875 {
		t.Errorf("prefix_cache_score %v, want 0.796875", got)
	}
	if got := Uncached(&info, 4096); got != 0 {
		t.Errorf("uncached %d, want 0", got)
	}
	info.CachedBlockCount = info.MatchBlocks // the mistake that the literal count is there to avoid
	if got := Uncached(&info, 4096); got != 832 {
		t.Errorf("uncached by the weighted count %d, want 832", got)
	}
}

func TestUncachedAgreesWithItsFormula(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		info := scheduling.PrefixCacheMatchInfo{
			MatchBlocks:      rapid.Int().Draw(t, "match"),
			CachedBlockCount: rapid.OneOf(rapid.IntRange(0, 100), rapid.IntMin(0)).Draw(t, "cached"),
			TotalBlocks:      rapid.OneOf(rapid.IntRange(0, 100), rapid.IntMin(0)).Draw(t, "total"),
			BlockSizeTokens:  rapid.OneOf(rapid.IntRange(1, 64), rapid.IntMin(1)).Draw(t, "size"),
		}
		input := rapid.OneOf(rapid.Int64Range(0, 5000), rapid.Int64()).Draw(t, "input")
		n := func(v int) *big.Int { return big.NewInt(int64(v)) }
		positive := func(v *big.Int) *big.Int {
			if v.Sign() < 0 {
				return new(big.Int)
			}
			return v
		}
		missing := new(big.Int).Mul(positive(new(big.Int).Sub(n(info.TotalBlocks), n(info.CachedBlockCount))), n(info.BlockSizeTokens))
		covered := new(big.Int).Mul(n(info.TotalBlocks), n(info.BlockSizeTokens))
		want := missing.Add(missing, positive(new(big.Int).Sub(positive(big.NewInt(min(input, maxTokens))), covered)))
		if limit := big.NewInt(maxTokens); want.Cmp(limit) > 0 {
			want = limit
		}
		if got := Uncached(&info, input); big.NewInt(got).Cmp(want) != 0 {
			t.Fatalf("Uncached(%+v, %d) = %d, want %v", info, input, got, want)
		}
	})
}

func TestProducePublishesForEveryCandidate(t *testing.T) {
	b := newBench(t, "default", "")
	b.update(spec('a', ""), spec('b', ""), spec('c', ""))
	b.input(1000)
	b.matched(0, 62, 62) // 992 of 1000 tokens
	b.matched(1, 10, 62)
	b.send('b') // so that there is something to see

	c := b.begin('a', scheduling.Request{})
	b.scheduler.Preview(c)
	load, uncached := scheduling.ColumnOf[scheduling.InFlightLoad](c), scheduling.ColumnOf[scheduling.UncachedRequestTokens](c)
	var got [3]scheduling.UncachedRequestTokens
	var loads [3]scheduling.InFlightLoad
	for i := range got {
		var okLoad, okTokens bool
		loads[i], okLoad = load.Get(i)
		got[i], okTokens = uncached.Get(i)
		if !okLoad || !okTokens {
			t.Errorf("endpoint %d: load published %v, tokens published %v", i, okLoad, okTokens)
		}
	}
	b.scheduler.End(c)
	if want := [3]scheduling.UncachedRequestTokens{8, 840, 1000}; got != want {
		t.Errorf("uncached %v, want %v", got, want)
	}
	if want := [3]scheduling.InFlightLoad{1: {Requests: 1, Tokens: 840}}; loads != want {
		t.Errorf("loads %v, want %v", loads, want)
	}
}

func TestCommitAndReleaseTheSameStoredAmount(t *testing.T) {
	b := newBench(t, "default", "")
	b.update(spec('a', ""))
	b.input(1024)
	b.matched(0, 40, 64)
	f := b.send('a')
	b.expect("charged", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 384})
	// The index forgets, and the estimate of the length changes: neither counts any more.
	b.matched(0, 0, 64)
	b.input(9999)
	complete(f)
	b.expect("released", 0, scheduling.InFlightLoad{})
}

func TestInputTokens(t *testing.T) {
	tests := map[string]struct {
		prompt  *scheduling.TokenizedPrompt
		request scheduling.Request
		want    int64
		guessed uint64 // requests counted as charged without tokens
	}{
		"counted":                        {&scheduling.TokenizedPrompt{Count: 1000}, scheduling.Request{PromptBytes: 8000}, 1000, 0},
		"no producer: from the bytes":    {nil, scheduling.Request{PromptBytes: 4001}, 1001, 1},
		"a prompt is never nothing":      {nil, scheduling.Request{PromptBytes: 1}, 1, 1},
		"a count of 0 with a prompt":     {&scheduling.TokenizedPrompt{}, scheduling.Request{PromptBytes: 400}, 100, 1},
		"token ids need no producer":     {nil, scheduling.Request{TokenCount: 77}, 77, 0},
		"token ids and text in one body": {nil, scheduling.Request{TokenCount: 77, PromptBytes: 40}, 87, 1},
		"no prompt at all":               {nil, scheduling.Request{}, 0, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "default", "")
			b.update(spec('a', ""))
			b.table.Prompt = test.prompt
			f := b.request('a', test.request)
			b.expect("charged", 0, scheduling.InFlightLoad{Requests: 1, Tokens: test.want})
			if got := b.ledger.ChargedWithoutTokens(); got != test.guessed {
				t.Errorf("charged without tokens: %d, want %d", got, test.guessed)
			}
			complete(f)
			b.expect("released", 0, scheduling.InFlightLoad{})
		})
	}
}

func TestEstimateOutput(t *testing.T) {
	with := func(ratio float64, limit int64) Parameters {
		return Parameters{OutputRatio: ratio, MaxEstimatedOutputTokens: limit}
	}
	tests := map[string]struct {
		params  Parameters
		request scheduling.Request
		input   int64
		want    int64
	}{
		"ratio":                    {DefaultParameters(), scheduling.Request{}, 1000, 1500},
		"rounds to the nearest":    {DefaultParameters(), scheduling.Request{}, 333, 500}, // 499.5
		"rounds down":              {with(0.1, 0), scheduling.Request{}, 14, 1},
		"the client's limit":       {DefaultParameters(), scheduling.Request{MaxOutputTokens: 256}, 1000, 256},
		"a limit above it":         {DefaultParameters(), scheduling.Request{MaxOutputTokens: 9999}, 1000, 1500},
		"the configured bound":     {with(1.5, 100), scheduling.Request{MaxOutputTokens: 256}, 1000, 100},
		"per choice":               {with(1.5, 100), scheduling.Request{Choices: 3}, 1000, 300},
		"no choices said":          {DefaultParameters(), scheduling.Request{Choices: 0}, 10, 15},
		"embeddings generate none": {DefaultParameters(), scheduling.Request{Operation: scheduling.OperationEmbeddings}, 1000, 0},
		"saturates":                {with(1000, 0), scheduling.Request{Choices: math.MaxInt}, math.MaxInt64, maxTokens},
		"no input":                 {DefaultParameters(), scheduling.Request{}, 0, 0},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			if got := test.params.estimateOutput(&test.request, test.input); got != test.want {
				t.Errorf("estimateOutput = %d, want %d", got, test.want)
			}
		})
	}
}

func TestOutputIsChargedWhereConfigured(t *testing.T) {
	b := newBench(t, "default", "addEstimatedOutputTokens: true\noutputRatio: 2\nmaxEstimatedOutputTokens: 150")
	b.update(spec('a', ""))
	b.input(100)
	f := b.request('a', scheduling.Request{Choices: 2})
	b.expect("charged", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 100 + 2*150})
	if prompt, output := b.ledger.Charged(f); prompt != 100 || output != 300 {
		t.Errorf("the flight holds %d and %d tokens, want 100 and 300", prompt, output)
	}
	f.FirstToken(0)
	b.expect("first token", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 300, Decoding: 1})
	if prompt, output := b.ledger.Charged(f); prompt != 0 || output != 300 {
		t.Errorf("the flight holds %d and %d tokens, want 0 and 300", prompt, output)
	}
	complete(f)
	b.expect("released", 0, scheduling.InFlightLoad{})
}

func TestParameters(t *testing.T) {
	types := append((&schedtest.Table{}).Types()[:1:1], Type(), pinPicker)
	for parameters, want := range map[string]string{
		"outputRatio: 0":                 "plugins[0]: parameters.outputRatio: must be > 0 and at most 1000, got 0",
		"outputRatio: -1":                "got -1",
		"outputRatio: .nan":              "got NaN",
		"outputRatio: 1e99":              "got 1e+99",
		"maxEstimatedOutputTokens: -1":   "parameters.maxEstimatedOutputTokens: must be from 0 (no bound) to 1099511627776, got -1",
		"outputRatioo: 1":                "outputRatioo",
		"prefixMatchInfoProducerName: x": `prefixMatchInfoProducerName: unknown producer "x"`,
		"tokenProducerName: ledger":      `tokenProducerName: "ledger" does not produce TokenizedPrompt`,
	} {
		t.Run(parameters, func(t *testing.T) {
			spec := scheduling.Spec{Name: "ledger", Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}
			_, err := scheduling.Build(types, schedtest.Config([]scheduling.Spec{spec}, pinPicker.Type), nil)
			if err == nil || !contains(err, want) {
				t.Errorf("error %v, want one that says %q", err, want)
			}
		})
	}
	defaults, ok := Type().Parameters.(*Parameters)
	if !ok {
		t.Fatalf("parameters are a %T", Type().Parameters)
	}
	if diff := cmp.Diff(&Parameters{OutputRatio: 1.5}, defaults); diff != "" {
		t.Errorf("defaults (-want +got):\n%s", diff)
	}
}
