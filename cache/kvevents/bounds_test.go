package kvevents

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
)

// Messages beyond what may be held during a replay are dropped together, and replayed.
func TestHeldMessagesAreBounded(t *testing.T) {
	for name, c := range map[string]struct {
		payload int
		fit     int
	}{
		"in number": {0, maxHeld},
		"in bytes":  {maxHeldBytes / 16, 15}, // and a bit for what is around the tokens
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r := newRig(t)
				p := r.net.newProcess(1).start()
				p.publish()
				stalls := 0
				p.answer = func(start uint64, log []published, reply func(uint64, []byte)) {
					if stalls++; stalls == 1 {
						time.Sleep(replayIdle / 2)
					}
					replayAll(start, log, reply)
				}
				r.follow()
				event := wire.Event{Kind: wire.Stored, Hashes: []uint64{1}, Medium: strings.Repeat("m", c.payload)}
				for range c.fit {
					p.publish(event)
				}
				if held := r.stats.Held.Load(); held != int64(c.fit) || r.stats.Dropped.Load() != 0 {
					t.Fatalf("%d held, %d dropped", held, r.stats.Dropped.Load())
				}
				if bytes := r.stats.HeldBytes.Load(); bytes > maxHeldBytes {
					t.Errorf("%d bytes held", bytes)
				}
				p.publish(event)
				if held := r.stats.Held.Load(); held != 0 || r.stats.Dropped.Load() != int64(c.fit)+1 {
					t.Fatalf("%d held, %d dropped", held, r.stats.Dropped.Load())
				}
				p.publish(event)
				p.lose(event) // shows that there was another replay
				r.sleep(replayIdle)
				if n := len(r.knownOf(0)); n != 1+c.fit+3 || r.stateOf(0) != cursor.Live {
					t.Errorf("%d messages known of %d, %s", n, 1+c.fit+3, r.stateOf(0))
				}
			})
		})
	}
}

// Without replay what a young connection brings is kept, within the same bounds, for a while only.
func TestKeptMessagesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		r.follow()
		for range maxHeld {
			p.publish()
		}
		if held := r.stats.Held.Load(); held != maxHeld {
			t.Errorf("%d kept", held)
		}
		p.publish()
		p.publish()
		if held := r.stats.Held.Load(); held != 0 || len(r.knownOf(0)) != maxHeld+2 {
			t.Errorf("%d kept, %d known", held, len(r.knownOf(0)))
		}
		p.cut()
		r.sleep(time.Second)
		p.publish()
		if held := r.stats.Held.Load(); held != 1 {
			t.Errorf("%d kept of a new connection", held)
		}
		r.sleep(time.Minute)
		if held := r.stats.Held.Load(); held != 0 {
			t.Errorf("%d kept of an old connection", held)
		}
	})
}

// C13: copies that are kept of what was applied are not lost when they become too many: nothing counts as dropped, and
// nothing is said.
func TestC13_KeptMessagesAreNoDrops(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var log bytes.Buffer
		r.options.Logger = slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelWarn}))
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		r.follow()
		const messages = 6000
		for range messages {
			p.publish()
		}
		if s := r.stats; s.Dropped.Load() != 0 || s.Applied.Load() != messages || s.Held.Load() != 0 || log.Len() > 0 {
			t.Errorf("%d dropped, %d applied, %d kept:\n%s", s.Dropped.Load(), s.Applied.Load(), s.Held.Load(), log.String())
		}
	})
}

// A source hears of every message that cannot be read, as often as they come and be they held back, and nothing else
// changes by it.
func TestC02_SourcesHearOfUnreadableMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		p.answer = func(start uint64, log []published, reply func(uint64, []byte)) {
			time.Sleep(replayIdle / 2)
			replayAll(start, log[:1], reply)
		}
		p.publish()
		r.follow()
		const messages = 100
		for range messages {
			p.sendRaw(true, []byte("no batch"))
		}
		heard := strings.Repeat(" unreadable", messages)
		r.expect("replaying" + heard)
		r.sleep(replayIdle)
		r.expect("1.0 degraded") // released, and not told again
		p.publish()
		r.expect(fmt.Sprintf("1.%d", messages+1))
		last := r.feed.Sources()[0].Last
		if s := r.stats; last != messages+1 || s.BadMessages.Load() != messages || s.BadEvents.Load() != 0 || s.Applied.Load() != messages+2 {
			t.Errorf("up to %d: %d unreadable, %d bad events, %d applied", last, s.BadMessages.Load(), s.BadEvents.Load(), s.Applied.Load())
		}
	})
}

