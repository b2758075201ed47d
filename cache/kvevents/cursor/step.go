package cursor

import "time"

// Message is what a Cursor has to know of a message.
type Message struct {
	// Seq is its sequence number. The number that marks the end of a replay, math.MaxUint64, never is a message's.
	Seq uint64
	// Print is a fingerprint of its bytes: equal ones mean equal bytes.
	Print uint64
	// Clears says that it empties the engine's cache.
	Clears bool
	// Unreadable says that nothing of it can be applied. It takes its place in the sequence all the same, since a replay
	// would bring the same bytes.
	Unreadable bool
}

// Step is what the owner of a Cursor has to do after an input, in the order of the fields.
type Step struct {
	// Forget, unless zero, makes all that is known of the source void.
	Forget Cause
	// Held says what becomes of the messages that are held back or kept. HeldRelease comes after everything else.
	Held Held
	// Verdict is what becomes of the message that was passed in.
	Verdict Verdict
	// Keep says to keep a copy of the message although it is applied.
	Keep bool
	// Ask starts a replay, in place of one that runs, or stops it.
	Ask Ask
	// From is the first sequence number to ask a replay for.
	From uint64
	// Whole says that the replay is for everything that can be known: a snapshot would do as well.
	Whole bool
	// Gap says that the message follows on missing ones.
	Gap bool
}

// Verdict is what becomes of a message.
type Verdict uint8

// The verdicts. The zero one is for inputs without a message.
const (
	_ Verdict = iota
	// Apply: it is the next one.
	Apply
	// Ignore: it was applied already, or is of no use.
	Ignore
	// Hold: it is to be copied, and to be passed to [Cursor.Live] again on HeldRelease.
	Hold
)

// Held is what becomes of the messages of which copies are held.
type Held uint8

// What becomes of held messages.
const (
	// HeldStay leaves them.
	HeldStay Held = iota
	// HeldDrop drops them, before the verdict on the message at hand is carried out.
	HeldDrop
	// HeldRelease passes them to [Cursor.Live] again, in their order; those that it holds again are held in that order,
	// before any newer one.
	HeldRelease
)

// Ask is what becomes of the replay.
type Ask uint8

// What becomes of the replay.
const (
	// AskOn leaves it as it is, running or not.
	AskOn Ask = iota
	// AskReplay begins one at Step.From; one that runs is dropped, and what it still brings must not reach the Cursor.
	AskReplay
	// AskStop drops the one that runs, if any.
	AskStop
)

// Config are a Cursor's settings. A field that is not positive stands for its default.
type Config struct {
	// CanReplay says that the engine has a replay socket; see also [Cursor.CanReplay].
	CanReplay bool
	// SilentAfter is how long a generation may say nothing before it counts as silent; 10 s by default.
	SilentAfter time.Duration
	// MaxAttempts is how often a replay is tried at a stretch, 3 by default, AttemptDelay apart, 250 ms by default.
	MaxAttempts  int
	AttemptDelay time.Duration
	// RetryDelay is the pause after that, 5 s by default; it doubles each time up to RetryMax, 2 min by default.
	RetryDelay, RetryMax time.Duration
	// KeepFor is how long a sign of a restart from elsewhere (a page of metrics) may lag behind the first message of a
	// connection; 15 s by default.
	KeepFor time.Duration
	// Jitter spreads a delay, so that many sources do not ask at once; none by default.
	Jitter func(time.Duration) time.Duration
}

func (c Config) withDefaults() Config {
	c.SilentAfter = positive(c.SilentAfter, 10*time.Second)
	c.MaxAttempts = positive(c.MaxAttempts, 3)
	c.AttemptDelay = positive(c.AttemptDelay, 250*time.Millisecond)
	c.RetryDelay = positive(c.RetryDelay, 5*time.Second)
	c.RetryMax = max(positive(c.RetryMax, 2*time.Minute), c.RetryDelay)
	c.KeepFor = positive(c.KeepFor, 15*time.Second)
	if c.Jitter == nil {
		c.Jitter = func(d time.Duration) time.Duration { return d }
	}
	return c
}

func positive[T int | time.Duration](v, byDefault T) T {
	if v <= 0 {
		return byDefault
	}
	return v
}
