package approx

import (
	"encoding/binary"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func matched(t *testing.T, got infos, want map[string]int) {
	t.Helper()
	blocks := map[string]int{}
	for address, info := range got {
		if info.MatchBlocks != info.CachedBlockCount {
			t.Errorf("%s: MatchBlocks %d, CachedBlockCount %d: want the same", address, info.MatchBlocks, info.CachedBlockCount)
		}
		blocks[address] = info.MatchBlocks
	}
	if diff := cmp.Diff(want, blocks); diff != "" {
		t.Errorf("matched blocks (-want +got):\n%s", diff)
	}
}

func TestLearnsFromPicks(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1", "c:1")
	turn1 := words(1, 640)
	turn2 := turn1 + words(2, 330)
	matched(t, h.look(text("m", turn1)), map[string]int{"a:1": 0, "b:1": 0, "c:1": 0})
	h.serve(text("m", turn1), "b:1")
	matched(t, h.look(text("m", turn2)), map[string]int{"a:1": 0, "b:1": 10, "c:1": 0})
	h.serve(text("m", turn2), "c:1")
	got := h.look(text("m", turn2))
	want := infos{
		"a:1": scheduling.NewPrefixCacheMatchInfo(0, 15, 16),
		"b:1": scheduling.NewPrefixCacheMatchInfo(10, 15, 16),
		"c:1": scheduling.NewPrefixCacheMatchInfo(15, 15, 16),
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	matched(t, h.look(text("m", "x"+turn2)), map[string]int{"a:1": 0, "b:1": 0, "c:1": 0})
}

func TestMatchesFromTheHeadOnly(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	prompt := tokenRun(1, 160)
	h.serve(ids("m", prompt), "a:1")
	changed := slices.Clone(prompt)
	changed[40]++ // in the third block
	matched(t, h.look(ids("m", changed)), map[string]int{"a:1": 2})
	matched(t, h.look(ids("m", prompt[16:])), map[string]int{"a:1": 0})
}

func TestPublishedBlockSize(t *testing.T) {
	for _, tc := range []struct {
		name          string
		bytesPerToken float64
		block, want   int
	}{
		{"not learnt", 4, 16, 16},
		{"nothing known", 0, 16, 16},
		{"not a number", math.NaN(), 16, 16},
		{"English", 4.4, 16, 15},
		{"half rounds up", 64 / 12.5, 16, 13},
		{"CJK in UTF-8", 3, 16, 21},
		{"never below one token", 16, 4, 1},
		{"huge ratio", 1000, 4, 1},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := textBlockTokens(tc.block*4, tc.bytesPerToken); got != tc.want {
				t.Errorf("got %d, want %d", got, tc.want)
			}
		})
	}
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	for range 40 {
		f := h.send(text("m", words(3, 640)), "a:1")
		f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 213}}, 0)
	}
	want := infos{"a:1": scheduling.NewPrefixCacheMatchInfo(10, 10, 21)} // 64 bytes at about 3 bytes per token
	if diff := cmp.Diff(want, h.look(text("m", words(3, 640)))); diff != "" {
		t.Errorf("after learning (-want +got):\n%s", diff)
	}
	want = infos{"a:1": scheduling.NewPrefixCacheMatchInfo(0, 10, 16)}
	if diff := cmp.Diff(want, h.look(ids("m", tokenRun(1, 160)))); diff != "" {
		t.Errorf("exact tokens (-want +got):\n%s", diff)
	}
}

// Tokens and text of one prompt are different chains: neither is taken for the other.
func TestTokensAreNotText(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	prompt := tokenRun(1, 64)
	var raw []byte
	for _, tok := range prompt {
		raw = binary.LittleEndian.AppendUint32(raw, tok)
	}
	h.serve(ids("m", prompt), "a:1")
	matched(t, h.look(text("m", string(raw))), map[string]int{"a:1": 0})
	matched(t, h.look(ids("m", prompt)), map[string]int{"a:1": 4})
}

