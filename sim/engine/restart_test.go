package engine

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/sim"
)

func startTime(t *testing.T, s *Server) float64 {
	t.Helper()
	return scrape(t, s)["process_start_time_seconds{}"]
}

// A restart in place loses everything that a killed process loses, keeps the ports, and says
// nothing.
func TestC03_RestartInPlace(t *testing.T) {
	for _, seed := range []uint64{0, 42} {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			s := startServer(t, Config{Speed: fast, Params: sim.Params{HashSeed: seed, OffloadBlocks: 50}, KVEvents: &KVEvents{}})
			l := listen(t, s)
			prompt := obj{"prompt": strings.Repeat(story, 3), "max_tokens": 2}
			post(t, s, "/v1/completions", prompt)
			n := int(s.present().events.published.Load())
			first := l.until(t, n)
			before, ports, addr := startTime(t, s), sources(t, s), s.Addr().String()
			if err := s.SetFaults(Faults{Restart: true}); err != nil {
				t.Fatal(err)
			}
			http.DefaultClient.CloseIdleConnections()
			if after := startTime(t, s); after <= before {
				t.Errorf("started at %v, before at %v", after, before)
			}
			if diff := cmp.Diff(ports, sources(t, s)); diff != "" || s.Addr().String() != addr {
				t.Errorf("address %s, before %s; sources (-before +after):\n%s", s.Addr(), addr, diff)
			}
			if st := s.Stats(); st.CachedBlocks+st.OffloadedBlocks+st.Finished != 0 || len(replay(t, s, 0)) != 0 {
				t.Errorf("after a restart %+v", st)
			}
			l.wait(t, "connected again", func() bool { return l.connects == 2 && l.cuts > 0 })
			eventually(t, "subscribed again", func() bool { return s.present().events.publisher.Subscribers() == 1 })
			var a chatAnswer
			post(t, s, "/v1/completions", prompt).json(t, &a)
			if a.Usage.PromptDetails.CachedTokens != 0 {
				t.Errorf("%d tokens cached after a restart", a.Usage.PromptDetails.CachedTokens)
			}
			second := l.until(t, 2*n)[n:]
			if !slices.Equal(numbers(first), numbers(second)) || first[0].seq != 0 {
				t.Errorf("numbers %v, then %v", numbers(first), numbers(second))
			}
			lives := [2]*mirror{newMirror(), newMirror()}
			lives[0].apply(t, first[0].payload, 0)
			lives[1].apply(t, second[0].payload, 0)
			same := 0
			for h := range lives[0].texts {
				if lives[1].texts[h] == lives[0].texts[h] {
					same++
				}
			}
			if want := map[uint64]int{0: 0, 42: len(lives[0].texts)}[seed]; same != want || len(lives[0].texts) < 3 {
				t.Errorf("%d of %d hashes are the same in the next life, want %d", same, len(lives[0].texts), want)
			}
		})
	}
}

