package approx

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/audit"
	"github.com/sluice-epp/sluice/scheduling"
)

// usage is what an engine reports of a prompt; -1 for what it does not.
func usage(prompt, cached int) scheduling.Usage {
	return scheduling.Usage{PromptTokens: prompt, CachedTokens: cached, CompletionTokens: -1}
}

func (h *harness) answer(r *scheduling.Request, address string, prompt, cached int) {
	h.t.Helper()
	h.send(r, address).Done(scheduling.Outcome{Status: 200, Usage: usage(prompt, cached)}, h.now)
}

func (h *harness) audited(t *testing.T, address string, want audit.Counts) {
	t.Helper()
	if diff := cmp.Diff(want, h.producer().Audit().Of(h.pool.Snapshot().ByAddress(address))); diff != "" {
		t.Errorf("%s (-want +got):\n%s", address, diff)
	}
}

// Prompts that are known by their tokens are predicted to the block; of a prompt that is held whole the engine computes the
// last token, and with it its block.
func TestAuditByTokens(t *testing.T) {
	for name, tc := range map[string]struct {
		tokens, reported int
		want             audit.Counts
	}{
		"whole":             {160, 144, audit.Counts{Answers: 2, Predicted: 144, Reported: 144}},
		"whole, not even":   {165, 160, audit.Counts{Answers: 2, Predicted: 160, Reported: 160}},
		"evicted":           {165, 32, audit.Counts{Answers: 2, FalseHits: 1, Predicted: 160, Reported: 32, Over: 128}},
		"less than a block": {165, 150, audit.Counts{Answers: 2, Predicted: 160, Reported: 150, Over: 10}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, nil)
			h.endpoints("a:1", "b:1")
			h.answer(ids("m", tokenRun(1, tc.tokens)), "a:1", tc.tokens, 0) // nothing is known, nothing cached
			h.answer(ids("m", tokenRun(1, tc.tokens)), "a:1", tc.tokens, tc.reported)
			h.audited(t, "a:1", tc.want)
			h.audited(t, "b:1", audit.Counts{})
		})
	}
	t.Run("by somebody else", func(t *testing.T) {
		h := newHarness(t, nil, nil)
		h.endpoints("a:1")
		h.answer(ids("m", tokenRun(1, 165)), "a:1", 165, 160)
		h.audited(t, "a:1", audit.Counts{Answers: 1, Misses: 1, Reported: 160, Under: 160})
	})
	t.Run("an engine with larger blocks", func(t *testing.T) {
		h := newHarness(t, sizes{64}, func(p *Parameters) { p.AutoTune = false })
		h.endpoints("a:1")
		h.answer(ids("m", tokenRun(1, 165)), "a:1", 165, 0)
		h.answer(ids("m", tokenRun(1, 165)), "a:1", 165, 128)
		h.audited(t, "a:1", audit.Counts{Answers: 2, Predicted: 160, Reported: 128, Over: 32})
	})
	t.Run("beyond what is looked at", func(t *testing.T) {
		h := newHarness(t, nil, func(p *Parameters) { p.MaxPrefixTokensToMatch = 64 })
		h.endpoints("a:1")
		h.answer(ids("m", tokenRun(1, 165)), "a:1", 165, 0)
		h.answer(ids("m", tokenRun(1, 165)), "a:1", 165, 160)
		h.audited(t, "a:1", audit.Counts{Answers: 2, Predicted: 64, Reported: 64})
	})
	t.Run("where entries are far apart", func(t *testing.T) {
		h := newHarness(t, nil, func(p *Parameters) { p.MaxPrefixBlocksToMatch = 16 })
		h.endpoints("a:1")
		long := tokenRun(1, 16000)
		h.answer(ids("m", long), "a:1", 16000, 0)
		// It has more than the index can tell: the share of an entry that the prompt ends in.
		h.answer(ids("m", long), "a:1", 16000, 15984)
		got := h.producer().Audit().Sum()
		if got.Answers != 2 || got.Misses != 0 || got.Under == 0 {
			t.Errorf("%+v, want two answers, of which none is a miss and one is more than predicted", got)
		}
	})
}

type sizes struct{ block int }

func (s sizes) CacheConfig(int, uint64) (int, int, bool) { return s.block, 1000, true }