func TestC15_SaltSeparates(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	prompt := words(1, 640)
	salted := func(salt string) *scheduling.Request {
		r := text("m", prompt)
		r.CacheSalt = salt
		return r
	}
	h.serve(salted("tenant-1"), "a:1")
	for salt, want := range map[string]int{
		"tenant-1": 10, "tenant-2": 0, "": 0, strings.Repeat("s", 2000): 0, "tenant-1 ": 0,
	} {
		if got := h.look(salted(salt))["a:1"].MatchBlocks; got != want {
			t.Errorf("salt %.10q: %d blocks, want %d", salt, got, want)
		}
	}
	// No salt and an empty one are the same.
	h.serve(text("m", prompt), "a:1")
	if got := h.look(salted(""))["a:1"].MatchBlocks; got != 10 {
		t.Errorf("empty salt after none: %d blocks, want 10", got)
	}
}

func TestC20_ShortPromptIsNeutral(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1")
	for name, r := range map[string]*scheduling.Request{
		"ten tokens": ids("m", tokenRun(1, 10)), "short text": text("m", "hello"),
		"no prompt": {Choices: 1}, "empty text": text("m", ""),
	} {
		h.serve(r, "a:1")
		for address, info := range h.look(r) {
			if info.TotalBlocks != 0 || info.MatchBlocks != 0 || !info.Valid() || info.Score() != 0 {
				t.Errorf("%s: %s: %+v scores %v, want 0 of 0 blocks", name, address, info, info.Score())
			}
		}
		if n := len(h.look(r)); n != 2 {
			t.Errorf("%s: info for %d endpoints, want 2", name, n)
		}
	}
	// The last, incomplete block gets no credit: matched tokens never exceed the prompt's.
	h.serve(ids("m", tokenRun(2, 175)), "a:1")
	if info := h.look(ids("m", tokenRun(2, 175)))["a:1"]; info.MatchedTokens() != 160 || info.Score() != 1 {
		t.Errorf("%+v: %d tokens, want 160", info, info.MatchedTokens())
	}
}

// A prompt of 100,000 tokens of which 60,000 are held scores what it is, not what the first blocks say.
func TestC20_LongPromptIsSeenWhole(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1")
	prompt := tokenRun(1, 100000)
	h.serve(ids("m", prompt[:60000]), "a:1")
	got := h.look(ids("m", prompt))
	if score := got["a:1"].Score(); score < 0.595 || score > 0.605 || got["b:1"].Score() != 0 {
		t.Errorf("scores %v and %v, want 0.6 and 0", score, got["b:1"].Score())
	}
	if tokens := got["a:1"].MatchedTokens(); tokens > 60000 || tokens < 60000*255/256 {
		t.Errorf("%d matched tokens of 60000", tokens)
	}
	if total := got["a:1"].TotalBlocks * 16; total > 100000 || total < 100000*255/256 {
		t.Errorf("looked up %d of 100000 tokens", total)
	}
}

func TestC22_ZeroMeansTheDefault(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) {
		p.BlockSizeTokens, p.MaxPrefixBlocksToMatch, p.MaxPrefixTokensToMatch, p.LRUCapacityPerServer = 0, 0, 0, 0
	})
	if diff := cmp.Diff(defaultParameters(), h.producer().params); diff != "" {
		t.Errorf("parameters (-default +got):\n%s", diff)
	}
	h.endpoints("a:1")
	h.serve(text("m", words(1, 640)), "a:1")
	matched(t, h.look(text("m", words(1, 640))), map[string]int{"a:1": 10})
}

// Past the limit of entries the index still knows: a wholly held prompt four times as long as single blocks would reach
// leaves nothing to charge but the last run.
func TestC22_FullyHeldBeyondTheEntryLimit(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) { p.MaxPrefixBlocksToMatch = 512 })
	h.endpoints("a:1")
	prompt := tokenRun(1, 4*512*16)
	h.serve(ids("m", prompt), "a:1")
	info := h.look(ids("m", prompt))["a:1"]
	if info.CachedBlockCount != info.TotalBlocks {
		t.Errorf("%+v: want all that was looked up", info)
	}
	if rest := len(prompt) - info.TotalBlocks*info.BlockSizeTokens; rest < 0 || rest > len(prompt)/32 {
		t.Errorf("%d of %d tokens count as uncached", rest, len(prompt))
	}
	if n := h.producer().capped.Load(); n != 0 {
		t.Errorf("%d prompts counted as capped", n)
	}
}

