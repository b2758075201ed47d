package kvevents

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/scheduling"
)

// inn is an acceptor without a socket: engines visit it by calling its handlers.
type inn struct {
	*Acceptor
	t *testing.T
	r *rig // for its network and counters
}

func newInn(t *testing.T) *inn {
	return &inn{newAcceptor(slog.New(slog.DiscardHandler)), t, newRig(t)}
}

// follow begins to follow an endpoint whose engine connects by itself.
func (h *inn) follow(address string, change ...func(e *scheduling.Endpoint, c *Config)) (*Feed, *recorder) {
	rec := newRecorder(h.t)
	e := &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: address, KVEvents: scheduling.KVEvents{Bind: true}}}
	c := Config{Port: 5557}
	for _, f := range change {
		f(e, &c)
	}
	f := Follow(e, c, Options{Acceptor: h.Acceptor, Stats: h.r.stats, DialContext: h.r.net.dial}, rec.open)
	h.t.Cleanup(func() { f.Close() })
	synctest.Wait()
	return f, rec
}

// visitor is a publisher that connected.
type visitor struct {
	zmtp.Handler
	topic string
	id    int
	rank  int
	seq   uint64
}

func (h *inn) visit(remote, topic string, id int) *visitor {
	address := net.TCPAddrFromAddrPort(netip.MustParseAddrPort(remote))
	v := &visitor{Handler: h.handler(address), topic: topic, id: id}
	v.Connected(address)
	return v
}

func (v *visitor) publish() {
	b := &wire.Batch{Time: float64(v.id*100_000) + float64(v.seq), Rank: v.rank, HasRank: true}
	v.Message([][]byte{[]byte(v.topic), binary.BigEndian.AppendUint64(nil, v.seq), wire.AppendBatch(nil, b)})
	v.seq++
}

func (v *visitor) leave() { v.Disconnected(net.ErrClosed) }

func TestGuestByAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		_, b := h.follow("10.0.0.6:8000")
		v := h.visit("10.0.0.5:41234", "", 1)
		w := h.visit("[::ffff:10.0.0.6]:41234", "kv@10.0.0.5@m", 2) // which names no port
		v.publish()
		w.publish()
		v.publish()
		if got, want := a.take(0)+"|"+b.take(0), "1.0 live 1.1|2.0 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		v.leave()
		v = h.visit("10.0.0.5:41235", "", 3)
		v.publish()
		if got, want := a.take(0), "degraded forget(reconnect) 3.0 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if n := h.r.stats.Unattributed.Load(); n != 0 {
			t.Errorf("%d messages of nobody", n)
		}
	})
}

func TestGuestByTopic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		_, b := h.follow("10.0.0.5:8001", func(e *scheduling.Endpoint, _ *Config) { e.Rank = 1 })
		v := h.visit("10.0.0.5:41234", "kv@10.0.0.5:8000@m", 1)
		w := h.visit("10.0.0.5:41235", "kv@10.0.0.5:8001@m", 2)
		w.rank = 1
		v.publish()
		w.publish()
		if got, want := a.take(0)+"|"+b.take(1), "1.0 live|2.0 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		for _, topic := range []string{"", "kv@", "kv@10.0.0.5@m", "kv@10.0.0.9:8000@m", "xx@10.0.0.5:8000@m"} {
			h.visit("10.0.0.5:41236", topic, 3).publish()
		}
		if n := h.r.stats.Unattributed.Load(); n != 5 {
			t.Errorf("%d messages of nobody, want 5", n)
		}
		v.leave()
		w.leave()
		if a.stateOf(0) != cursor.Degraded || b.stateOf(1) != cursor.Degraded {
			t.Errorf("after they left: %s, %s", a.stateOf(0), b.stateOf(1))
		}
	})
}