// All ranks of an endpoint share a bound, however many an engine says that it has; the others go on with what they hold.
func TestHeldMessagesOfAllRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		r.follow()
		payload := strings.Repeat("m", 1<<20)
		for rank := range 100 {
			b := &wire.Batch{Rank: rank, HasRank: true, Events: []wire.Event{{Kind: wire.Stored, Hashes: []uint64{1}, Medium: payload}}}
			p.sendRaw(true, wire.AppendBatch(nil, b))
			if held := r.stats.HeldBytes.Load(); held > maxHeldOfAll {
				t.Fatalf("%d bytes held of %d ranks", held, rank+1)
			}
		}
		held, dropped := r.stats.Held.Load(), r.stats.Dropped.Load()
		if held < 60 || held == 100 || dropped != 0 || r.stats.Applied.Load() != 100 {
			t.Errorf("%d held, %d dropped, %d applied", held, dropped, r.stats.Applied.Load())
		}
		r.sleep(time.Minute)
		if held := r.stats.Held.Load(); held != 0 || r.feed.held != 0 {
			t.Errorf("%d held, %d bytes, of an old connection", held, r.feed.held)
		}
	})
}

// The frames and payloads of the field report C02 that cannot be read, and the topics that can.
func TestC02_BadMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := kvtest.Payloads(t)
		r := newRig(t)
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		r.follow()
		number := func(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }
		p.frames([]byte("t"), number(0), k["K01"])
		r.expect("0.1 live")
		for _, frames := range [][][]byte{
			{number(1), k["K02"]},
			{[]byte("t"), number(1), k["K02"], nil},
			{[]byte("t"), {0, 0, 0, 1}, k["K02"]},
			{[]byte("t"), nil, k["K02"]},
			{[]byte("t"), number(wire.ReplayEnd), k["K02"]},
		} {
			p.frames(frames...)
		}
		r.expect(strings.TrimSpace(strings.Repeat("unreadable ", 5))) // they have no place in the sequence
		for i, topic := range []string{"", "kv-events", "kv@10.0.0.5:8000@model-x"} {
			p.frames([]byte(topic), number(uint64(1+i)), k["K02"])
		}
		r.expect("0.1 0.1 0.1")
		p.frames([]byte("t"), number(4), k["K02"][:len(k["K02"])/2])
		r.expect("unreadable degraded") // it has, and what it said is lost
		p.frames([]byte("t"), number(5), []byte("no batch"))
		p.frames([]byte("t"), number(6), k["K02"])
		p.frames([]byte("t"), number(7), k["K08"])
		r.expect("unreadable 0.1 0.1")
		p.frames([]byte("t"), number(8), k["K10"])
		r.expect("0.1 live")
		got := map[string]int64{}
		for _, f := range Faults() {
			got[f.String()] = r.stats.Faults(f)
		}
		if got["frames"] != 2 || got["sequence"] != 3 || got["truncated"] != 1 || got["batch"] != 1 || got["rank"] != 0 {
			t.Errorf("counted %v", got)
		}
		if s := r.stats; s.BadMessages.Load() != 7 || s.UnknownEvents.Load() != 1 || s.BadEvents.Load() != 0 {
			t.Errorf("counted %d bad messages, %d unknown events, %d bad ones", s.BadMessages.Load(), s.UnknownEvents.Load(), s.BadEvents.Load())
		}
	})
}

// A message that cannot be read is not asked for again and again, live or in a replay.
func TestUnreadableMessageInAReplay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		p := r.net.newProcess(1).start()
		p.publish()
		p.sendRaw(true, []byte("no batch"))
		p.publish()
		r.follow()
		r.expect("replaying 1.0 unreadable 1.2 degraded")
		r.sleep(time.Hour)
		r.expect("")
		if n := len(p.asked()); n != 1 {
			t.Errorf("%d replays", n)
		}
	})
}

// A socket of several ranks does not tell whose an unreadable message is: the gap does.
func TestUnreadableMessageOfSeveralRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.ReplayPort = 0
		p := r.net.newProcess(1)
		p.replay = ""
		p.start()
		r.follow()
		q := r.net.newProcess(2)
		q.rank, q.subs = 1, p.subs
		p.publish()
		q.publish()
		p.sendRaw(true, []byte("no batch"))
		p.publish()
		q.publish()
		r.expectOf(0, "1.0 live 1.2 degraded")
		r.expectOf(1, "2.0 live 2.1")
	})
}

func TestTopicPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		r.config.ReplayPort, r.config.Topic = 0, "kv@"
		p := r.net.newProcess(1)
		p.start()
		r.follow()
		p.frames([]byte("other"), binary.BigEndian.AppendUint64(nil, 7), []byte("no batch"))
		p.topic = "kv@10.0.0.5:8000@m"
		p.publish()
		r.expect("1.0 live")
		if r.stats.BadMessages.Load() != 0 {
			t.Error("a message of another topic was read")
		}
	})
}

