package tokens

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	lru "github.com/hashicorp/golang-lru/v2"
)

// The bounds of a plausible ratio in bytes per token. A sample outside of them says something else than how text
// tokenizes: a prompt that is mostly images, or hardly longer than the chat template around it.
const (
	minRatio = 0.5
	maxRatio = 16
)

// How fast a ratio learns. Bytes and tokens are summed with exponential decay and then divided, so that long prompts,
// whose estimates matter, weigh more than short ones; the cap keeps one of them from deciding alone, and the prior is
// what the ratio before the first sample weighs.
const (
	decay           = 1 - 1.0/32
	maxSampleTokens = 4096
	priorTokens     = 512
)

// maxModels is the number of models whose ratios are kept, and maxModelName the longest name, in bytes, that is.
const (
	maxModels    = 1000
	maxModelName = 512
)

// ratio is the learnt bytes per token of one model.
type ratio struct {
	current       atomic.Uint64 // float64 bits
	mu            sync.Mutex    // guards what follows
	bytes, tokens float64
}

func newRatio(start float64) *ratio {
	r := &ratio{bytes: start * priorTokens, tokens: priorTokens}
	r.current.Store(math.Float64bits(start))
	return r
}

func (r *ratio) bytesPerToken() float64 { return math.Float64frombits(r.current.Load()) }

// learn takes in a prompt of so many bytes that an engine counted so many tokens in.
func (r *ratio) learn(bytes, tokens float64) {
	if tokens > maxSampleTokens {
		bytes, tokens = bytes*maxSampleTokens/tokens, maxSampleTokens
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bytes, r.tokens = r.bytes*decay+bytes, r.tokens*decay+tokens
	r.current.Store(math.Float64bits(min(maxRatio, max(minRatio, r.bytes/r.tokens))))
}

// table holds the ratios of the models that answered most recently.
type table struct {
	models   *lru.Cache[string, *ratio]
	learned  atomic.Int64 // samples taken in
	rejected atomic.Int64 // samples out of bounds
	guessed  atomic.Int64 // requests whose text is not known
}

func newTable(models int) *table {
	// The constructor fails on a size below 1 only.
	cache, _ := lru.New[string, *ratio](models)
	return &table{models: cache}
}

// of is a model's bytes per token, or otherwise. Only models that an engine has answered for are in the table, so names
// that clients make up push nobody out.
func (t *table) of(model string, otherwise float64) float64 {
	if r, ok := t.models.Get(model); ok {
		return r.bytesPerToken()
	}
	return otherwise
}

// learn takes in a sample for a model that starts at a ratio.
func (t *table) learn(model string, start float64, bytes, tokens int) {
	sample := float64(bytes) / float64(tokens)
	if tokens <= 0 || sample < minRatio || sample > maxRatio || len(model) > maxModelName {
		t.rejected.Add(1)
		return
	}
	r, ok := t.models.Get(model)
	if !ok {
		r = newRatio(start)
		if earlier, found, _ := t.models.PeekOrAdd(strings.Clone(model), r); found {
			r = earlier
		}
	}
	r.learn(float64(bytes), float64(tokens))
	t.learned.Add(1)
}
