package tokens

import (
	"log/slog"
	"math/bits"
	"strings"
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
)

// When a model's tokens are not believed any more, and when they are again: so many mismatches among its last 64 checks
// demote it, so many matches in a row promote it. Demoted, one of every so many requests is rendered all the same, to
// compare.
const (
	mismatchesToDemote = 4
	matchesToPromote   = 32
	sampleEvery        = 8
	windowSize         = 64
)

// trust compares, model by model, own token counts with the engines'. It knows the models that answered most recently.
type trust struct {
	models *lru.Cache[string, *record]
	logger *slog.Logger
}

// record is what is known of one model's tokens.
type record struct {
	mu                  sync.Mutex
	window              uint64 // the last checks, the latest in bit 0; 1 is a mismatch
	checks              int    // in the window
	inRow               int    // matches since the last mismatch
	demoted             bool
	skipped             int // requests since it was demoted
	matches, mismatches int64
}

func newTrust(models int, logger *slog.Logger) *trust {
	// The constructor fails on a size below 1 only.
	cache, _ := lru.New[string, *record](models)
	return &trust{models: cache, logger: logger}
}

// demoted reports whether a model's tokens are not to be used, and, where they are not, whether this request is one to
// compare. A model that no engine has answered for is believed. One that is only tried is none to compare.
func (t *trust) demoted(model string, trial bool) (demoted, sample bool) {
	look := t.models.Get
	if trial {
		look = t.models.Peek
	}
	r, ok := look(model)
	if !ok {
		return false, false
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.demoted || trial {
		return r.demoted, false
	}
	r.skipped++
	return true, r.skipped%sampleEvery == 0
}

// check takes in that own tokens did or did not match an engine's.
func (t *trust) check(model string, match bool) {
	r, ok := t.models.Get(model)
	if !ok {
		r = &record{}
		if earlier, found, _ := t.models.PeekOrAdd(strings.Clone(model), r); found {
			r = earlier
		}
	}
	switch demoted, changed := r.check(match); {
	case changed && demoted:
		t.logger.Warn("a model's prompts are not rendered as its engines render them: no exact credit until they agree again", "model", clip(model))
	case changed:
		t.logger.Info("a model's prompts are rendered as its engines render them again", "model", clip(model))
	}
}

func (r *record) check(match bool) (demoted, changed bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.window <<= 1
	r.checks = min(windowSize, r.checks+1)
	if match {
		r.matches++
		r.inRow++
	} else {
		r.mismatches++
		r.inRow = 0
		r.window |= 1
	}
	switch {
	case r.demoted && r.inRow >= matchesToPromote:
		r.demoted, r.window, r.checks, r.inRow = false, 0, 0, 0
		return false, true
	case !r.demoted && bits.OnesCount64(r.window) >= mismatchesToDemote:
		r.demoted, r.skipped = true, 0
		return true, true
	}
	return r.demoted, false
}

// state is what metrics show of a record.
func (r *record) state() (matches, mismatches int64, ratio float64, demoted bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.matches, r.mismatches, float64(bits.OnesCount64(r.window)) / float64(max(1, r.checks)), r.demoted
}

// clip is a model's name as logs show it.
func clip(model string) string { return model[:min(len(model), 128)] }