// Past the token limit nothing is known, the rest counts as uncached, and a metric says so.
func TestC22_TokenLimitIsNotSilent(t *testing.T) {
	h := newHarness(t, nil, func(p *Parameters) { p.MaxPrefixTokensToMatch = 320 })
	h.endpoints("a:1")
	for _, tc := range []struct {
		r      *scheduling.Request
		capped int64
	}{
		{ids("m", tokenRun(1, 320)), 0}, {ids("m", tokenRun(1, 335)), 0}, {ids("m", tokenRun(1, 336)), 1},
		{text("m", words(1, 1280)), 0}, {text("m", words(1, 1343)), 0}, {text("m", words(1, 1344)), 1},
	} {
		before := h.producer().capped.Load()
		h.serve(tc.r, "a:1")
		if got := h.producer().capped.Load() - before; got != tc.capped {
			t.Errorf("%d tokens, %d bytes: capped %d times, want %d", len(tc.r.Tokens), len(tc.r.Body), got, tc.capped)
		}
	}
	info := h.look(ids("m", tokenRun(1, 4000)))["a:1"]
	if want := scheduling.NewPrefixCacheMatchInfo(20, 20, 16); info != want {
		t.Errorf("got %+v, want %+v", info, want)
	}
}

func TestC28_AdaptersAreSeparate(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	prompt := tokenRun(1, 160)
	h.serve(ids("adapter-a", prompt), "a:1")
	for model, want := range map[string]int{"adapter-a": 10, "adapter-b": 0, "base": 0, "": 0, "img-aaaa": 0} {
		if got := h.look(ids(model, prompt))["a:1"].MatchBlocks; got != want {
			t.Errorf("%q: %d blocks, want %d", model, got, want)
		}
	}
	// Model and salt do not run into one another.
	r := ids("adapter-", prompt)
	r.CacheSalt = "a"
	if got := h.look(r)["a:1"].MatchBlocks; got != 0 {
		t.Errorf("model adapter-, salt a: %d blocks, want 0", got)
	}
}

func TestC44_ServedElsewhereMovesThePrefix(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1")
	system := words(1, 320)
	h.serve(text("m", system), "a:1")
	chat := system + words(2, 640)
	f := h.send(text("m", chat), "a:1")
	matched(t, h.look(text("m", chat)), map[string]int{"a:1": 15, "b:1": 0})
	f.Served(h.pool.Snapshot().ByAddress("b:1"), f.PickedAt)
	// What a held before stays; what the request would have added is b's.
	matched(t, h.look(text("m", chat)), map[string]int{"a:1": 5, "b:1": 15})
	checkInvariants(t, h.producer().index.Load())
	f.FirstToken(0)
	f.Done(scheduling.Outcome{Status: 200}, 0)
	matched(t, h.look(text("m", chat)), map[string]int{"a:1": 5, "b:1": 15})
}

func TestC44_WhatOthersUseStays(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1")
	chat := words(1, 640)
	first := h.send(text("m", chat), "a:1")
	h.serve(text("m", chat[:320]), "a:1") // confirms the first five blocks
	first.Served(h.pool.Snapshot().ByAddress("b:1"), first.PickedAt)
	matched(t, h.look(text("m", chat)), map[string]int{"a:1": 5, "b:1": 10})
	// To an endpoint that the pool does not have, nothing moves.
	second := h.send(text("m", words(5, 640)), "a:1")
	second.Served(&scheduling.Endpoint{Ordinal: 9, Generation: 99}, second.PickedAt)
	matched(t, h.look(text("m", words(5, 640))), map[string]int{"a:1": 0, "b:1": 0})
	second.Done(scheduling.Outcome{Status: 200}, 0)
	first.Done(scheduling.Outcome{Status: 200}, 0)
	checkInvariants(t, h.producer().index.Load())
}

