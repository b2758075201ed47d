package precise

import (
	"math"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
)

// An alarm is something about one source that an operator has to look at: it is a gauge, and one line in the log when it
// begins.
type alarm uint8

const (
	// alarmSilent: nothing is heard of the source although its engine answers: no events are enabled, or they cannot be
	// reached.
	alarmSilent alarm = iota
	// alarmUnapplied: events arrive and none tells anything that can be used.
	alarmUnapplied
	// alarmBlockSize: the events have another block size than the engine's metrics, or else the configuration; or those of
	// several cache groups have several, which never count together.
	alarmBlockSize
	// alarmUnpredicted: the engine reports cached tokens, and none was ever predicted: its events are about other prompts
	// than its requests, as with another tokenizer, adapter or salt.
	alarmUnpredicted
	alarms
)

var alarmNames = [alarms]string{"silent", "unapplied", "block_size", "unpredicted"}

var alarmMessages = [alarms]string{
	"no KV events are heard from an endpoint; its prefix cache is guessed from what is sent there",
	"KV events arrive from an endpoint and none can be used",
	"an endpoint's KV blocks have another size than expected, or several at once; the events are right",
	"an endpoint reports cached tokens that its KV events never explain",
}

const (
	// silentFor is how long a source may say nothing before that is said, and silentAnswers how many requests its engine
	// must have answered meanwhile: one that has nothing to do has nothing to say.
	silentFor     = 30 * time.Second
	silentAnswers = 3
	// watchEvery is how often alarms are looked at.
	watchEvery = 5 * time.Second
	// expireEvery is how often speculation is ended that no request has ended.
	expireEvery = time.Second
	// unpredictedRow is how many answers in a row must have had cached tokens where none were predicted.
	unpredictedRow = 20
)

// watch looks at all sources until the hub ends.
func (h *hub) watch() {
	ticker, expiry := time.NewTicker(watchEvery), time.NewTicker(expireEvery)
	defer ticker.Stop()
	defer expiry.Stop()
	for {
		select {
		case <-expiry.C:
			h.queue.expire(h.clock(), math.MaxInt)
		case <-ticker.C:
			h.lookAround(time.Now())
			h.listenAgain()
		case <-h.ctx.Done():
			return
		}
	}
}

// lookAround counts the alarms anew, and logs those that begin.
func (h *hub) lookAround(now time.Time) {
	var counts [alarms]int64
	for ordinal, m := range h.members.Load().byOrdinal {
		if m == nil {
			continue
		}
		ranks := *m.ranks.Load()
		answered := m.answered.Load() / int64(len(ranks))
		for _, r := range ranks {
			if r.is(cursor.Live) || r.is(cursor.Degraded) {
				r.spoke, r.answeredThen = now, answered
			}
			for a := range alarms {
				on := r.alarmed(a, now, h.expectedBlock(ordinal, m), answered)
				if on {
					counts[a]++
				}
				if on && !r.said[a] {
					h.logger.Warn("an endpoint's KV events have to be looked at", "why", alarmMessages[a], "endpoint", m.endpoint.Address, "name", m.endpoint.Name, "rank", r.number,
						"alarm", alarmNames[a], "block_size_tokens", r.primary.Load())
				}
				r.said[a] = on
			}
		}
	}
	for a := range alarms {
		h.alarms[a].Store(counts[a])
	}
}

// expectedBlock is the block size that an endpoint's metrics tell, or else the configured one; 0 where neither does.
func (h *hub) expectedBlock(ordinal int, m *member) int {
	if h.cacheConfig != nil {
		if size, _, ok := h.cacheConfig.CacheConfig(ordinal, m.endpoint.Generation); ok {
			return size
		}
	}
	return int(h.configured.Load())
}

// alarmed reports whether an alarm is on. answered is how many requests the engine has answered, its part of those that its
// endpoint has.
func (s *source) alarmed(a alarm, now time.Time, expectedBlock int, answered int64) bool {
	switch a {
	case alarmSilent:
		return (s.is(cursor.Silent) || s.is(cursor.Initial)) && now.Sub(s.spoke) >= silentFor && answered-s.answeredThen >= silentAnswers
	case alarmUnapplied:
		return s.unapplied()
	case alarmBlockSize:
		size := int(s.primary.Load())
		return size != 0 && expectedBlock != 0 && size != expectedBlock || s.mixed.Load()
	default:
		return s.unpredicted.Load() >= unpredictedRow
	}
}

// predicted takes in what was predicted for an answer and what it reported.
func (s *source) predicted(tokens, reported int) {
	switch {
	case tokens > 0:
		s.unpredicted.Store(0)
	case reported > 0:
		s.unpredicted.Add(1)
	}
}