// Over HTTP the answer comes first; then streams break, and the port stays closed for as long as
// was asked.
func TestRestartCutsStreams(t *testing.T) {
	s := startServer(t, Config{Speed: 1, KVEvents: &KVEvents{}})
	res, err := http.DefaultClient.Do(request(t, s, http.MethodPost, "/v1/completions", obj{"prompt": story, "max_tokens": 20_000, "stream": true}))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	stream := bufio.NewReader(res.Body)
	if _, err := stream.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	before := startTime(t, s)
	began := time.Now()
	if a := post(t, s, "/sim/fault", `{"restart":true,"refuse_ms":300}`); a.status != 200 || strings.Contains(string(a.body), `"restart":true`) {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	for err == nil {
		_, err = stream.ReadString('\n')
	}
	if err.Error() == "EOF" {
		t.Error("the stream ended as if it were complete")
	}
	eventually(t, "serves again", func() bool {
		res, err := http.DefaultClient.Do(request(t, s, http.MethodGet, "/health", ""))
		if err != nil {
			return false
		}
		return res.Body.Close() == nil && res.StatusCode == http.StatusOK
	})
	if down := time.Since(began); down < 300*time.Millisecond {
		t.Errorf("down for %v", down)
	}
	if after := startTime(t, s); after <= before {
		t.Errorf("started at %v, before at %v", after, before)
	}
	// The end of the server ends a restart too.
	if err := s.SetFaults(Faults{Restart: true, RefuseMs: 60_000}); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st != (sim.Stats{}) {
		t.Errorf("down with %+v", st)
	}
}

func TestRestartsOneAfterAnother(t *testing.T) {
	s := startServer(t, Config{Speed: fast, KVEvents: &KVEvents{}})
	starts := map[time.Time]bool{}
	done := make(chan error)
	for range 4 {
		go func() { done <- s.SetFaults(Faults{Restart: true}) }()
	}
	for range 4 {
		if err := <-done; err != nil {
			t.Error(err)
		}
		starts[s.present().started] = true
	}
	if a := get(t, s, "/health"); a.status != 200 || len(starts) < 2 {
		t.Errorf("health %d, %d start times", a.status, len(starts))
	}
}

func TestFaultsOfEvents(t *testing.T) {
	s := startServer(t, Config{Speed: fast, KVEvents: &KVEvents{}})
	l := listen(t, s)
	prompts := 0
	run := func(n int) {
		for range n {
			prompts++
			post(t, s, "/v1/completions", obj{"prompt": fmt.Sprint(prompts, story), "max_tokens": 1})
		}
	}
	set := func(f Faults) {
		if err := s.SetFaults(f); err != nil {
			t.Fatal(err)
		}
	}
	run(1)                                      // 0
	set(Faults{LoseBatches: 1, DropBatches: 2}) //
	run(4)                                      // 1 lost, 2 and 3 dropped, 4
	if f := s.Faults(); f != (Faults{}) {
		t.Errorf("faults left: %+v", f)
	}
	set(Faults{SilenceEvents: true})
	run(2)
	set(Faults{})
	run(1) // 5
	if got := numbers(l.until(t, 3)); !slices.Equal(got, []uint64{0, 4, 5}) {
		t.Errorf("live numbers %v", got)
	}
	if got := numbers(replay(t, s, 0)); !slices.Equal(got, []uint64{0, 2, 3, 4, 5}) {
		t.Errorf("replayed numbers %v", got)
	}
	set(Faults{WrongHashes: true})
	post(t, s, "/v1/completions", obj{"prompt": strings.Repeat(story, 2), "max_tokens": 40}) // prompt, then blocks of the answer
	m := newMirror()
	for _, msg := range replay(t, s, 6) {
		m.apply(t, msg.payload, 0)
	}
	if m.orphans != 2 || m.kinds[wire.Stored] != 3 {
		t.Errorf("%d of %d stores have an unknown parent, want 2 of 3", m.orphans, m.kinds[wire.Stored])
	}
	for _, bad := range []string{`{"drop_batches":-1}`, `{"lose_batches":-1}`} {
		if a := post(t, s, "/sim/fault", bad); a.status != 400 {
			t.Errorf("%s: status %d", bad, a.status)
		}
	}
}

func TestKVEventsConfigErrors(t *testing.T) {
	for want, k := range map[string]KVEvents{
		`kvEvents.listen: "x"`:              {Listen: "x"},
		`kvEvents.connect: "x"`:             {Connect: "x"},
		"listen and connect exclude":        {Listen: "a:1", Connect: "b:2"},
		"replay and noReplay exclude":       {Replay: "a:1", NoReplay: true},
		"kvEvents.bufferSteps: must be >= ": {BufferSteps: -1},
		"kvEvents.rank: must be >= 0":       {Rank: -1},
	} {
		if _, err := New(Config{KVEvents: &k}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error = %v, want %q", err, want)
		}
	}
	s := startServer(t, Config{KVEvents: &KVEvents{}})
	for _, taken := range []KVEvents{
		{Listen: s.KVEvents().Listen}, {Replay: s.KVEvents().Replay},
	} {
		busy, err := New(Config{KVEvents: &taken})
		if err != nil {
			t.Fatal(err)
		}
		if err := busy.Start(); err == nil || !strings.Contains(err.Error(), "kvEvents.") {
			t.Errorf("start on a port that is taken: %v", err)
		}
		if err := busy.Close(); err != nil {
			t.Error(err)
		}
	}
}
