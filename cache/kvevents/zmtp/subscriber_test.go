package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// notes is a Handler that writes down what it is told.
type notes struct {
	seen  chan string
	since time.Time // notes carry the time if set
}

func newNotes() *notes { return &notes{seen: make(chan string, 10_000)} }

func (n *notes) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	if !n.since.IsZero() {
		text = fmt.Sprintf("%v %s", time.Since(n.since), text)
	}
	n.seen <- text
}

func (n *notes) Connected(net.Addr)           { n.note("connected") }
func (n *notes) Message(frames [][]byte)      { n.note("message %s", strings.Join(texts(frames), " ")) }
func (n *notes) Disconnected(err error)       { n.note("disconnected: %v", err) }
func (n *notes) next(t testing.TB) string     { return came(t, n.seen) }
func (n *notes) open(remote net.Addr) Handler { return n }

func (n *notes) all() []string {
	close(n.seen)
	var out []string
	for text := range n.seen {
		out = append(out, text)
	}
	return out
}

// came waits for what another goroutine sends.
func came[T any](t testing.TB, c chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(20 * time.Second):
		t.Fatal("nothing came")
		panic("unreachable")
	}
}

func TestSubscriberSpacesItsDials(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		n := newNotes()
		n.since = time.Now()
		down := errors.New("down")
		s := &Subscriber{
			Address: "engine:5557",
			Options: Options{DialContext: func(_ context.Context, network, address string) (net.Conn, error) {
				if network != "tcp" || address != "engine:5557" {
					t.Errorf("dials %s %s", network, address)
				}
				return nil, down
			}},
			Backoff: Backoff{Rand: func() float64 { return 0.5 }},
		}
		if err := s.Run(ctx, n); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Run returned %v", err)
		}
		if took := time.Since(n.since); took != 20*time.Second {
			t.Errorf("Run took %v", took)
		}
		var want []string
		for _, at := range []string{"0s", "75ms", "225ms", "525ms", "1.125s", "2.325s", "4.725s", "8.475s", "12.225s", "15.975s", "19.725s"} {
			want = append(want, at+" disconnected: zmtp: down")
		}
		if diff := cmp.Diff(want, n.all()); diff != "" {
			t.Error(diff)
		}
	})
}

func TestBackoffStaysInItsBounds(t *testing.T) {
	for _, chance := range []float64{0, 0.999999} {
		b := Backoff{Min: 50 * time.Millisecond, Max: time.Second, Rand: func() float64 { return chance }}.withDefaults()
		for failures := range 200 {
			if d := b.delay(failures); d < 25*time.Millisecond || d > time.Second {
				t.Errorf("after %d failures: %v", failures, d)
			}
		}
	}
	if b := (Backoff{Min: time.Minute}).withDefaults(); b.Max != time.Minute {
		t.Errorf("with a large smallest delay the largest is %v", b.Max)
	}
	b := Backoff{}.withDefaults()
	a, different := b.delay(3), 0
	for range 20 {
		if b.delay(3) != a {
			different++
		}
	}
	if different == 0 {
		t.Error("no jitter")
	}
}

// A connection of use starts the delays again, one that was of none does not.
func TestSubscriberReconnects(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lives := []func(h *hand){
			func(h *hand) { h.say([]byte("\x00\x01a\x00\x01b")) },
			func(h *hand) {}, // closed at once, nothing said
			func(h *hand) {}, // again
			func(h *hand) { time.Sleep(6 * time.Second) },    // quiet, yet it lasted
			func(h *hand) { h.say([]byte("\x00\x01c\x09")) }, // breaks the protocol
			func(h *hand) { h.say([]byte("\x00\x01d")) },
		}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		dials := 0
		s := &Subscriber{Address: "engine:1", Topics: [][]byte{[]byte("x"), []byte("y")}, Backoff: Backoff{Rand: func() float64 { return 0 }}}
		s.Options.DialContext = func(context.Context, string, string) (net.Conn, error) {
			if dials == len(lives) {
				cancel()
				return nil, errors.New("over")
			}
			h, ours := newHand(t)
			life := lives[dials]
			dials++
			h.say(hello(3, 0, "NULL"), ready("PUB"))
			go func() {
				for !strings.HasSuffix(h.heard(), "\x00\x02\x01x\x00\x02\x01y") {
					time.Sleep(time.Microsecond)
				}
				life(h)
				synctest.Wait()
				h.Close()
			}()
			return ours, nil
		}
		n := newNotes()
		n.since = time.Now()
		if err := s.Run(ctx, n); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
		var got []string
		for _, text := range n.all() {
			at, text, _ := strings.Cut(text, " ")
			d, err := time.ParseDuration(at)
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, d.Truncate(10*time.Millisecond).String()+" "+text)
		}
		want := []string{
			"0s connected", "0s message a", "0s message b", "0s disconnected: EOF",
			"50ms connected", "50ms disconnected: EOF",
			"150ms connected", "150ms disconnected: EOF", // the delay doubled
			"350ms connected", "6.35s disconnected: EOF", // and again
			"6.4s connected", "6.4s message c", "6.4s disconnected: zmtp: protocol error: a frame with the reserved flags 0x09",
			"6.45s connected", "6.45s message d", "6.45s disconnected: EOF",
			"6.5s disconnected: zmtp: over",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}

func TestSubscriberEndsAnywhere(t *testing.T) {
	for name, dial := range map[string]func(t *testing.T) func(ctx context.Context) (net.Conn, error){
		"dialling": func(*testing.T) func(ctx context.Context) (net.Conn, error) {
			return func(ctx context.Context) (net.Conn, error) { <-ctx.Done(); return nil, ctx.Err() }
		},
		"waiting to dial": func(*testing.T) func(ctx context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) { return nil, errors.New("down") }
		},
		"in the handshake": func(t *testing.T) func(ctx context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) { _, ours := newHand(t); return ours, nil }
		},
		"receiving": func(t *testing.T) func(ctx context.Context) (net.Conn, error) {
			return func(context.Context) (net.Conn, error) {
				h, ours := newHand(t)
				h.say(hello(3, 1, "NULL"), ready("PUB"))
				return ours, nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				cause := errors.New("endpoint gone")
				ctx, cancel := context.WithCancelCause(t.Context())
				time.AfterFunc(time.Second+time.Millisecond, func() { cancel(cause) })
				s := &Subscriber{Address: "engine:1"}
				s.Options.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(t)(ctx) }
				n, began := newNotes(), time.Now()
				if err := s.Run(ctx, n); !errors.Is(err, cause) {
					t.Errorf("Run returned %v", err)
				}
				if took := time.Since(began); took != time.Second+time.Millisecond {
					t.Errorf("took %v", took)
				}
				if all := n.all(); name == "receiving" {
					if diff := cmp.Diff([]string{"connected", "disconnected: endpoint gone"}, all); diff != "" {
						t.Error(diff)
					}
				}
			})
		})
	}
}

func TestSubscriberRefusesAddresses(t *testing.T) {
	n := newNotes()
	if err := (&Subscriber{Address: "ipc:///tmp/engine"}).Run(t.Context(), n); err == nil || !strings.Contains(err.Error(), "must be tcp") {
		t.Errorf("error %v", err)
	}
	if all := n.all(); len(all) > 0 {
		t.Errorf("told %q", all)
	}
}

// A dial ends with the handshake's timeout, whatever the network does.
func TestDialIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		_, err := Dial(t.Context(), "engine:1", SUB, Options{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			<-ctx.Done()
			return nil, os.ErrDeadlineExceeded
		}})
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != 5*time.Second {
			t.Errorf("error %v after %v", err, took)
		}
	})
}
