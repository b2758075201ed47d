package config_test

import (
	"slices"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
)

// TestC46_FailingFastIsNotFast: one of four endpoints answers everything with a 500 in 3 ms. The profile that goes with predictions sends
// it trials only; without the filter that leaves out who fails, it draws more than its share of the requests, which is what is warned of.
// So does one that refuses with 429, which the filter takes for an answer.
func TestC46_FailingFastIsNotFast(t *testing.T) {
	const predicted = "plugins: [{type: predicted-latency-producer}]\n"
	const alone = "plugins: [{type: predicted-latency-producer}, {type: latency-scorer}, {type: max-score-picker}]\n" +
		"schedulingProfiles:\n- plugins: [{pluginRef: latency-scorer}, {pluginRef: max-score-picker}]\n"
	for name, tc := range map[string]struct {
		text        string
		status      int
		least, most int
	}{
		"as it comes":        {predicted, 500, 5, 15},
		"without the filter": {alone, 500, 130, 400},
		"429":                {predicted, 429, 130, 400},
	} {
		t.Run(name, func(t *testing.T) {
			if n := failingFast(t, tc.text, tc.status); n < tc.least || n > tc.most {
				t.Errorf("the failing one got %d of 400 requests, want %d to %d", n, tc.least, tc.most)
			}
		})
	}
}

// failingFast sends 400 requests, 20 a second, and returns how many of them the failing endpoint got.
func failingFast(t *testing.T, text string, status int) (failed int) {
	t.Helper()
	const failing = "127.0.0.1:1"
	_, s, err := config.OpenText("f.yaml", []byte(text), environment, realTypes())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	pool := scheduling.NewPool()
	pool.Update([]scheduling.EndpointSpec{{Address: failing}, {Address: "127.0.0.1:2"}, {Address: "127.0.0.1:3"}, {Address: "127.0.0.1:4"}})
	s.SnapshotChanged(pool.Snapshot())

	type event struct {
		at time.Duration
		do func(now time.Duration)
	}
	var events []event
	after := func(at time.Duration, do func(time.Duration)) {
		i, _ := slices.BinarySearchFunc(events, at, func(e event, at time.Duration) int {
			if e.at <= at {
				return -1
			}
			return 1
		})
		events = slices.Insert(events, i, event{at, do})
	}
	for i := range 400 {
		after(time.Second+time.Duration(i)*50*time.Millisecond, func(now time.Duration) {
			tokens := make([]uint32, 1000)
			for j := range tokens {
				tokens[j] = uint32(i*1000 + j)
			}
			r := &scheduling.Request{ID: uint64(i + 1), Model: "m", Operation: scheduling.OperationCompletions, Choices: 1, Stream: true, Tokens: tokens, TokenCount: len(tokens)}
			c := s.Begin(pool.Snapshot(), r, now)
			defer s.End(c)
			s.Produce(t.Context(), c)
			f, err := s.Commit(c)
			if err != nil {
				t.Error(err)
				return
			}
			if f.Endpoint.Address == failing {
				failed++
				after(now+3*time.Millisecond, func(now time.Duration) {
					f.Done(scheduling.Outcome{Status: status, Usage: scheduling.UnknownUsage}, now)
				})
				return
			}
			after(now+100*time.Millisecond, f.FirstToken)
			after(now+time.Second, func(now time.Duration) {
				f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 1000, CachedTokens: 0, CompletionTokens: 50}}, now)
			})
		})
	}
	for len(events) > 0 {
		next := events[0]
		events = events[1:]
		next.do(next.at)
	}
	return failed
}