// Two engines share an address, and only one of them is an endpoint: what the other one says is nobody's, whoever of them
// connects first, and however its topic writes the address.
func TestGuestOfANeighbour(t *testing.T) {
	for _, topic := range []string{
		"kv@10.0.0.5:8001@m", "kv@[::ffff:10.0.0.5]:8001@m", "kv@0.0.0.0:8001@m", "kv@[::]:8001@m", "kv@127.0.0.1:8001@m",
		"kv@10.0.0.6:8000@m", // which contradicts the connection
	} {
		synctest.Test(t, func(t *testing.T) {
			h := newInn(t)
			_, a := h.follow("10.0.0.5:8000")
			w := h.visit("10.0.0.5:41235", topic, 2)
			v := h.visit("10.0.0.5:41234", "kv@"+strings.Replace(topic[3:], "8001", "8000", 1), 1)
			v.topic = "kv@10.0.0.5:8000@m"
			w.publish()
			v.publish()
			w.publish()
			v.publish()
			w.leave()
			v.publish()
			if got, want := a.take(0), "1.0 live 1.1 1.2"; got != want {
				t.Errorf("%s: heard %q, want %q", topic, got, want)
			}
			if s := h.r.stats; s.Unattributed.Load() != 2 || s.RankConflicts.Load() != 0 {
				t.Errorf("%s: %d messages of nobody, %d conflicts", topic, s.Unattributed.Load(), s.RankConflicts.Load())
			}
			v.leave()
			if s := h.r.stats; s.Connections.Load() != s.ConnectFailures.Load() || a.stateOf(0) != cursor.Degraded {
				t.Errorf("%s: %d connections, %d ended, %s", topic, s.Connections.Load(), s.ConnectFailures.Load(), a.stateOf(0))
			}
		})
	}
}

// An engine that listens on every address says so in its topic: its connection tells the address.
func TestGuestOfEveryAddress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		_, b := h.follow("10.0.0.5:8001", func(e *scheduling.Endpoint, _ *Config) { e.Rank = 1 })
		_, c := h.follow("127.0.0.2:8000")
		for _, x := range []struct {
			remote, topic string
			rank          int
			rec           *recorder
			want          string
		}{
			{"10.0.0.5:41234", "kv@0.0.0.0:8000@m", 0, a, "1.0 live"},
			{"10.0.0.5:41235", "kv@[::]:8001@m", 1, b, "1.0 live"},
			{"127.0.0.1:41236", "kv@127.0.0.2:8000@m", 0, c, "1.0 live"}, // loopback tells nothing
		} {
			v := h.visit(x.remote, x.topic, 1)
			v.rank = x.rank
			v.publish()
			if got := x.rec.take(x.rank); got != x.want {
				t.Errorf("%s from %s: heard %q, want %q", x.topic, x.remote, got, x.want)
			}
		}
	})
}

// Whoever can connect may send any topics: of one connection nothing is kept but the last one, and of that not all.
func TestTopicsOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		many := h.visit("10.0.0.99:41234", "", 1)
		const number = 10_000
		for i := range number {
			many.topic = fmt.Sprintf("kv@10.0.0.7:%d@m", i)
			many.publish()
		}
		long := h.visit("10.0.0.99:41235", "kv@10.0.0.5:8000@"+strings.Repeat("m", 1<<20), 1)
		long.publish()
		long.publish()
		if got, want := a.take(0), "1.0 live 1.1"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		long.topic = "kv@" + strings.Repeat("1", maxTopicBytes) + "@10.0.0.5:8000"
		long.publish()
		if n := h.r.stats.Unattributed.Load(); n != number+1 {
			t.Errorf("%d messages of nobody", n)
		}
		for v, stays := range map[*visitor]int{many: 0, long: 1} {
			if g, ok := v.Handler.(*guest); !ok || len(g.stays) != stays || len(g.topic) > maxTopicBytes || cap(g.topic) > 2*maxTopicBytes {
				t.Errorf("%d feeds and %d bytes of a topic are kept", len(g.stays), cap(g.topic))
			}
		}
	})
}

// A message that cannot be read is of whom the one before was.
func TestUnreadableMessageOfAGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		h.follow("10.0.0.5:8000")
		v := h.visit("10.0.0.5:41234", "", 1)
		v.Message([][]byte{[]byte("one")})
		w := h.visit("10.0.0.5:41235", "kv@10.0.0.5:8001@m", 2)
		w.publish()
		w.Message([][]byte{[]byte("one")})
		if s := h.r.stats; s.Faults(FaultFrames) != 1 || s.Unattributed.Load() != 2 {
			t.Errorf("%d unreadable, %d of nobody", s.Faults(FaultFrames), s.Unattributed.Load())
		}
	})
}