// The log says the same kind of thing once a minute.
func TestLogIsRateLimited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRig(t)
		var log bytes.Buffer
		r.options.Logger = slog.New(slog.NewTextHandler(&log, nil))
		r.config.ReplayPort = 0
		p := r.net.newProcess(1).start()
		r.follow()
		for range 100 {
			p.frames([]byte("one"))
		}
		if n := strings.Count(log.String(), "cannot be read"); n != 1 {
			t.Errorf("said %d times:\n%s", n, log.String())
		}
		r.sleep(quiet)
		p.frames([]byte("one"))
		if n := strings.Count(log.String(), "cannot be read"); n != 2 {
			t.Errorf("said %d times after a minute", n)
		}
		p.kill()
		r.sleep(10 * time.Minute) // of failing dials
		if n := strings.Count(log.String(), "cannot be reached"); n < 9 || n > 11 {
			t.Errorf("said %d times in ten minutes", n)
		}
		if !strings.Contains(log.String(), "endpoint=10.0.0.5:8000") {
			t.Errorf("no endpoint in %s", log.String())
		}
	})
}

// snapshots is a protocol by which an engine hands out its cache.
type snapshots struct {
	batches [][]byte
	next    uint64
	err     error
	hang    bool
	asked   int
}

func (s *snapshots) Snapshot(ctx context.Context, _ *scheduling.Endpoint, rank int) ([][]byte, uint64, error) {
	s.asked++
	if s.hang {
		<-ctx.Done()
		return nil, 0, ctx.Err()
	}
	return s.batches, s.next, s.err
}

func TestSnapshots(t *testing.T) {
	batch := func(seq int) []byte {
		return wire.AppendBatch(nil, &wire.Batch{Time: float64(900_000 + seq), HasRank: true})
	}
	begin := func(t *testing.T, s *snapshots) (*rig, *process) {
		r := newRig(t)
		r.options.Snapshots = s
		p := r.net.newProcess(1)
		p.buffer = 3 // the replay is too short
		for range 10 {
			p.publish()
		}
		p.start()
		r.follow()
		return r, p
	}
	t.Run("taken", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			r, p := begin(t, &snapshots{batches: [][]byte{batch(1), batch(2)}, next: 10})
			p.publish()
			r.expect("replaying 9.1 9.2 live 1.10")
			if n := len(p.asked()); n != 0 || r.stats.Snapshots.Load() != 1 || !r.ready() {
				t.Errorf("%d replays, %d snapshots, ready %t", n, r.stats.Snapshots.Load(), r.ready())
			}
			p.lose()
			p.publish()
			r.expect("replaying 1.11 1.12 live") // a gap is the replay's business
		})
	})
	for name, s := range map[string]*snapshots{
		"not offered": {err: errors.ErrUnsupported},
		"failed":      {err: errors.New("no")},
		"unreadable":  {batches: [][]byte{batch(1), []byte("no batch")}, next: 10},
		"too large":   {batches: [][]byte{make([]byte, maxSnapshot), batch(1)}, next: 10},
		"hangs":       {hang: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				r, _ := begin(t, s)
				r.sleep(snapshotTimeout)
				r.expect("replaying 1.7 1.8 1.9 degraded")
				if s.asked != 1 || r.stats.Snapshots.Load() != 0 {
					t.Errorf("asked %d times, %d taken", s.asked, r.stats.Snapshots.Load())
				}
			})
		})
	}
	t.Run("without a replay socket", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := &snapshots{batches: [][]byte{batch(1)}, next: 10}
			r := newRig(t)
			r.options.Snapshots = s
			r.config.ReplayPort = 0
			p := r.net.newProcess(1)
			p.replay = ""
			for range 10 {
				p.publish()
			}
			p.start()
			r.follow()
			p.publish()
			r.expect("replaying 9.1 live 1.10")
			p.lose()
			p.publish()
			r.sleep(10 * time.Second)
			// The gap cannot be filled; a snapshot takes its place.
			r.expect("replaying 1.12 degraded forget(snapshot) 9.1 live")
		})
	})
}

type deafSink struct{ applied int }

func (s *deafSink) Apply(*wire.Batch)   { s.applied++ }
func (s *deafSink) Forget(cursor.Cause) {}
func (s *deafSink) State(cursor.State)  {}

// A live message costs no allocation.
func TestLiveMessagesAllocateNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	sink := &deafSink{}
	c := kvtest.Captures(t, "kv_sha256_b32")[0]
	f := Follow(&scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: "127.0.0.1:1", KVEvents: scheduling.KVEvents{ReplayPort: -1}}},
		Config{}, Options{}, func(int) Sink { return sink })
	defer f.Close()
	l := &link{feed: f, address: "here", stop: func() {}}
	l.Connected(nil)
	seq := uint64(0)
	number := make([]byte, 8)
	frames := [][]byte{c.Topic, number, c.Payload}
	send := func() {
		binary.BigEndian.PutUint64(number, seq)
		l.Message(frames)
		seq++
	}
	for range maxHeld + 2 { // what is kept of a young connection is over
		send()
	}
	before := sink.applied
	if n := testing.AllocsPerRun(200, send); n != 0 {
		t.Errorf("%v allocations a message", n)
	}
	if sink.applied != before+201 {
		t.Errorf("%d messages applied of %d", sink.applied-before, 201)
	}
}
