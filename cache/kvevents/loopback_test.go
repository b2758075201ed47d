package kvevents

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/kvtest"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/scheduling"
)

// These tests run over real sockets, on loopback, with what real engines sent.

// publisher is a PUB socket that waits for its subscriber before it publishes.
type publisher struct {
	*zmtp.Publisher
	t *testing.T
}

func listenPublisher(t *testing.T, address string) (publisher, string) {
	t.Helper()
	p := publisher{zmtp.NewPublisher(zmtp.PublisherOptions{}), t}
	t.Cleanup(func() { p.Close() })
	var bound net.Addr
	eventually(t, "a port", func() (ok bool) { // the one of an earlier test may be taken for a moment
		var err error
		bound, err = p.Listen(address)
		return err == nil
	})
	return p, bound.String()
}

func (p publisher) send(frames ...kvtest.Frame) {
	p.t.Helper()
	eventually(p.t, "a subscriber", func() bool { return p.Subscribers() > 0 })
	for _, f := range frames {
		if err := p.Send(f.Topic, binary.BigEndian.AppendUint64(nil, f.Seq), f.Payload); err != nil {
			p.t.Fatal(err)
		}
	}
}

// listenReplay serves the replay socket of an engine that holds messages.
func listenReplay(t *testing.T, short bool, log func() []kvtest.Frame) string {
	return serveReplay(t, func(start uint64, reply func(...[]byte) error) {
		send := func(topic []byte, seq uint64, payload []byte) {
			frames := [][]byte{nil, topic, binary.BigEndian.AppendUint64(nil, seq), payload}
			if short {
				frames = append(frames[:1], frames[2:]...)
			}
			_ = reply(frames...)
		}
		for _, f := range log() {
			if f.Seq >= start {
				send(f.Topic, f.Seq, f.Payload)
			}
		}
		send(nil, wire.ReplayEnd, nil)
	})
}

func serveReplay(t *testing.T, answer func(start uint64, reply func(...[]byte) error)) string {
	t.Helper()
	router, err := zmtp.ListenRouter("127.0.0.1:0", zmtp.RouterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var serving sync.WaitGroup
	serving.Go(func() {
		_ = router.Serve(t.Context(), func(_ net.Addr, frames [][]byte, reply func(...[]byte) error) {
			if len(frames) != 2 || len(frames[0]) != 0 || len(frames[1]) != 8 {
				t.Errorf("asked with %q", frames)
				return
			}
			answer(binary.BigEndian.Uint64(frames[1]), reply)
		})
	})
	t.Cleanup(serving.Wait)
	return router.Addr().String()
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("no %s in 20 s", what)
		}
	}
}

func portOf(address string) int {
	_, port, _ := net.SplitHostPort(address)
	n := 0
	_, _ = fmt.Sscan(port, &n)
	return n
}

// followLoopback follows an endpoint at 127.0.0.1 with the ports of two sockets.
func followLoopback(t *testing.T, publisher, replay string, o Options) (*Feed, *recorder, *Stats) {
	t.Helper()
	rec, stats := newRecorder(t), &Stats{}
	o.Stats = stats
	kv := scheduling.KVEvents{Port: portOf(publisher), ReplayPort: -1}
	if replay != "" {
		kv.ReplayPort = portOf(replay)
	}
	f := Follow(&scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: "127.0.0.1:8000", KVEvents: kv}}, Config{}, o, rec.open)
	t.Cleanup(func() { f.Close() })
	return f, rec, stats
}

func (r *recorder) await(t *testing.T, rank, known int, state cursor.State) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d messages in state %s of rank %d", known, state, rank), func() bool {
		return len(r.knownOf(rank)) == known && r.stateOf(rank) == state
	})
}

func split(frames []kvtest.Frame, phase string) (with, without []kvtest.Frame) {
	for _, f := range frames {
		if strings.HasPrefix(f.Phase, phase) {
			with = append(with, f)
		} else {
			without = append(without, f)
		}
	}
	return with, without
}