func TestAPIsWrapTheSameTextOtherwise(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	of := func(op scheduling.Operation) *scheduling.Request {
		r := text("m", words(1, 640))
		r.Operation = op
		return r
	}
	h.serve(of(scheduling.OperationCompletions), "a:1")
	for op, want := range map[scheduling.Operation]int{
		scheduling.OperationCompletions: 10, scheduling.OperationEmbeddings: 10, scheduling.OperationChat: 0,
		scheduling.OperationResponses: 0, scheduling.OperationMessages: 0,
	} {
		matched(t, h.look(of(op)), map[string]int{"a:1": want})
	}
}

// The approximate index's part of an engine that restarts in place: the address stays, the cache is empty.
func TestC03_RestartInPlaceForgetsWhatWasRecorded(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1")
	chat := words(1, 640)
	h.serve(text("m", chat), "a:1")
	h.serve(text("m", chat), "b:1")
	a := h.pool.Snapshot().ByAddress("a:1")
	h.producer().CacheLost(a.Ordinal, a.Generation+1, true) // another life: nothing to do with this one
	matched(t, h.look(text("m", chat)), map[string]int{"a:1": 10, "b:1": 10})
	running := h.send(text("m", words(2, 640)), "a:1")
	h.producer().CacheLost(a.Ordinal, a.Generation, true)
	matched(t, h.look(text("m", chat)), map[string]int{"a:1": 0, "b:1": 10})
	running.Done(scheduling.Outcome{Status: 502}, 0) // takes back what is gone already
	h.serve(text("m", chat), "a:1")
	matched(t, h.look(text("m", chat)), map[string]int{"a:1": 10, "b:1": 10})
	checkInvariants(t, h.producer().index.Load())
}

func TestFailuresTeachNothing(t *testing.T) {
	ok := scheduling.UnknownUsage
	for _, tc := range []struct {
		name       string
		firstToken bool
		outcome    scheduling.Outcome
		want       int
	}{
		{"served", false, scheduling.Outcome{Status: 200, Usage: ok}, 10},
		{"refused", false, scheduling.Outcome{Status: 400, Usage: ok}, 0},
		{"overloaded", false, scheduling.Outcome{Status: 503, Reason: scheduling.EndError, Usage: ok}, 0},
		{"no connection", false, scheduling.Outcome{Reason: scheduling.EndError, Usage: ok}, 0},
		{"failed after the first token", true, scheduling.Outcome{Status: 200, Reason: scheduling.EndError, Usage: ok}, 10},
		{"error status after the first token", true, scheduling.Outcome{Status: 500, Usage: ok}, 10},
		{"client left", false, scheduling.Outcome{Reason: scheduling.EndDisconnect, Usage: ok}, 10},
		{"end not seen", false, scheduling.Outcome{Reason: scheduling.EndUnseen, Usage: ok}, 10},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, nil, nil)
			h.endpoints("a:1")
			f := h.send(text("m", words(1, 640)), "a:1")
			if tc.firstToken {
				f.FirstToken(0)
			}
			f.Done(tc.outcome, 0)
			matched(t, h.look(text("m", words(1, 640))), map[string]int{"a:1": tc.want})
		})
	}
}

func TestPreviewTeachesNothing(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	c := h.begin(text("m", words(1, 640)))
	h.scheduler.Preview(c)
	h.scheduler.End(c)
	matched(t, h.look(text("m", words(1, 640))), map[string]int{"a:1": 0})
}

func TestEveryCandidateAndOnlyThey(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1", "c:1")
	h.serve(text("m", words(1, 640)), "b:1")
	r := text("m", words(1, 640))
	c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
	allowed := scheduling.NewSet(3)
	allowed.Add(0)
	allowed.Add(1)
	c.Restrict(allowed)
	h.scheduler.Produce(t.Context(), c)
	matched(t, h.read(c), map[string]int{"a:1": 0, "b:1": 10})
	h.scheduler.End(c)
}

