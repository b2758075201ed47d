package top

import (
	"bytes"
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stub is a source that tells of what it is given.
type stub struct {
	mu        sync.Mutex
	fault     error
	panics    bool
	endpoints []*schedulerv1.Endpoint
	older     []*schedulerv1.TailDecisionsResponse
	tails     int
	decisions chan *schedulerv1.TailDecisionsResponse
}

func newStub(t *testing.T) *stub {
	t.Helper()
	return &stub{
		endpoints: few(t).endpoints, decisions: make(chan *schedulerv1.TailDecisionsResponse),
		older: []*schedulerv1.TailDecisionsResponse{{Explanation: decide(t, 1, "older", noon, warm("vllm-0", 0, 0))}},
	}
}

func (s *stub) become(fault error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.fault = fault
}

func (s *stub) ListEndpoints(context.Context, *schedulerv1.ListEndpointsRequest, ...grpc.CallOption) (*schedulerv1.ListEndpointsResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &schedulerv1.ListEndpointsResponse{Endpoints: s.endpoints}, s.fault
}

func (s *stub) GetIndexStats(context.Context, *schedulerv1.GetIndexStatsRequest, ...grpc.CallOption) (*schedulerv1.GetIndexStatsResponse, error) {
	return &schedulerv1.GetIndexStatsResponse{}, nil
}

func (s *stub) TailDecisions(ctx context.Context, _ *schedulerv1.TailDecisionsRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[schedulerv1.TailDecisionsResponse], error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.panics {
		panic("a fault of its own")
	}
	s.tails++
	return &stubTail{stub: s, ctx: ctx, older: s.older}, s.fault
}

type stubTail struct {
	grpc.ClientStream
	stub  *stub
	ctx   context.Context //nolint:containedctx // a stream's own
	older []*schedulerv1.TailDecisionsResponse
}

func (s *stubTail) Recv() (*schedulerv1.TailDecisionsResponse, error) {
	if len(s.older) > 0 {
		first := s.older[0]
		s.older = s.older[1:]
		return first, nil
	}
	select {
	case m := <-s.stub.decisions:
		if m == nil {
			return nil, io.EOF
		}
		return m, nil
	case <-s.ctx.Done():
		return nil, s.ctx.Err()
	}
}

// terminal is what a view has written.
type terminal struct {
	mu   sync.Mutex
	text bytes.Buffer
	full bool
}

func (s *terminal) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.full {
		return 0, io.ErrShortWrite
	}
	return s.text.Write(b)
}

// since is what was written since the last call.
func (s *terminal) since() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	defer s.text.Reset()
	return s.text.String()
}

// watching is a live view in a bubble of time.
type watching struct {
	*stub
	out    *terminal
	keys   chan byte
	cancel context.CancelFunc
	ended  chan error
	mu     sync.Mutex
	width  int
}

func watch(t *testing.T, change func(*Options, *stub)) *watching {
	t.Helper()
	w := &watching{stub: newStub(t), out: &terminal{}, keys: make(chan byte), ended: make(chan error, 1), width: 80}
	o := Options{
		Source: w.stub, Address: "127.0.0.1:9090", Words: func(err error) error { return err }, Interval: time.Second, Order: ByLoad,
		Out: w.out, Keys: w.keys, Size: func() (int, int) {
			w.mu.Lock()
			defer w.mu.Unlock()
			return w.width, 24
		},
	}
	if change != nil {
		change(&o, w.stub)
	}
	ctx, cancel := context.WithCancel(t.Context())
	w.cancel = cancel
	go func() { w.ended <- Run(ctx, o) }()
	synctest.Wait()
	return w
}

// later lets time pass and returns what was written in it.
func (w *watching) later(d time.Duration) string {
	time.Sleep(d)
	synctest.Wait()
	return w.out.since()
}

func TestLive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, nil)
		first := w.later(0)
		if !strings.HasPrefix(first, enterScreen+clearScreen+home) || !strings.Contains(first, "vllm-0") {
			t.Errorf("first %q", first)
		}
		if n := strings.Count(w.later(3*time.Second), home); n != 3 {
			t.Errorf("%d frames in three seconds", n)
		}
		w.decisions <- &schedulerv1.TailDecisionsResponse{Explanation: decide(t, 2, "younger", noon, warm("vllm-0", 0, 0)), Missed: 12}
		if next := w.later(time.Second); !strings.Contains(next, "younger") || !strings.Contains(next, "older") || !strings.Contains(next, "2 decisions seen, 12 missed") {
			t.Errorf("after a decision %q", next)
		}
		w.keys <- 's'
		if next := w.later(0); !strings.Contains(next, "sort: kv") {
			t.Errorf("after s %q", next)
		}
		w.keys <- ctrlL
		if next := w.later(0); !strings.Contains(next, clearScreen) {
			t.Errorf("after ^L %q", next)
		}
		w.mu.Lock()
		w.width = 140
		w.mu.Unlock()
		if next := w.later(resizeCheck); !strings.Contains(next, "blocks") {
			t.Errorf("after the terminal grew %q", next)
		}
		w.keys <- 'x' // no key
		w.keys <- 'q'
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
		if last := w.later(0); !strings.HasSuffix(last, leaveScreen) {
			t.Errorf("at the end %q", last)
		}
	})
}

func TestPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, nil)
		w.keys <- 'p'
		w.later(0)
		w.decisions <- &schedulerv1.TailDecisionsResponse{Explanation: decide(t, 2, "younger", noon, warm("vllm-0", 0, 0))}
		if next := w.later(2 * time.Second); strings.Contains(next, "younger") || !strings.Contains(next, "PAUSED") {
			t.Errorf("paused %q", next)
		}
		w.keys <- 'p'
		if next := w.later(0); !strings.Contains(next, "younger") || strings.Contains(next, "PAUSED") {
			t.Errorf("going on %q", next)
		}
		w.cancel()
		if err := <-w.ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A server that goes away is waited for, and found again.
func TestServerGoesAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, nil)
		w.later(0)
		w.become(errors.New("connection refused"))
		w.decisions <- nil // the stream ends
		next := w.later(5 * time.Second)
		if !strings.Contains(next, "NO ANSWER since ") || !strings.Contains(next, "connection refused") || !strings.Contains(next, "vllm-0") {
			t.Errorf("without a server %q", next)
		}
		w.become(nil)
		w.later(2 * time.Second)
		w.decisions <- &schedulerv1.TailDecisionsResponse{Explanation: decide(t, 2, "younger", noon, warm("vllm-0", 0, 0))}
		if next = w.later(time.Second); strings.Contains(next, "NO ANSWER") || !strings.Contains(next, "younger") || !strings.Contains(next, "2 decisions seen") {
			t.Errorf("with a server again %q", next)
		}
		if w.tails < 3 || w.tails > 9 {
			t.Errorf("%d streams", w.tails)
		}
		w.keys <- 'q'
		if err := <-w.ended; err != nil {
			t.Error(err)
		}
	})
}

// However a live view ends, the terminal is left as it was.
func TestTheTerminalIsLeft(t *testing.T) {
	for name, tc := range map[string]struct {
		change func(*Options, *stub)
		end    func(*watching)
		want   string
	}{
		"q":       {nil, func(w *watching) { w.keys <- 'q' }, ""},
		"Ctrl-C":  {nil, func(w *watching) { w.keys <- ctrlC }, ErrInterrupted.Error()},
		"signal":  {nil, func(w *watching) { w.cancel() }, context.Canceled.Error()},
		"a panic": {func(_ *Options, s *stub) { s.panics = true }, func(*watching) {}, "internal fault: a fault of its own"},
		"no keys any more": {nil, func(w *watching) {
			close(w.keys)
			w.later(2 * time.Second)
			w.cancel()
		}, context.Canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := watch(t, tc.change)
				defer w.cancel()
				tc.end(w)
				said := ""
				if err := <-w.ended; err != nil {
					said = err.Error()
				}
				written := w.later(0)
				if said != tc.want || strings.Count(written, leaveScreen) != 1 && name != "no keys any more" || !strings.HasSuffix(written, leaveScreen) {
					t.Errorf("ended with %q, want %q; wrote %q", said, tc.want, written)
				}
			})
		})
	}
}

func TestATerminalThatIsGone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, nil)
		w.out.mu.Lock()
		w.out.full = true
		w.out.mu.Unlock()
		if err := <-w.ended; !errors.Is(err, io.ErrShortWrite) {
			t.Error(err)
		}
		w.cancel()
	})
}

// Elsewhere than on a terminal there is no code, and every decision once.
func TestPlain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, func(o *Options, _ *stub) { o.Keys, o.Size = nil, nil })
		first := w.later(time.Second)
		if strings.ContainsRune(first, '\x1b') || !strings.Contains(first, "older") || !strings.Contains(first, "vllm-0") {
			t.Errorf("first %q", first)
		}
		for i := range uint64(30) {
			w.decisions <- &schedulerv1.TailDecisionsResponse{Explanation: decide(t, 2+i, "younger", noon, warm("vllm-0", 0, 0))}
		}
		if next := w.later(time.Second); strings.Contains(next, " older  ") || strings.Count(next, "younger") != plainDecisions || !strings.Contains(next, "\n10 older decisions left out\ntime ") {
			t.Errorf("then %q", next)
		}
		if next := w.later(time.Second); !strings.Contains(next, "no decision since") {
			t.Errorf("then %q", next)
		}
		w.cancel()
		if err := <-w.ended; !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
}

// A single view has the decisions that are kept, however late they come; it does not wait for what does not come.
func TestOnce(t *testing.T) {
	for name, tc := range map[string]struct {
		newest uint64
		err    error
		waits  time.Duration
		want   string
	}{
		"there is one":  {1, nil, 0, "older"},
		"a later one":   {2, nil, time.Second, "younger"},
		"none comes":    {3, nil, askPatience, "younger"},
		"there is none": {0, nil, 0, "sluice top"},
		"no answer":     {0, errors.New("connection refused"), 0, ""},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begin := time.Now()
				w := watch(t, func(o *Options, _ *stub) {
					o.Once, o.Newest = true, func(context.Context) (uint64, error) { return tc.newest, tc.err }
				})
				defer w.cancel()
				if tc.newest > 1 {
					time.Sleep(time.Second)
					w.decisions <- &schedulerv1.TailDecisionsResponse{Explanation: decide(t, 2, "younger", noon, warm("vllm-0", 0, 0))}
				}
				if err := <-w.ended; !errors.Is(err, tc.err) {
					t.Error(err)
				}
				if waited := time.Since(begin); waited < tc.waits || waited > tc.waits+2*arrival {
					t.Errorf("waited for %s, want %s", waited, tc.waits)
				}
				text := w.later(0)
				if n := strings.Count(text, "sluice top"); n != min(1, len(tc.want)) || !strings.Contains(text, tc.want) || strings.ContainsRune(text, '\x1b') {
					t.Errorf("%q", text)
				}
			})
		})
	}
}

// One that was never there is an error at once: the address is probably wrong.
func TestNoServerAtTheStart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := watch(t, func(_ *Options, s *stub) { s.fault = errors.New("connection refused") })
		if err := <-w.ended; err == nil || err.Error() != "connection refused" {
			t.Error(err)
		}
		if text := w.later(0); text != "" {
			t.Errorf("wrote %q", text)
		}
		w.cancel()
	})
}