// A real engine that was killed and started again: 0, 1, 0, 1 and no word of it.
func TestC03_CapturedRestart(t *testing.T) {
	first, second := split(kvtest.Captures(t, "kv_restart_b32"), "x1_")
	if len(first) != 2 || len(second) != 2 {
		t.Fatalf("%d and %d messages captured", len(first), len(second))
	}
	t.Run("without replay", func(t *testing.T) {
		p, address := listenPublisher(t, "127.0.0.1:0")
		_, rec, stats := followLoopback(t, address, "", Options{})
		p.send(first...)
		rec.await(t, 0, 2, cursor.Live)
		p.Close()
		rec.await(t, 0, 2, cursor.Degraded)
		q, _ := listenPublisher(t, address)
		q.send(second...)
		eventually(t, "new generation", func() bool { return stats.Forgets(cursor.CauseReconnect) == 1 })
		rec.await(t, 0, 2, cursor.Live)
	})
	t.Run("with replay", func(t *testing.T) {
		var mu sync.Mutex
		log := first
		replay := listenReplay(t, false, func() []kvtest.Frame {
			mu.Lock()
			defer mu.Unlock()
			return log
		})
		p, address := listenPublisher(t, "127.0.0.1:0")
		_, rec, stats := followLoopback(t, address, replay, Options{})
		rec.await(t, 0, 2, cursor.Live)
		p.Close()
		rec.await(t, 0, 2, cursor.Degraded)
		mu.Lock()
		log = second
		mu.Unlock()
		listenPublisher(t, address)
		eventually(t, "new generation", func() bool { return stats.Forgets(cursor.CauseReplayDiffers) == 1 })
		rec.await(t, 0, 2, cursor.Live)
		if n := stats.Replayed.Load(); n != 4 {
			t.Errorf("%d messages replayed", n)
		}
	})
	t.Run("on one connection", func(t *testing.T) {
		p, address := listenPublisher(t, "127.0.0.1:0")
		_, rec, stats := followLoopback(t, address, "", Options{})
		p.send(first...)
		p.send(second...)
		eventually(t, "new generation", func() bool { return stats.Forgets(cursor.CauseBackwards) == 1 })
		rec.await(t, 0, 2, cursor.Live)
	})
}

// What real engines replied on the replay socket, in both shapes, byte for byte.
func TestCapturedReplays(t *testing.T) {
	for _, name := range kvtest.ReplayNames {
		for _, x := range kvtest.Exchanges(t, name) {
			if x.Socket != "DEALER" || x.Start != 0 {
				continue
			}
			t.Run(name+"/"+x.Case, func(t *testing.T) {
				replay := serveReplay(t, func(start uint64, reply func(...[]byte) error) {
					if !bytes.Equal(x.Request[1], binary.BigEndian.AppendUint64(nil, start)) {
						t.Errorf("asked from %d", start)
					}
					for _, frames := range x.Replies {
						_ = reply(frames...)
					}
				})
				_, address := listenPublisher(t, "127.0.0.1:0")
				f, rec, stats := followLoopback(t, address, replay, Options{})
				rec.await(t, 0, len(x.Replies)-1, cursor.Live)
				<-f.Ready()
				if s := stats; s.BadMessages.Load()+s.BadEvents.Load()+s.UnknownEvents.Load()+s.ReplayFailures.Load() != 0 {
					t.Errorf("%d bad messages, %d bad events", s.BadMessages.Load(), s.BadEvents.Load())
				}
			})
		}
	}
}

// Every captured stream arrives whole, live and replayed.
func TestCapturedStreams(t *testing.T) {
	for _, name := range kvtest.Names {
		if name == "kv_restart_b32" || name == "kv_dp2_b32" {
			continue // have tests of their own
		}
		t.Run(name, func(t *testing.T) {
			frames := kvtest.Captures(t, name)
			half := len(frames) / 2
			var mu sync.Mutex
			sent := half
			replay := listenReplay(t, true, func() []kvtest.Frame {
				mu.Lock()
				defer mu.Unlock()
				return frames[:sent]
			})
			p, address := listenPublisher(t, "127.0.0.1:0")
			_, rec, stats := followLoopback(t, address, replay, Options{})
			rec.await(t, 0, half, cursor.Live)
			for _, f := range frames[half:] {
				mu.Lock()
				sent++
				mu.Unlock()
				if f.Seq%3 == 0 {
					continue // lost, and found in the replay
				}
				p.send(f)
			}
			mu.Lock()
			sent = len(frames)
			mu.Unlock()
			if last := frames[len(frames)-1]; last.Seq%3 == 0 {
				p.send(last)
			}
			rec.await(t, 0, len(frames), cursor.Live)
			if stats.BadMessages.Load()+stats.BadEvents.Load() != 0 {
				t.Errorf("%d bad messages, %d bad events", stats.BadMessages.Load(), stats.BadEvents.Load())
			}
		})
	}
}

