package render

import (
	"bytes"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBreaker(t *testing.T) {
	var b breaker
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := start
	fail := func() bool {
		ok, trial := b.enter(now)
		if !ok {
			t.Fatal("nothing goes through")
		}
		return b.leave(trial, failed, now) == opened
	}
	refuses := func(when string) {
		t.Helper()
		if ok, _ := b.enter(now); ok {
			t.Fatalf("a call goes through %s", when)
		}
	}
	for range failuresToOpen - 1 {
		if fail() {
			t.Fatal("it opened too early")
		}
	}
	if _, trial := b.enter(now); b.leave(trial, succeeded, now) != noTurn || b.state(now) != Closed {
		t.Fatal("a success opened it")
	}
	for i := range failuresToOpen {
		if opens := fail(); opens != (i == failuresToOpen-1) {
			t.Fatalf("failure %d after a success: opened %v", i+1, opens)
		}
	}
	if b.state(now) != Open {
		t.Fatalf("%v after %d failures", b.state(now), failuresToOpen)
	}
	for open := firstOpen; ; open = min(2*open, longestOpen) {
		now = now.Add(open - 1)
		refuses("before the time of a trial")
		now = now.Add(1)
		if b.state(now) != HalfOpen {
			t.Fatalf("%v after %v", b.state(now), open)
		}
		ok, trial := b.enter(now)
		if !ok || !trial {
			t.Fatalf("no trial after %v", open)
		}
		refuses("beside a trial")
		if open == longestOpen && now.Sub(start) > 5*longestOpen {
			if b.leave(trial, succeeded, now) != closed {
				t.Fatal("a trial that succeeded does not say that it closes it")
			}
			break
		}
		if b.leave(trial, failed, now) != noTurn {
			t.Fatal("a failed trial opens what is open")
		}
	}
	if ok, trial := b.enter(now); !ok || trial || b.state(now) != Closed {
		t.Fatal("a trial that succeeded does not close it")
	}
}

func TestBreakerTrialCalledOff(t *testing.T) {
	var b breaker
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	for range failuresToOpen {
		b.leave(false, failed, now)
	}
	b.leave(false, failed, now) // a call from before it opened: no longer wait
	now = now.Add(firstOpen)
	_, trial := b.enter(now)
	b.leave(trial, noVerdict, now)
	if ok, again := b.enter(now); !ok || !again {
		t.Fatal("a trial that was called off is not followed by another")
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for r := ReasonNone; r <= ReasonCanceled; r++ {
		if name := r.String(); name == "" || name == "unknown" || seen[name] {
			t.Errorf("reason %d is called %q", r, name)
		} else {
			seen[name] = true
		}
	}
	if Reason(200).String() != "unknown" || State(9).String() != "unknown" || HalfOpen.String() != "half_open" {
		t.Error("names of what is not there")
	}
}

// What a server does to be left alone, and that it is back, is told once each, with the cause.
func TestSaysWhatServersDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		status := http.StatusServiceUnavailable
		c := NewClient(Options{
			Transport: roundTripper(func(*http.Request) (*http.Response, error) {
				if status == http.StatusOK {
					return answered(status, answerText), nil
				}
				return answered(status, `{"error":{"message":"The model m does not exist."}}`), nil
			}),
			Concurrency: 4, MaxBodyBytes: 1 << 20, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		})
		s := only(t, "http://engine")
		ask := func(times int) {
			for range times {
				_, _ = c.NewCall().Do(t.Context(), s, chatQuery()) // what it says is what is looked at
			}
		}
		said := func(what string, times int) {
			t.Helper()
			if got := strings.Count(log.String(), what); got != times {
				t.Errorf("%q was said %d times, want %d:\n%s", what, got, times, log.String())
			}
		}
		ask(2 * failuresToOpen)
		said("keeps failing", 1)
		said("status 503", 1)
		status = http.StatusOK
		time.Sleep(firstOpen)
		ask(3)
		said("answers again", 1)
		status = http.StatusNotFound
		ask(3)
		said("does not know the model", 1)
		said("The model m does not exist", 1)
		time.Sleep(missingFor)
		ask(1)
		said("does not know the model", 2)
		said("keeps failing", 1)
	})
}