// Something between engines and this process may pass on what several publish, on one connection.
func TestGuestForSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		_, b := h.follow("[fd00::6]:8000")
		v := h.visit("10.0.0.99:41234", "kv@10.0.0.5:8000@m", 1)
		w := &visitor{Handler: v.Handler, topic: "kv@[fd00::6]:8000@m", id: 2}
		again := &visitor{Handler: v.Handler, topic: "kv@10.0.0.5:8000@another", id: 1, seq: 2}
		v.publish()
		w.publish()
		v.publish()
		w.publish()
		again.publish()
		if got, want := a.take(0)+"|"+b.take(0), "1.0 live 1.1 1.2|2.0 live 2.1"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		v.leave()
		if a.take(0) != "degraded" || b.take(0) != "degraded" {
			t.Error("not told of the end")
		}
		if n := h.r.stats.Connections.Load() - h.r.stats.ConnectFailures.Load(); n != 0 {
			t.Errorf("%d connections more than ended", n)
		}
	})
}

// Whose a connection is may change while it stands.
func TestGuestWhenFeedsComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		v := h.visit("10.0.0.5:41234", "kv@10.0.0.5:8000@m", 1)
		v.publish() // of nobody yet
		f, a := h.follow("10.0.0.5:8000")
		v.publish()
		if got, want := a.take(0), "1.1 live"; got != want {
			t.Errorf("heard %q, want %q", got, want) // 1 may be the first number of a stream
		}
		g, b := h.follow("10.0.0.5:8001", func(e *scheduling.Endpoint, _ *Config) { e.Rank = 1 }) // now the topic decides
		v.publish()
		if got, want := a.take(0), "1.2"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
		v.topic = ""
		v.publish() // the address is the other one's alone now
		if got := a.take(0); got != "" {
			t.Errorf("heard %q after Close", got)
		}
		if got, want := b.take(1), "1.3 degraded"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		next, c := h.follow("10.0.0.5:8001") // a later instance takes over
		v.publish()
		if got, want := c.take(0), "1.4 degraded"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		g.Close() // which the earlier one's end does not change
		v.publish()
		if got, want := c.take(0), "1.5"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		next.Close()
		v.publish()
		if n := h.r.stats.Unattributed.Load(); n != 1 {
			t.Errorf("%d messages of nobody", n)
		}
		v.leave()
		if len(h.feeds) != 0 || len(h.byIP) != 0 {
			t.Errorf("left: %v, %v", h.feeds, h.byIP)
		}
	})
}

// Several ranks connect from one address, and come back.
func TestC23_GuestsOfSeveralRanks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		v := h.visit("10.0.0.5:41234", "", 1)
		w := h.visit("10.0.0.5:41235", "", 2)
		w.rank = 1
		v.publish()
		w.publish()
		v.publish()
		w.publish()
		if got, want := a.take(0)+"|"+a.take(1), "1.0 live 1.1|2.0 live 2.1"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		// One comes back before the end of its old connection was noticed: the newest connection speaks.
		u := h.visit("10.0.0.5:41236", "", 2)
		u.rank, u.seq = 1, 2
		u.publish()
		w.publish()
		w.leave()
		u.publish()
		if got, want := a.take(1), "degraded 2.2 live 2.3"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if n := h.r.stats.RankConflicts.Load(); n != 1 {
			t.Errorf("%d conflicts", n)
		}
		if got := a.take(0); got != "" {
			t.Errorf("the other rank heard %q", got)
		}
	})
}

// An engine is back before the end of its old connection was noticed, and says nothing.
func TestGuestIsBackInSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		p := h.r.net.newProcess(1).start()
		_, a := h.follow("10.0.0.5:8000", func(e *scheduling.Endpoint, _ *Config) { e.KVEvents.ReplayPort = 5657 })
		p.publish() // live too
		v := h.visit("10.0.0.5:41234", "", 1)
		v.publish()
		synctest.Wait()
		p.publish() // unheard
		h.visit("10.0.0.5:41235", "", 1)
		v.leave()
		synctest.Wait()
		if got, want := a.take(0), "replaying 1.0 live degraded replaying 1.1 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	})
}

