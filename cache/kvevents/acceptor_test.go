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
		w := h.visit("[::ffff:10.0.0.6]:41234", "kv@10.0.0.5:8000@m", 2) // the address goes before the topic
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

// Whoever can connect may send any topics: they are bounded in number and in length.
func TestTopicsOfNobody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		many := h.visit("10.0.0.99:41234", "", 1)
		for i := range 2 * maxTopics {
			many.topic = fmt.Sprintf("kv@10.0.0.7:%d@m", i)
			many.publish()
		}
		long := h.visit("10.0.0.99:41235", "kv@10.0.0.5:8000@", 1)
		long.topic += strings.Repeat("m", maxTopicBytes-len(long.topic))
		long.publish()
		for range 10 {
			long.topic += "m"
			long.publish()
		}
		if got, want := a.take(0), "1.0 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if n := h.r.stats.Unattributed.Load(); n != 2*maxTopics+10 {
			t.Errorf("%d messages of nobody", n)
		}
		for _, v := range []*visitor{many, long} {
			if g, ok := v.Handler.(*guest); !ok || len(g.links) != map[*visitor]int{many: maxTopics, long: 1}[v] {
				t.Errorf("%d topics are kept", len(g.links))
			}
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
		if got, want := a.take(0), "degraded 1.2 live"; got != want {
			t.Errorf("heard %q, want %q", got, want)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
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

func TestTopicsOfAGuestAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newInn(t)
		_, a := h.follow("10.0.0.5:8000")
		v := h.visit("10.0.0.99:41234", "kv@10.0.0.5:8000@m", 1)
		v.publish()
		for i := range maxTopics + 5 {
			w := &visitor{Handler: v.Handler, topic: fmt.Sprint("topic ", i)}
			w.publish()
		}
		if n := len(v.Handler.(*guest).links); n != maxTopics {
			t.Errorf("%d topics are told apart", n)
		}
		v.publish()
		if got := a.take(0); got != "1.0 live 1.1" {
			t.Errorf("heard %q", got)
		}
		if n := h.r.stats.Unattributed.Load(); n != maxTopics+5 {
			t.Errorf("%d messages of nobody", n)
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