// Fewer tokens a block are more entries than memory holds.
func TestC24_BlocksOfOneTokenAreRefused(t *testing.T) {
	h := newHarness(t, nil, nil)
	const want = "parameters.blockSizeTokens: must be 4 to 65536 tokens"
	for _, size := range []int{-1, 1, 3, 65537} {
		if _, err := h.build(func(p *Parameters) { p.BlockSizeTokens = size }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d tokens: error %v, want one with %q", size, err, want)
		}
	}
	s, err := h.build(func(p *Parameters) { p.BlockSizeTokens = 4 })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestParameterErrors(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(*Parameters)
		want   string
	}{
		{"negative block", func(p *Parameters) { p.BlockSizeTokens = -16 }, "parameters.blockSizeTokens: must be 4 to 65536"},
		{"huge block", func(p *Parameters) { p.BlockSizeTokens = 1 << 20 }, "got 1048576"},
		{"negative blocks", func(p *Parameters) { p.MaxPrefixBlocksToMatch = -1 }, "parameters.maxPrefixBlocksToMatch: must be 1 to 1048576 entries, or 0 for the default, got -1"},
		{"negative tokens", func(p *Parameters) { p.MaxPrefixTokensToMatch = -5 }, "parameters.maxPrefixTokensToMatch: must be"},
		{"tokens below a block", func(p *Parameters) { p.MaxPrefixTokensToMatch = 15 }, "must be at least one block (blockSizeTokens 16), got 15"},
		{"negative capacity", func(p *Parameters) { p.LRUCapacityPerServer = -1 }, "parameters.lruCapacityPerServer: must be"},
		{"unbounded capacity", func(p *Parameters) { p.LRUCapacityPerServer = math.MaxInt }, "parameters.lruCapacityPerServer: must be 1 to"},
		{"unknown token producer", func(p *Parameters) { p.TokenProducerName = "token-producr" }, `(did you mean "token-producer"?)`},
	} {
		t.Run(tc.name, func(t *testing.T) {
			h := newHarness(t, nil, nil)
			_, err := h.build(tc.change)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("error %v, want one with %q", err, tc.want)
			}
		})
	}
	h := newHarness(t, nil, nil)
	_, err := h.build(func(p *Parameters) { p.BlockSizeTokens, p.LRUCapacityPerServer = 1, -1 })
	if err == nil || !strings.Contains(err.Error(), "blockSizeTokens") || !strings.Contains(err.Error(), "lruCapacityPerServer") {
		t.Errorf("error %v, want both faults", err)
	}
}

func TestC49_CostStopsAtTheLimit(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	for name, r := range map[string]*scheduling.Request{
		"1 MiB of one character": text("m", strings.Repeat("x", 1<<20)),
		"a million tokens":       ids("m", make([]uint32, 1<<20)),
	} {
		before := h.producer().index.Load().entries.Load()
		h.serve(r, "a:1")
		if n := h.producer().index.Load().entries.Load() - before; n > 2048 || n < 1024 {
			t.Errorf("%s: %d entries, want at most 2048", name, n)
		}
	}
	// Many small messages are one text.
	r := text("m", words(8, 100000))
	whole := text("m", string(r.Body))
	r.Prompt = nil
	for at := 0; at < len(r.Body); at += 10 {
		r.Prompt = append(r.Prompt, scheduling.Span{Start: at, End: at + 10})
	}
	h.serve(r, "a:1")
	if info := h.look(whole)["a:1"]; info.MatchBlocks != info.TotalBlocks || info.TotalBlocks < 1500 {
		t.Errorf("10,000 messages against one text: %+v", info)
	}
}

func TestProduceAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	h := newHarness(t, stubConfig{}, nil)
	names := manyEndpoints(h, 130)
	r := warm(h, names)
	c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
	h.scheduler.Produce(t.Context(), c)
	p := h.producer()
	if n := testing.AllocsPerRun(200, func() {
		if err := p.Produce(t.Context(), c); err != nil {
			t.Fatal(err)
		}
		blocks, _ := p.blocks.In(c).Get()
		p.giveBack(blocks.prompt)
	}); n != 0 {
		t.Errorf("a look-up allocates %v times", n)
	}
	// Neither does a whole request whose prompt its endpoint holds.
	h.serve(r, names[0])
	if n := testing.AllocsPerRun(200, func() {
		c := h.begin(r)
		f, err := h.scheduler.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		h.scheduler.End(c)
		f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, 0)
	}); n != 0 {
		t.Errorf("a request allocates %v times", n)
	}
}