// Two ranks of a real engine, found by asking it.
func TestC23_CapturedRanks(t *testing.T) {
	frames := kvtest.Captures(t, "kv_dp2_b32")
	var d wire.Decoder
	byRank := map[int][]kvtest.Frame{}
	for _, f := range frames {
		b, err := d.Decode(f.Payload)
		if err != nil {
			t.Fatal(err)
		}
		byRank[b.Rank] = append(byRank[b.Rank], f)
	}
	var publishers [2]publisher
	var addresses, replays [2]string
	for rank := range 2 {
		publishers[rank], addresses[rank] = listenPublisher(t, "127.0.0.1:0")
		replays[rank] = listenReplay(t, false, func() []kvtest.Frame { return byRank[rank][:1] })
	}
	engine := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/kv_event_sources" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, `{"1":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"},`+
			`"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://*:%d","replay_endpoint":"tcp://*:%d"}}`,
			portOf(addresses[1]), portOf(replays[1]), portOf(addresses[0]), portOf(replays[0]))
	}))
	defer engine.Close()
	rec := newRecorder(t)
	f := Follow(&scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: engine.Listener.Addr().String()}},
		Config{Port: 1, Discover: true}, Options{Client: engine.Client()}, rec.open)
	defer f.Close()
	<-f.Ready()
	for rank := range 2 {
		rec.await(t, rank, 1, cursor.Live)
		publishers[rank].send(byRank[rank][1:]...)
		rec.await(t, rank, len(byRank[rank]), cursor.Live)
	}
}

// Engines that connect by themselves, told apart by their addresses.
func TestAcceptorOnLoopback(t *testing.T) {
	a, err := Listen("127.0.0.1:0", 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := a.Close(); err != nil {
			t.Error(err)
		}
	})
	first, second := split(kvtest.Captures(t, "kv_restart_b32"), "x1_")
	for i, c := range []struct {
		ip     string
		frames []kvtest.Frame
	}{{"127.0.0.1", first}, {"127.0.0.2", second}} {
		rec := newRecorder(t)
		f := Follow(&scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{
			Address: c.ip + ":8000", KVEvents: scheduling.KVEvents{Bind: true},
		}}, Config{}, Options{Acceptor: a}, rec.open)
		t.Cleanup(func() { f.Close() })
		p := publisher{zmtp.NewPublisher(dialFrom(c.ip)), t}
		t.Cleanup(func() { p.Close() })
		if err := p.Connect(a.Addr().String()); err != nil {
			t.Fatal(err)
		}
		for i := range c.frames { // the engines that these are of called themselves the same
			c.frames[i].Topic = bytes.Replace(c.frames[i].Topic, []byte("127.0.0.1"), []byte(c.ip), 1)
		}
		p.send(c.frames...)
		rec.await(t, 0, 2, cursor.Live)
		if n := a.Counts().Open; n != i+1 {
			t.Errorf("%d connections", n)
		}
		p.Close()
		rec.await(t, 0, 2, cursor.Degraded)
		q := publisher{zmtp.NewPublisher(dialFrom(c.ip)), t}
		t.Cleanup(func() { q.Close() })
		if err := q.Connect(a.Addr().String()); err != nil {
			t.Fatal(err)
		}
		q.send(kvtest.Frame{Topic: c.frames[0].Topic, Seq: 2, Payload: c.frames[0].Payload})
		rec.await(t, 0, 3, cursor.Live)
	}
	if _, err := Listen("nonsense", 0, nil); err == nil {
		t.Error("no error for an address that is none")
	}
}

// However many connect that nobody needs, an endpoint's engine gets in, is heard, and stays.
func TestAcceptorUnderAFlood(t *testing.T) {
	a := newAcceptor(slog.New(slog.DiscardHandler))
	if err := a.listen("127.0.0.1:0", 8, DefaultMaxMessageBytes); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { a.Close() })
	rec := newRecorder(t)
	f := Follow(&scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{
		Address: "127.0.0.2:8000", KVEvents: scheduling.KVEvents{Bind: true},
	}}, Config{}, Options{Acceptor: a}, rec.open)
	t.Cleanup(func() { f.Close() })
	connect := func(ip string) publisher {
		o := dialFrom(ip)
		o.Backoff = zmtp.Backoff{Min: time.Hour, Max: time.Hour}
		p := publisher{zmtp.NewPublisher(o), t}
		t.Cleanup(func() { p.Close() })
		if err := p.Connect(a.Addr().String()); err != nil {
			t.Fatal(err)
		}
		return p
	}
	crowd := func() {
		t.Helper()
		for i := range 20 {
			before := a.Counts()
			connect("127.0.0.1")
			eventually(t, "one more", func() bool {
				now := a.Counts()
				return now.Open+int(now.Refused) > before.Open+int(before.Refused)
			})
			if i == 0 {
				continue
			}
			nc, err := net.Dial("tcp", a.Addr().String()) // one that does not say what it is
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { nc.Close() })
		}
		eventually(t, "all are seen", func() bool { return a.Counts().Open == 8 })
	}
	crowd()
	p := connect("127.0.0.2")
	eventually(t, "the engine is in", func() bool { return p.Subscribers() == 1 })
	crowd()
	first, _ := split(kvtest.Captures(t, "kv_restart_b32"), "x1_")
	for i := range first {
		first[i].Topic = nil
	}
	p.send(first...)
	rec.await(t, 0, 2, cursor.Live)
	crowd()
	p.send(kvtest.Frame{Seq: 2, Payload: first[0].Payload})
	rec.await(t, 0, 3, cursor.Live)
	if n := a.Counts().Refused; n < 20 {
		t.Errorf("%d had to go", n)
	}
}

func dialFrom(ip string) zmtp.PublisherOptions {
	from := netip.AddrPortFrom(netip.MustParseAddr(ip), 0)
	dialer := &net.Dialer{LocalAddr: net.TCPAddrFromAddrPort(from)}
	return zmtp.PublisherOptions{Options: zmtp.Options{DialContext: dialer.DialContext}}
}

// A feed is used from all sides at once.
func TestConcurrentUse(t *testing.T) {
	frames := kvtest.Captures(t, "kv_sha256_b32")
	p, address := listenPublisher(t, "127.0.0.1:0")
	replay := listenReplay(t, false, func() []kvtest.Frame { return frames })
	f, rec, _ := followLoopback(t, address, replay, Options{})
	rec.await(t, 0, len(frames), cursor.Live)
	var work sync.WaitGroup
	work.Go(func() {
		for range 20 {
			for _, m := range frames {
				_ = p.Send(m.Topic, binary.BigEndian.AppendUint64(nil, m.Seq), m.Payload)
			}
		}
	})
	work.Go(func() {
		for range 200 {
			f.Restarted()
			time.Sleep(time.Millisecond)
		}
	})
	work.Go(func() {
		for range 200 {
			if info := f.Sources(); len(info) != 1 {
				t.Errorf("%+v", info)
			}
			time.Sleep(time.Millisecond)
		}
	})
	work.Wait()
	rec.await(t, 0, len(frames), cursor.Live) // the last replay brings everything
	work.Go(func() { f.Restarted() })
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	work.Wait()
	f.Restarted()
	if err := f.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

// A message as large as the bound is read. One that is a byte larger is not: it is counted, its connection is closed and
// opened again, and what comes afterwards is heard.
func TestMessagesAreBounded(t *testing.T) {
	const bound = 100_000
	small := kvtest.Captures(t, "kv_restart_b32")[0]
	p := publisher{zmtp.NewPublisher(zmtp.PublisherOptions{}), t}
	t.Cleanup(func() { p.Close() })
	address, err := p.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	stats := &Stats{}
	rec := newRecorder(t)
	f := Follow(&scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{
		Address: "127.0.0.1:8000", KVEvents: scheduling.KVEvents{Port: portOf(address.String()), ReplayPort: -1}}},
		Config{MaxMessageBytes: bound}, Options{Stats: stats}, rec.open)
	t.Cleanup(func() { f.Close() })
	// What follows a batch is passed over, so a message can be of any length.
	padded := func(seq uint64, length int) kvtest.Frame {
		payload := make([]byte, length-len(small.Topic)-8)
		copy(payload, small.Payload)
		return kvtest.Frame{Topic: small.Topic, Seq: seq, Payload: payload}
	}
	p.send(padded(0, bound))
	rec.await(t, 0, 1, cursor.Live)
	if n := stats.TooLarge.Load(); n != 0 {
		t.Fatalf("%d messages of the bound's size were too large", n)
	}
	p.send(padded(1, bound+1))
	rec.await(t, 0, 1, cursor.Degraded)
	if n := stats.TooLarge.Load(); n != 1 {
		t.Errorf("%d messages were too large, want 1", n)
	}
	eventually(t, "second connection", func() bool { return stats.Connections.Load() == 2 })
	p.send(padded(2, 1000))
	eventually(t, "message behind it", func() bool { return stats.Messages.Load() == 2 })
	if n := stats.TooLarge.Load(); n != 1 {
		t.Errorf("%d messages were too large in the end, want 1", n)
	}
}
