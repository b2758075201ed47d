package kvevents

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
)

func TestReplayThenLive(t *testing.T) {
	for name, short := range map[string]bool{"replies with a topic": false, "replies without": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				p := r.net.newProcess(1).start()
				p.shortReply = short
				for range 5 {
					p.publish()
				}
				r.follow()
				r.expect("replaying 1.0 1.1 1.2 1.3 1.4 live")
				if !r.ready() {
					t.Error("not ready")
				}
				p.publish()
				p.publish()
				r.expect("1.5 1.6")
				if got := p.asked(); !slices.Equal(got, []uint64{0}) {
					t.Errorf("replays from %v, want one from 0", got)
				}
				want := []int64{2 + 5, 7, 5, 0, 1, 0}
				s := r.stats
				got := []int64{s.Messages.Load(), s.Applied.Load(), s.Replayed.Load(), s.Duplicates.Load(), s.Connections.Load(), s.ReplayFailures.Load()}
				if !slices.Equal(got, want) {
					t.Errorf("counted %v, want %v", got, want)
				}
				if s.Changes(cursor.ReasonReplayed) != 1 {
					t.Error("the change of state was not counted")
				}
			})
		})
	}
}

// Live messages that come while a replay runs wait for it.
func TestLiveMessagesWaitForTheReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		p.publish()
		p.publish()
		p.answer = func(start uint64, log []published, reply func(uint64, []byte)) {
			reply(0, log[0].payload)
			time.Sleep(time.Second) // the engine publishes meanwhile
			replayAll(1, log, reply)
		}
		r.follow()
		p.publish()
		p.publish()
		r.expect("replaying 1.0")
		if r.stats.Held.Load() != 2 || r.stats.HeldBytes.Load() == 0 || r.ready() {
			t.Errorf("%d held, ready %t", r.stats.Held.Load(), r.ready())
		}
		r.sleep(time.Second)
		r.expect("1.1 1.2 1.3 live")
	})
}

func TestC03_RestartWithReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		p.publish()
		p.publish()
		r.follow()
		r.expect("replaying 1.0 1.1 live")
		p.kill()
		r.expect("degraded")
		r.sleep(30 * time.Second)
		r.expect("")
		q := r.net.newProcess(2)
		q.publish()
		q.publish()
		q.start()
		r.sleep(5 * time.Second)
		r.expect("replaying forget(replay_differs) 2.0 2.1 live")
		if got := q.asked(); !slices.Equal(got, []uint64{1, 0}) {
			t.Errorf("replays from %v, want from the last one, inclusive, then from 0", got)
		}
		if r.stats.Forgets(cursor.CauseReplayDiffers) != 1 {
			t.Error("the forgetting was not counted")
		}
	})
}

func TestReconnectToTheSameProcess(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		p.publish()
		r.follow()
		r.expect("replaying 1.0 live")
		p.cut()
		p.publish() // nobody hears it
		r.sleep(time.Second)
		r.expect("degraded replaying 1.1 live")
		p.publish()
		r.expect("1.2")
	})
}

// The field report C03 without replay, over connections. Its letters are explained in package cursor.
func TestC03_WithoutReplay(t *testing.T) {
	begin := func(t *testing.T) (*rig, *process) {
		r := newRig(t)
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		r.follow()
		if !r.ready() {
			t.Error("there is nothing to wait for")
		}
		p.publish()
		p.publish()
		r.expect("1.0 live 1.1")
		return r, p
	}
	second := func(r *rig, first uint64) *process {
		q := r.net.newProcess(2)
		q.replay, q.first = "", first
		q.start()
		r.sleep(5 * time.Second)
		return q
	}
	t.Run("a", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, p := begin(t)
			p.mu.Lock()
			p.log, p.id = nil, 2 // another process behind the same connection
			p.mu.Unlock()
			p.publish()
			r.expect("forget(backwards) 2.0")
		})
	})
	t.Run("b", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, p := begin(t)
			p.kill()
			second(r, 7).publish()
			r.expect("degraded forget(reconnect) 2.7")
		})
	})
	t.Run("c", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, p := begin(t)
			p.frames([]byte(p.topic), []byte{0, 0, 0, 0, 0, 0, 0, 1}, p.log[1].payload)
			r.expect("")
			if r.stats.Duplicates.Load() != 1 {
				t.Error("the duplicate was not counted")
			}
		})
	})
	t.Run("d, the sign first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, p := begin(t)
			p.kill()
			q := second(r, 2)
			r.feed.Restarted()
			q.publish() // right after: the sign counts for it
			r.expect("degraded forget(restart) initial 2.2 degraded")
		})
	})
	t.Run("d, the message first", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, p := begin(t)
			p.kill()
			q := second(r, 2)
			q.publish()
			q.publish()
			r.expect("degraded 2.2 live 2.3")
			r.sleep(5 * time.Second)
			r.feed.Restarted()
			synctest.Wait()
			r.expect("forget(restart) 2.2 2.3 degraded")
		})
	})
	t.Run("e", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, p := begin(t)
			for range 5 {
				p.lose()
			}
			p.publish()
			r.expect("1.7 degraded")
			p.publish(clearAll)
			r.expect("1.8 live")
			if r.stats.Gaps.Load() != 1 {
				t.Error("the gap was not counted")
			}
		})
	})
}