// A prompt that is known by its text is predicted as a share of it; how many tokens that is, the answer says.
func TestAuditByText(t *testing.T) {
	prompt := words(1, 6400) // 100 blocks, which are 1600 tokens by the guess
	for name, tc := range map[string]struct {
		tokens, reported int
		want             audit.Counts
	}{
		"as guessed":           {1610, 1600, audit.Counts{Answers: 2, Predicted: 1609 / 16 * 16, Reported: 1600}},
		"of smaller tokens":    {3200, 3184, audit.Counts{Answers: 2, Predicted: 3184, Reported: 3184}},
		"within an eighth":     {3200, 2816, audit.Counts{Answers: 2, Predicted: 3184, Reported: 2816, Over: 368}},
		"more than that wrong": {3200, 2000, audit.Counts{Answers: 2, FalseHits: 1, Predicted: 3184, Reported: 2000, Over: 1184}},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHarness(t, nil, nil)
			h.endpoints("a:1")
			h.answer(text("m", prompt), "a:1", -1, 0)
			// The endpoint is known to report before anything is held against it.
			h.answer(text("m", prompt), "a:1", tc.tokens, tc.reported)
			h.audited(t, "a:1", tc.want)
		})
	}
}

func TestAuditLeavesOut(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1", "b:1")
	prompt := func() *scheduling.Request { return ids("m", tokenRun(1, 160)) }
	batch, several := prompt(), prompt()
	batch.TokenCount = 320
	several.Choices = 2
	h.answer(prompt(), "a:1", 160, -1)
	h.answer(batch, "a:1", 320, 100)
	h.answer(several, "a:1", 160, 100)
	for _, o := range []scheduling.Outcome{
		{Status: 200, Reason: scheduling.EndDisconnect, Usage: usage(160, 100)},
		{Status: 200, Reason: scheduling.EndError, Usage: usage(160, 100)},
		{Status: 200, Reason: scheduling.EndUnseen, Usage: usage(160, 100)},
		{Status: 503, Reason: scheduling.EndComplete, Usage: usage(160, 100)},
	} {
		h.send(prompt(), "a:1").Done(o, h.now)
	}
	f := h.send(prompt(), "a:1")
	f.Served(h.pool.Snapshot().ByAddress("b:1"), f.PickedAt) // which was not among the picks
	f.Done(scheduling.Outcome{Status: 200, Usage: usage(160, 100)}, h.now)
	if got := h.producer().Audit().Sum(); got != (audit.Counts{}) {
		t.Errorf("audited: %+v", got)
	}
	// A flight whose memory is used again has no promise left.
	h.send(text("m", ""), "a:1").Done(scheduling.Outcome{Status: 200, Usage: usage(160, 100)}, h.now)
	if got := h.producer().Audit().Sum(); got != (audit.Counts{}) {
		t.Errorf("audited without a prediction: %+v", got)
	}
}

// The counts stay through a reload that empties the index, and the first token does not end what was promised.
func TestAuditOutlives(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.endpoints("a:1")
	f := h.send(ids("m", tokenRun(1, 160)), "a:1")
	f.FirstToken(h.now)
	f.Done(scheduling.Outcome{Status: 200, Usage: usage(160, 144)}, h.now)
	h.reload(func(p *Parameters) { p.HashSeed = "another" })
	h.answer(ids("m", tokenRun(1, 160)), "a:1", 160, 144)
	h.audited(t, "a:1", audit.Counts{Answers: 2, Misses: 2, Reported: 288, Under: 288})
	h.endpoints("b:1")
	if got := h.producer().Audit().Sum(); got != (audit.Counts{}) {
		t.Errorf("%+v of an endpoint that went", got)
	}
}

// Of a request that falls back onto a later one of its picks, what counts is what was known of that one at the pick.
func TestAuditOfALaterPick(t *testing.T) {
	h := newHarness(t, nil, nil)
	h.maxPicks = 2
	h.reload(nil)
	h.endpoints("a:1", "b:1")
	h.answer(ids("m", tokenRun(1, 80)), "b:1", 80, 0)
	f := h.send(ids("m", tokenRun(1, 160)), "a:1")
	if len(f.Picks) != 2 {
		t.Fatalf("%d picks, want 2", len(f.Picks))
	}
	f.Served(h.pool.Snapshot().ByAddress("b:1"), f.PickedAt)
	f.Done(scheduling.Outcome{Status: 200, Usage: usage(160, 80)}, h.now)
	h.audited(t, "a:1", audit.Counts{})
	h.audited(t, "b:1", audit.Counts{Answers: 2, Predicted: 80, Reported: 80})
}
