package memo

import (
	"sync"

	lru "github.com/hashicorp/golang-lru/v2"
)

// When a class is joined: once so many of its conversations were joined as the engine renders them, and then all but one
// of every so many, which checks again. One that cannot be joined so many times in a row is left alone, but for one try of
// every so many.
const (
	agreementsToJoin = 8
	checkEvery       = 16
	refusalsToRest   = 4
	tryEvery         = 256
)

// The bounds of what is kept.
const (
	maxClasses = 4096
	maxModels  = 1000
)

// Decision is what to do with a conversation whose beginning is known.
type Decision uint8

// The decisions.
const (
	Render  Decision = iota // render the whole
	Verify                  // render the whole, and join it too, to compare
	Combine                 // join it
)

// Classes says which conversations may be joined. A class is the conversations of one model with one shape, which their
// template has no reason to treat unlike. It is trusted after agreements, and the whole model's conversations are never
// joined again after one disagreement.
type Classes struct {
	mu       sync.Mutex
	classes  *lru.Cache[classKey, *class]
	disabled *lru.Cache[string, struct{}]
}

type classKey struct {
	model string
	shape uint64
}

type class struct {
	agreed   int
	refused  int // in a row
	requests int
}

// NewClasses returns a Classes that trusts none.
func NewClasses() *Classes {
	// The constructors fail on a size below 1 only.
	classes, _ := lru.New[classKey, *class](maxClasses)
	disabled, _ := lru.New[string, struct{}](maxModels)
	return &Classes{classes: classes, disabled: disabled}
}

// Decide says what to do with the next conversation of a class.
func (c *Classes) Decide(model string, shape uint64) Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, never := c.disabled.Get(model); never {
		return Render
	}
	k := c.of(model, shape)
	k.requests++
	switch {
	case k.refused >= refusalsToRest && k.requests%tryEvery != 0:
		return Render
	case k.agreed < agreementsToJoin || k.requests%checkEvery == 0:
		return Verify
	}
	return Combine
}

// Foresee is Decide for a conversation that is only tried: one that is not joined for sure is rendered, and nothing is
// counted.
func (c *Classes) Foresee(model string, shape uint64) Decision {
	c.mu.Lock()
	defer c.mu.Unlock()
	k, ok := c.classes.Peek(classKey{model, shape})
	if !ok || c.disabled.Contains(model) || k.refused >= refusalsToRest || k.agreed < agreementsToJoin {
		return Render
	}
	return Combine
}

func (c *Classes) of(model string, shape uint64) *class {
	key := classKey{model, shape}
	k, ok := c.classes.Get(key)
	if !ok {
		k = &class{}
		c.classes.Add(key, k)
	}
	return k
}

// Agreed notes that a conversation was joined as the engine renders it.
func (c *Classes) Agreed(model string, shape uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of(model, shape)
	k.refused = 0
	if k.agreed < agreementsToJoin {
		k.agreed++
	}
}

// Refused notes that Join found a conversation not to be joinable. Its class has to be verified anew.
func (c *Classes) Refused(model string, shape uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.of(model, shape)
	k.agreed = 0
	k.refused++
}

// Disable keeps all conversations of a model from being joined. It reports whether they could be before.
func (c *Classes) Disable(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.disabled.Contains(model) {
		return false
	}
	c.disabled.Add(model, struct{}{})
	return true
}

// Disabled reports whether a model's conversations are never joined.
func (c *Classes) Disabled(model string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.disabled.Contains(model)
}

// Census counts the classes held, those of them that are joined, and the models whose conversations are not.
func (c *Classes) Census() (classes, trusted, disabled int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range c.classes.Values() {
		if k.agreed >= agreementsToJoin {
			trusted++
		}
	}
	return c.classes.Len(), trusted, c.disabled.Len()
}
