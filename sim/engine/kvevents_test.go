package engine

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
	"github.com/sluice-epp/sluice/sim"
)

// stir sends a workload that fills a small cache more than once: chats of several turns at a time,
// the same text at once, adapters and salts, a reset in between.
func stir(t *testing.T, s *Server) {
	t.Helper()
	var wg sync.WaitGroup
	for worker := range 4 {
		body := obj{"model": []string{"sim", "sql"}[worker%2], "max_tokens": 90}
		if worker > 1 {
			body["cache_salt"] = "tenant-1"
		}
		messages := []obj{{"role": "system", "content": strings.Repeat(story, 2)}}
		var requests []obj
		for turn := range 5 {
			messages = append(messages, obj{"role": "user", "content": fmt.Sprintf("Question %d: %s", worker*turn, story)})
			r := obj{"messages": slices.Clone(messages), "n": 1 + 2*turn%7}
			for k, v := range body {
				r[k] = v
			}
			requests = append(requests, r)
		}
		wg.Go(func() {
			for _, r := range requests {
				if a := <-begin(t, s, "/v1/chat/completions", r); a.status != 200 {
					t.Errorf("status %d: %s", a.status, a.body)
				}
			}
		})
	}
	wg.Wait()
	if a := post(t, s, "/reset_prefix_cache", ""); string(a.body) != `{"success":true}` {
		t.Errorf("reset answers %s", a.body)
	}
	for i := range 2 {
		post(t, s, "/v1/completions", obj{"prompt": fmt.Sprint(strings.Repeat(story, 2), i), "max_tokens": 20})
	}
}

// smallCache evicts and preempts under stir.
func smallCache() sim.Params {
	return sim.Params{NumBlocks: 45, MaxModelLen: 720, MaxBatchedTokens: 128, MaxSeqs: 8, OffloadBlocks: 150}
}

// What live events say, and what a replay of all of them says, is what the model holds.
func TestEventsEqualTheCache(t *testing.T) {
	for _, self := range []bool{false, true} {
		t.Run(fmt.Sprintf("selfDescribing=%v", self), func(t *testing.T) {
			s := startServer(t, Config{
				Speed: fast, Adapters: []string{"sql"}, Params: smallCache(),
				KVEvents: &KVEvents{SelfDescribing: self, Topic: "kv", BufferSteps: 100_000},
			})
			l := listen(t, s)
			stir(t, s)
			st := s.Stats()
			if st.Preemptions == 0 || st.OffloadHits == 0 || st.OffloadedBlocks < 100 {
				t.Errorf("the workload does not stir: %+v", st)
			}
			n := int(s.present().events.published.Load())
			live := l.until(t, n)
			again := replay(t, s, 0)
			if len(live) != n || n < 50 {
				t.Errorf("%d messages, %d published", len(live), n)
			}
			if diff := cmp.Diff(live, again, cmp.AllowUnexported(emission{})); diff != "" {
				t.Errorf("replay differs (-live +replayed):\n%s", diff)
			}
			m := newMirror()
			for i, msg := range live {
				if msg.seq != uint64(i) || msg.topic != "kv" {
					t.Fatalf("message %d has number %d and topic %q", i, msg.seq, msg.topic)
				}
				m.apply(t, msg.payload, 0)
			}
			m.equals(t, s)
			if (m.bare > 0) == self || m.kinds[wire.Cleared] != 1 || m.kinds[wire.Removed] == 0 {
				t.Errorf("%d stores without tokens, events by kind %v", m.bare, m.kinds)
			}
			slices.Sort(m.extra)
			if diff := cmp.Diff([]string{"/", "/tenant-1", "sql/", "sql/tenant-1"}, slices.Compact(m.extra)); diff != "" {
				t.Errorf("adapters and extra keys (-want +got):\n%s", diff)
			}
		})
	}
}

func TestKVEventSources(t *testing.T) {
	s := startServer(t, Config{Speed: fast, KVEvents: &KVEvents{Topic: "a topic", Rank: 3, HWM: 7}})
	all := sources(t, s)
	got, ok := all["3"]
	if !ok || len(all) != 1 {
		t.Fatalf("sources %+v", all)
	}
	for _, endpoint := range []string{got.Endpoint, *got.ReplayEndpoint} {
		c, err := net.Dial("tcp", address(t, s, endpoint))
		if err != nil {
			t.Fatal(err)
		}
		_ = c.Close()
	}
	got.Endpoint, got.ReplayEndpoint = "", nil
	want := source{Enable: true, Publisher: "zmq", BufferSteps: 10_000, HWM: 7, MaxQueueSize: 100_000, Topic: "a topic"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("source (-want +got):\n%s", diff)
	}
	for body, cfg := range map[string]Config{
		`{}`: {},
		`{"0":{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:9","replay_endpoint":null,"buffer_steps":10000,"hwm":100000,"max_queue_size":100000,"topic":"t"}}`: {
			KVEvents: &KVEvents{Connect: "127.0.0.1:9", NoReplay: true, Topic: "t"}},
	} {
		if a := get(t, startServer(t, cfg), "/kv_event_sources"); string(a.body) != body {
			t.Errorf("sources %s, want %s", a.body, body)
		}
	}
}