// A connection that stands, and on which nothing is said, is told to a feed that comes later: its past is to be had.
func TestGuestThatWaited(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		p := h.r.net.newProcess(1).start()
		p.publish()
		v := h.visit("10.0.0.5:41234", "", 1)
		f, a := h.follow("10.0.0.5:8000", func(e *scheduling.Endpoint, _ *Config) { e.KVEvents.ReplayPort = 5657 })
		if got, want := a.take(0), "replaying 1.0 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		select {
		case <-f.Ready():
		default:
			t.Error("not ready")
		}
		v.leave()
		f.Close()
		if len(h.byIP) != 0 {
			t.Errorf("left: %v", h.byIP)
		}
	})
}

// The replay socket of an engine that connects listens all the same.
func TestGuestIsReplayed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		p := h.r.net.newProcess(1).start()
		p.publish()
		p.publish()
		f, a := h.follow("10.0.0.5:8000", func(e *scheduling.Endpoint, _ *Config) { e.KVEvents.ReplayPort = 5657 })
		select {
		case <-f.Ready():
			t.Error("ready before the engine had time to connect")
		default:
		}
		p.publish() // live too
		v := h.visit("10.0.0.5:41234", "", 1)
		v.seq = 2
		v.publish()
		synctest.Wait()
		if got, want := a.take(0), "replaying 1.0 1.1 1.2 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if h.r.net.dialled(p.pub) != 0 {
			t.Error("the publisher was dialled")
		}
		select {
		case <-f.Ready():
		default:
			t.Error("not ready")
		}
	})
}

func TestGuestThatNeverComes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		begun := time.Now()
		f, _ := h.follow("10.0.0.5:8000")
		<-f.Ready()
		if took := time.Since(begun); took != patience {
			t.Errorf("ready after %v", took)
		}
	})
}

// With an address for engines that connect, those that are not known to do so are dialled as well.
func TestGuestOrHost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000", func(e *scheduling.Endpoint, c *Config) { e.KVEvents.Bind, c.Bind = false, true })
		if h.r.net.dialled("10.0.0.5:5557") == 0 {
			t.Error("not dialled")
		}
		h.visit("10.0.0.5:41234", "", 1).publish()
		if got, want := a.take(0), "1.0 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
	})
}

func TestNamed(t *testing.T) {
	for topic, want := range map[string]string{
		"kv@10.0.0.5:8000@model-x": "10.0.0.5:8000", "kv@10.0.0.5:8000": "10.0.0.5:8000", "kv@[::1]:80@a@b": "[::1]:80",
		"kv@[::ffff:10.0.0.5]:80@": "10.0.0.5:80", "kv@host:80@m": "", "": "", "kv-events": "", "kv@10.0.0.5@m": "",
	} {
		got := ""
		if address, ok := named(topic); ok {
			got = address.String()
		}
		if got != want {
			t.Errorf("%q: got %q, want %q", topic, got, want)
		}
	}
}

func FuzzNamed(f *testing.F) {
	f.Add("kv@10.0.0.5:8000@model-x")
	f.Add("kv@[fd00::5%eth0]:8000@m")
	f.Fuzz(func(t *testing.T, topic string) {
		if address, ok := named(topic); ok {
			if again, ok := named("kv@" + address.String() + "@m"); !ok || again != address {
				t.Errorf("%q names %s, which names %s", topic, address, again)
			}
		}
	})
}

// An endpoint by a name has no address to compare.
func TestGuestOfANamedEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		f, rec := h.follow("engine:8000")
		h.visit("10.0.0.5:41234", "kv@engine:8000@m", 1).publish()
		if got := rec.take(0); got != "" || h.r.stats.Unattributed.Load() != 0 && len(h.feeds) != 0 {
			t.Errorf("heard %q", got)
		}
		f.Close()
		if !slices.Equal(rec.opens, []int{0}) {
			t.Errorf("opened %v", rec.opens)
		}
	})
}