func TestC03_GapIsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		p.publish()
		r.follow()
		p.lose()
		p.lose()
		p.publish()
		r.expect("replaying 1.0 live replaying 1.1 1.2 1.3 live")
		if got := p.asked(); !slices.Equal(got, []uint64{0, 1}) {
			t.Errorf("replays from %v, want from 0, then from what follows on the last one", got)
		}
	})
}

func TestC13_PickerYoungerThanTheEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		for range 58 {
			p.publish()
		}
		r.follow()
		if n := len(r.knownOf(0)); n != 58 || r.stateOf(0) != cursor.Live || !r.ready() {
			t.Errorf("%d messages known, %s, ready %t", n, r.stateOf(0), r.ready())
		}
		p.mu.Lock()
		p.buffer = 10 // what a second picker can have
		p.mu.Unlock()
		late := newRig(t)
		late.net = r.net
		late.options.DialContext = r.net.dial
		late.follow()
		if n := len(late.knownOf(0)); n != 10 || late.stateOf(0) != cursor.Degraded || !late.ready() {
			t.Errorf("%d messages known, %s, ready %t", n, late.stateOf(0), late.ready())
		}
	})
}

// A replay that stalls is asked for again from where it stopped, and one that cannot be had at all is given up, for a while.
func TestReplayThatStalls(t *testing.T) {
	t.Run("resumes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			p := r.net.newProcess(1).start()
			for range 4 {
				p.publish()
			}
			p.answer = func(start uint64, log []published, reply func(uint64, []byte)) {
				if start < 2 {
					reply(start, log[start].payload) // then the rest and the end are lost
					return
				}
				replayAll(start, log, reply)
			}
			r.follow()
			r.sleep(3 * replayIdle)
			r.expect("replaying 1.0 1.1 1.2 1.3 live")
			if got := p.asked(); !slices.Equal(got, []uint64{0, 1, 2}) {
				t.Errorf("replays from %v", got)
			}
			if r.stats.ReplayFailures.Load() != 2 || r.stats.Replays.Load() != 3 {
				t.Errorf("counted %d of %d", r.stats.ReplayFailures.Load(), r.stats.Replays.Load())
			}
		})
	})
	t.Run("repeats itself", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			p := r.net.newProcess(1).start()
			p.publish()
			p.publish()
			p.answer = func(start uint64, log []published, reply func(uint64, []byte)) {
				for range 100 { // nothing new for 10 s
					reply(0, log[0].payload)
					time.Sleep(100 * time.Millisecond)
				}
			}
			r.follow()
			r.sleep(readyAfter)
			if !r.ready() || r.stateOf(0) == cursor.Replaying {
				t.Errorf("ready %t, %s", r.ready(), r.stateOf(0))
			}
		})
	})
	t.Run("is given up, and heals", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			p := r.net.newProcess(1).start()
			p.publish()
			p.publish()
			p.answer = func(uint64, []published, func(uint64, []byte)) {}
			r.follow()
			p.publish()
			r.sleep(replayIdle)
			r.expect("replaying")
			r.sleep(2*replayIdle + time.Second)
			r.expect("1.2 degraded")
			if !r.ready() {
				t.Error("not ready after the last attempt")
			}
			p.publish()
			r.expect("1.3")
			p.mu.Lock()
			p.answer = nil
			p.mu.Unlock()
			r.sleep(10 * time.Second)
			r.expect("forget(rebuild) 1.0 replaying 1.1 1.2 1.3 live")
		})
	})
	t.Run("is refused", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			p := r.net.newProcess(1)
			p.replay = "10.0.0.5:9999"
			p.start()
			r.follow()
			p.publish()
			r.sleep(2 * time.Second)
			r.expect("replaying 1.0 live")
			if !r.ready() {
				t.Error("not ready")
			}
		})
	})
}