// A publisher that connects names its engine in the topic; a subscriber that binds later gets what
// is published from then on.
func TestPublisherConnects(t *testing.T) {
	acceptor, err := zmtp.ListenSubscriber("127.0.0.1:0", zmtp.AcceptorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	l := &listener{changed: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- acceptor.Run(ctx, func(net.Addr) zmtp.Handler { return l }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; !errors.Is(err, context.Canceled) {
			t.Errorf("acceptor ended with %v", err)
		}
	})
	s := startServer(t, Config{Speed: fast, Models: []string{"m"}, KVEvents: &KVEvents{Connect: acceptor.Addr().String(), Rank: 2}})
	eventually(t, "subscribed", func() bool { return s.present().events.publisher.Subscribers() == 1 })
	post(t, s, "/v1/completions", obj{"prompt": story})
	got := l.until(t, 1)
	if want := "kv@" + s.Addr().String() + "@m"; got[0].topic != want || got[0].seq != 0 {
		t.Errorf("topic %q, number %d, want %q and 0", got[0].topic, got[0].seq, want)
	}
	m := newMirror()
	for _, msg := range l.until(t, int(s.present().events.published.Load())) {
		m.apply(t, msg.payload, 2)
	}
	m.equals(t, s)
}

// Of a replay, what is asked for comes as far as it is kept; nonsense gets no answer.
func TestReplay(t *testing.T) {
	s := startServer(t, Config{Speed: fast, KVEvents: &KVEvents{BufferSteps: 3}})
	if got := replay(t, s, 0); len(got) != 0 {
		t.Errorf("replay of nothing: %v", numbers(got))
	}
	for i := range 5 {
		post(t, s, "/v1/completions", obj{"prompt": fmt.Sprint(i, story), "max_tokens": 1})
	}
	for from, want := range map[uint64][]uint64{0: {2, 3, 4}, 3: {3, 4}, 4: {4}, 5: {}, wire.ReplayEnd: {}} {
		if got := numbers(replay(t, s, from)); !slices.Equal(got, want) {
			t.Errorf("replay from %d: %v, want %v", from, got, want)
		}
	}
	if got := scrape(t, s)["sim:kv_event_replay_batches{engine=0,model_name=sim}"]; got != 3 {
		t.Errorf("%v batches kept by the metrics", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := zmtp.Dial(ctx, address(t, s, *sources(t, s)["0"].ReplayEndpoint), zmtp.DEALER, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, bad := range [][][]byte{{nil}, {nil, []byte("x")}, {bytes.Repeat([]byte{0}, 8)}, {nil, nil, make([]byte, 8)}} {
		if err := c.Send(bad...); err != nil {
			t.Fatal(err)
		}
	}
	if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, 4)); err != nil {
		t.Fatal(err)
	}
	if err := c.SetReadDeadline(time.Now().Add(5 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if frames, err := c.Receive(); err != nil || len(frames) != 4 || binary.BigEndian.Uint64(frames[2]) != 4 {
		t.Errorf("after bad requests: %d frames, %v", len(frames), err)
	}
}

// A replay is taken out of the history piece by piece, without what is published meanwhile, and without the batches that
// are gone by the time.
func TestReplayOfALongHistory(t *testing.T) {
	s := startServer(t, Config{Speed: fast, KVEvents: &KVEvents{}})
	e := s.present().events
	const batches = 3*replayChunk + 7
	publish := func() {
		e.history.add(batch{seq: e.published.Load(), payload: []byte("x")})
		e.published.Add(1)
	}
	var want []uint64
	for seq := range uint64(batches) {
		if seq == replayChunk+3 {
			e.published.Add(1) // lost
			continue
		}
		publish()
		want = append(want, seq)
	}
	if diff := cmp.Diff(want, numbers(replay(t, s, 0))); diff != "" {
		t.Errorf("from 0 (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want[replayChunk+2:], numbers(replay(t, s, replayChunk+2))); diff != "" {
		t.Errorf("from the middle (-want +got):\n%s", diff)
	}
	var got []uint64
	ended := false
	e.replay(nil, [][]byte{nil, sequence(0)}, func(frames ...[]byte) error {
		if ended = frames[1] == nil && bytes.Equal(frames[2], endOfReplay); ended {
			return nil
		}
		if got = append(got, binary.BigEndian.Uint64(frames[2])); len(got) == 1 {
			e.history.steps = 10
		}
		publish()
		return nil
	})
	if !ended || !slices.Equal(got, want[:replayChunk]) {
		t.Errorf("%v, while all of it was replaced", got)
	}
	if len(e.history.from(0, make([]batch, 0, 5))) != 5 {
		t.Error("more is taken at once than there is room for")
	}
}

// The server closes at once although readers of replays have asked for far more than they read.
func TestCloseAmidReplays(t *testing.T) {
	s := startServer(t, Config{Speed: fast, KVEvents: &KVEvents{}})
	e := s.present().events
	for seq := range uint64(5000) {
		e.history.add(batch{seq: seq, payload: make([]byte, 2000)})
	}
	e.published.Store(5000)
	for range 10 {
		c, err := zmtp.Dial(t.Context(), s.KVEvents().Replay, zmtp.DEALER, zmtp.Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		for range 2000 {
			if err := c.Send(nil, sequence(0)); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := c.Receive(); err != nil {
			t.Fatal(err)
		}
	}
	begun := time.Now()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("closed after %v", took)
	}
}

func TestHistoryIsBounded(t *testing.T) {
	h := history{steps: 10, maxBytes: 100}
	for seq := range uint64(1000) {
		h.add(batch{seq: seq, payload: make([]byte, 7)})
		if n, size := h.size(); n > 10 || size > 100 || size != 7*n {
			t.Fatalf("%d batches of %d bytes", n, size)
		}
	}
	h.add(batch{seq: 1000, payload: make([]byte, 60)})
	if n, size := h.size(); n != 6 || size != 95 {
		t.Errorf("%d batches of %d bytes, want 6 of 95", n, size)
	}
	h.add(batch{seq: 1001, payload: make([]byte, 1000)})
	if got := h.from(0, make([]batch, 0, 2)); len(got) != 1 || got[0].seq != 1001 {
		t.Errorf("%d batches beside a large one", len(got))
	}
	if cap(h.kept) > 64 {
		t.Errorf("room for %d batches", cap(h.kept))
	}
}

// Requests that find all their blocks say nothing, unless they ask for it; a reset and a sleep say
// nothing before the next step.
func TestQuietSteps(t *testing.T) {
	s := startServer(t, Config{Speed: fast, KVEvents: &KVEvents{}})
	body := obj{"messages": []obj{{"role": "user", "content": strings.Repeat(story, 3)}}, "max_tokens": 1}
	published := func() uint64 { return s.present().events.published.Load() }
	post(t, s, "/v1/chat/completions", body)
	first := replay(t, s, 0)
	if published() != 1 {
		t.Fatalf("%d batches", published())
	}
	post(t, s, "/v1/chat/completions", body)
	post(t, s, "/v1/completions", obj{"prompt": "x", "max_tokens": 2})
	if published() != 1 {
		t.Errorf("%d batches after a repeat and a short prompt, want 1", published())
	}
	body["vllm_xargs"] = obj{"kv_cache_report_mode": "full"}
	post(t, s, "/v1/chat/completions", body)
	m := newMirror()
	m.apply(t, first[0].payload, 0)
	told := len(m.extra)
	again := replay(t, s, 1)
	m.apply(t, again[0].payload, 0)
	if len(again) != 1 || len(m.extra) != 2*told {
		t.Errorf("%d batches with %d blocks after %d, want the same again", len(again), len(m.extra)-told, told)
	}
	post(t, s, "/reset_prefix_cache", "")
	post(t, s, "/reset_prefix_cache", "")
	post(t, s, "/sleep", "")
	if published() != 2 {
		t.Errorf("%d batches after a reset, want 2", published())
	}
	post(t, s, "/wake_up", "")
	post(t, s, "/v1/completions", obj{"prompt": "x", "max_tokens": 2})
	m.apply(t, replay(t, s, 2)[0].payload, 0)
	if published() != 3 || m.kinds[wire.Cleared] != 1 {
		t.Errorf("%d batches with %d resets, want 3 with 1", published(), m.kinds[wire.Cleared])
	}
	m.equals(t, s)
}
