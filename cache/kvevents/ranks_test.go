package kvevents

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
)

// The field report C23 is data-parallel ranks, which number their messages each for itself.

func TestC23_APortForEachRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.Ranks = 2
		p := r.net.newProcess(1).start()
		q := r.net.newProcess(2)
		q.rank, q.pub, q.replay = 1, "10.0.0.5:5558", "10.0.0.5:5658"
		q.publish()
		q.start()
		p.publish()
		r.follow()
		r.expectOf(0, "replaying 1.0 live")
		r.expectOf(1, "replaying 2.0 live")
		q.publish()
		p.publish()
		p.kill()
		q.publish()
		r.expectOf(0, "1.1 degraded")
		r.expectOf(1, "2.1 2.2")
		if !slices.Equal(r.opens, []int{0, 1}) {
			t.Errorf("opened %v", r.opens)
		}
	})
}

func TestC23_AllRanksOnOneSocket(t *testing.T) {
	for name, ranks := range map[string]int{"told": 2, "not told": 0} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				r.config.ReplayPort, r.config.Ranks = 0, ranks // the second rank's port never opens
				p := r.net.newProcess(1)
				p.replay = ""
				p.start()
				r.follow()
				q := r.net.newProcess(2)
				q.rank, q.subs = 1, p.subs
				p.publish()
				q.publish()
				p.publish()
				q.publish()
				r.expectOf(0, "1.0 live 1.1")
				r.expectOf(1, "2.0 live 2.1")
				p.cut()
				r.expectOf(0, "degraded")
				r.expectOf(1, "degraded")
				r.sleep(time.Second)
				q.publish()
				r.expectOf(0, "")
				r.expectOf(1, "2.2 live")
				r.sleep(10 * time.Second)
				if !r.ready() || r.stats.Forgets(cursor.CauseBackwards)+r.stats.Forgets(cursor.CauseReconnect) != 0 {
					t.Errorf("ready %t; a restart was seen where there was none", r.ready())
				}
			})
		})
	}
}

// A rank that was only heard of is replayed from the socket that belongs to its publisher, which holds other ranks' past
// as well.
func TestC23_AllRanksOnOneReplaySocket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		q := r.net.newProcess(2)
		q.rank, q.subs = 1, p.subs
		for range 3 {
			p.publish()
			q.publish()
		}
		p.answer = func(start uint64, log []published, reply func(uint64, []byte)) {
			for i, m := range log {
				if m.seq >= start {
					reply(m.seq, m.payload)
					reply(q.log[i].seq, q.log[i].payload)
				}
			}
			replayAll(1<<40, nil, reply)
		}
		r.follow()
		r.expectOf(0, "replaying 1.0 1.1 1.2 live")
		p.mu.Lock()
		p.log = append(p.log, p.log[2]) // as many as the other rank has
		p.log[3].seq = 3
		p.mu.Unlock()
		q.publish()
		r.expectOf(1, "replaying 2.0 2.1 2.2 2.3 live")
		r.expectOf(0, "")
	})
}

// A publisher may call itself otherwise than was assumed; the source stays one.
func TestOnlyPublisherCallsItselfOtherwise(t *testing.T) {
	for name, replay := range map[string]bool{"live": false, "replayed": true} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				p := r.net.newProcess(1)
				p.rank = 3
				p.start()
				if replay {
					p.publish()
				}
				r.follow()
				r.take(0)
				p.publish()
				p.publish()
				if got := r.take(0); len(r.opens) != 1 || r.stateOf(0) != cursor.Live || got == "" {
					t.Errorf("opened %v, %s, heard %q", r.opens, r.stateOf(0), got)
				}
				if info := r.feed.Sources(); info[0].Rank != 3 {
					t.Errorf("%+v", info)
				}
				p.cut()
				r.sleep(time.Second)
				p.publish()
				if n := len(r.knownOf(0)); r.stateOf(0) != cursor.Live || len(r.opens) != 1 || n < 3 {
					t.Errorf("after a reconnect: opened %v, %s, %d known", r.opens, r.stateOf(0), n)
				}
			})
		})
	}
}

// Batches without a rank are the socket's.
func TestBatchesWithoutARank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.endpoint.Rank = 2
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.pub, p.replay, p.noRank = "10.0.0.5:5559", "", true
		p.start()
		r.follow()
		p.publish()
		r.expectOf(2, "1.0 live")
	})
}

// Two publishers that both call themselves rank 0: each is what it is configured as, and neither disturbs the other.
func TestTwoPublishersOfOneRank(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.Ranks, r.config.ReplayPort = 2, 0
		p := r.net.newProcess(1).start()
		q := r.net.newProcess(2)
		q.pub, q.replay = "10.0.0.5:5558", ""
		q.start()
		r.follow()
		for range 3 {
			p.publish()
			q.publish()
		}
		r.expectOf(0, "1.0 live 1.1 1.2")
		r.expectOf(1, "2.0 live 2.1 2.2")
		if r.stats.RankConflicts.Load() != 3 {
			t.Errorf("%d conflicts counted", r.stats.RankConflicts.Load())
		}
	})
}

func TestTooManyRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		r.follow()
		p.publish()
		for rank := 1; rank <= maxRanks; rank++ {
			q := r.net.newProcess(2)
			q.rank, q.subs = rank, p.subs
			q.publish()
		}
		if len(r.opens) != maxRanks || r.stats.Faults(FaultRank) != 1 || r.stats.BadMessages.Load() != 1 {
			t.Errorf("%d ranks opened, %d messages of further ones", len(r.opens), r.stats.Faults(FaultRank))
		}
		p.publish()
		r.expectOf(0, "1.0 live 1.1")
	})
}

// More ranks than there may be, in the configuration or by the engine's word, are cut off.
func TestTooManyRanksConfigured(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.Ranks = maxRanks + 10
		r.follow()
		if len(r.opens) != maxRanks {
			t.Errorf("%d ranks opened", len(r.opens))
		}
		r.sleep(readyAfter)
		if !r.ready() {
			t.Error("not ready")
		}
	})
}