// One engine that is dead, in whatever way, holds up nothing: readiness comes in time, and the feed can be closed at once.
func TestDeadEngines(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(r *rig)
		within  time.Duration
	}{
		"everything refuses":                {func(r *rig) { r.pages.refuse = true }, time.Second},
		"HTTP hangs, the publisher refuses": {func(r *rig) { r.pages.hang = true }, 4 * time.Second},
		"the publisher is a black hole":     {func(r *rig) { r.net.hang("10.0.0.5:5557") }, 6 * time.Second},
		"the publisher accepts and says nothing": {func(r *rig) {
			r.net.newProcess(1) // no sockets
			r.net.listen("10.0.0.5:5557", r.net.mute)
		}, 6 * time.Second},
		"the replay socket is a black hole": {func(r *rig) {
			r.net.newProcess(1).start()
			r.net.hang("10.0.0.5:5657")
		}, 9 * time.Second},
		"the replay socket accepts and says nothing": {func(r *rig) {
			r.net.newProcess(1).start()
			r.net.listen("10.0.0.5:5657", r.net.mute)
		}, 9 * time.Second},
		"the replay never ends": {func(r *rig) {
			p := r.net.newProcess(1).start()
			p.answer = func(start uint64, _ []published, reply func(uint64, []byte)) {
				for seq := start; seq < start+20; seq++ {
					reply(seq, []byte{0x93, 0, 0x90, 0})
					time.Sleep(time.Second)
				}
			}
		}, readyAfter},
		"everything is a black hole": {func(r *rig) {
			r.pages.hang = true
			r.net.hang("10.0.0.5:5557")
			r.net.hang("10.0.0.5:5657")
		}, 6 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.config.Discover = true
				r.options.Client = clientOf(r.pages)
				c.prepare(r)
				begun := time.Now()
				r.follow()
				if r.ready() {
					t.Fatal("ready at once: there is nothing to test")
				}
				<-r.feed.Ready()
				if took := time.Since(begun); took > c.within {
					t.Errorf("ready after %v, want at most %v", took, c.within)
				}
				begun = time.Now()
				r.close()
				if took := time.Since(begun); took != 0 {
					t.Errorf("Close took %v", took)
				}
			})
		})
	}
}

func TestNothingToFollow(t *testing.T) {
	for name, prepare := range map[string]func(r *rig){
		"the endpoint publishes none": func(r *rig) { r.endpoint.KVEvents.Port = -1 },
		"no address":                  func(r *rig) { r.endpoint.Address = "10.0.0.5" },
		"no port":                     func(r *rig) { r.config.Port = 0 },
		"no such port":                func(r *rig) { r.endpoint.KVEvents.Port = 70_000 },
		"the engine says that it publishes none": func(r *rig) {
			r.config.Discover = true
			r.options.Client = clientOf(r.pages)
			r.pages.bodies["/kv_event_sources"] = `{"0":{"enable_kv_cache_events":false}}`
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				prepare(r)
				r.follow()
				if !r.ready() || len(r.opens) != 0 {
					t.Errorf("ready %t, opened %v", r.ready(), r.opens)
				}
			})
		})
	}
}

func TestSilentEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.ReplayPort = 0
		r.net.newProcess(1).start()
		r.follow()
		r.expect("")
		r.sleep(10 * time.Second)
		r.expect("silent")
		info := r.feed.Sources()
		if len(info) != 1 || info[0].State != cursor.Silent || info[0].Reason != cursor.ReasonSilence ||
			info[0].Publisher != "10.0.0.5:5557" || info[0].Any {
			t.Errorf("%+v", info)
		}
	})
}

// Close comes amid a replay, a dial, a question.
func TestCloseAtAnyTime(t *testing.T) {
	for after := range 40 {
		synctest.Test(t, func(t *testing.T) {
			r := newRig(t)
			r.config.Discover = true
			r.options.Client = clientOf(r.pages)
			r.pages.hang = after%2 == 0
			p := r.net.newProcess(1).start()
			for range 20 {
				p.publish()
			}
			p.answer = func(start uint64, log []published, reply func(uint64, []byte)) {
				for _, m := range log {
					reply(m.seq, m.payload)
					time.Sleep(100 * time.Millisecond)
				}
			}
			r.follow()
			r.sleep(time.Duration(after) * 97 * time.Millisecond)
			r.close()
			heard := r.take(0)
			p.publish()
			r.sleep(time.Minute)
			if later := r.take(0); later != "" {
				t.Errorf("closed after %q, and then heard %q", heard, later)
			}
		})
	}
}

// A replay socket that is another engine's does not make a feed replay for ever.
func TestReplaySocketOfAnotherEngine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		q := r.net.newProcess(2)
		q.pub = "10.0.0.9:5557"
		for range 100 {
			q.publish()
		}
		q.start()
		r.follow()
		for range 600 {
			p.publish()
			r.sleep(100 * time.Millisecond)
		}
		if n := len(q.asked()); n > 80 {
			t.Errorf("%d replays in a minute", n)
		}
		if n := r.stats.Applied.Load() - r.stats.Replayed.Load(); n < 300 {
			t.Errorf("only %d of 600 live messages were applied", n)
		}
	})
}
