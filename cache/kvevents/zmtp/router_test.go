package zmtp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

type routerHandler = func(remote net.Addr, frames [][]byte, reply func(frames ...[]byte) error)

func route(t *testing.T, o RouterOptions, handle routerHandler) *Router {
	t.Helper()
	r, err := ListenRouter("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var serving sync.WaitGroup
	serving.Go(func() {
		if err := r.Serve(ctx, handle); !errors.Is(err, context.Canceled) {
			t.Errorf("Serve returned %v", err)
		}
	})
	t.Cleanup(func() { cancel(); serving.Wait() })
	return r
}

// stream answers a request of ["", n] with n messages and an end, as a replay does.
func stream(_ net.Addr, frames [][]byte, reply func(frames ...[]byte) error) {
	for i := range int(frames[1][0]) {
		if reply(nil, fmt.Append(nil, i)) != nil {
			return
		}
	}
	_ = reply(nil, []byte("end"))
}

func TestRouterStreamsReplies(t *testing.T) {
	r := route(t, RouterOptions{}, stream)
	var dealers sync.WaitGroup
	for n := range 4 {
		dealers.Go(func() {
			c, err := Dial(t.Context(), r.Addr().String(), DEALER, Options{})
			if err != nil {
				t.Error(err)
				return
			}
			defer c.Close()
			for range 3 {
				must(t, c.Send(nil, []byte{byte(n)}))
				var want, got []string
				for i := range n {
					want = append(want, fmt.Sprint(i))
				}
				want = append(want, "end")
				for range want {
					must(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
					frames, err := c.Receive()
					if err != nil || len(frames) != 2 || len(frames[0]) != 0 {
						t.Errorf("%q, %v", frames, err)
						return
					}
					got = append(got, string(frames[1]))
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Error(diff)
				}
			}
		})
	}
	dealers.Wait()
	eventually(t, "they are gone", func() bool { return r.Counts() == Counts{} })
}

// A peer that asks and does not read holds up its own replies, and those not for ever.
func TestRouterAndOneThatDoesNotRead(t *testing.T) {
	failed := make(chan error, 1)
	r := route(t, RouterOptions{Options: Options{WriteTimeout: 100 * time.Millisecond}}, func(remote net.Addr, frames [][]byte, reply func(frames ...[]byte) error) {
		if string(frames[0]) == "quick" {
			_ = reply([]byte("here"))
			return
		}
		big := make([]byte, 1<<20)
		for {
			if err := reply(big); err != nil {
				failed <- err
				return
			}
		}
	})
	deaf, err := Dial(t.Context(), r.Addr().String(), DEALER, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	must(t, deaf.Send([]byte("much")))
	quick, err := Dial(t.Context(), r.Addr().String(), DEALER, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer quick.Close()
	for range 10 {
		must(t, quick.Send([]byte("quick")))
		if diff := cmp.Diff([]string{"here"}, receive(t, quick)); diff != "" {
			t.Error(diff)
		}
	}
	if err := came(t, failed); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("error %v", err)
	}
	eventually(t, "the connection ends", func() bool { return r.Counts().Open == 1 })
}

// Serve ends while peers are connected, silent, or amid a reply.
func TestRouterEnds(t *testing.T) {
	r, err := ListenRouter("127.0.0.1:0", RouterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	replying := make(chan struct{}, 1)
	ended := make(chan error, 1)
	cause := errors.New("shutdown")
	ctx, cancel := context.WithCancelCause(t.Context())
	go func() {
		ended <- r.Serve(ctx, func(_ net.Addr, _ [][]byte, reply func(frames ...[]byte) error) {
			replying <- struct{}{}
			for reply(make([]byte, 1<<20)) == nil {
			}
		})
	}()
	for range 2 {
		c, err := Dial(t.Context(), r.Addr().String(), DEALER, Options{})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
	}
	c, err := Dial(t.Context(), r.Addr().String(), DEALER, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must(t, c.Send([]byte("go")))
	came(t, replying)
	cancel(cause)
	if err := came(t, ended); !errors.Is(err, cause) {
		t.Errorf("Serve returned %v", err)
	}
}

// What a peer has asked for already, and is in the connection's buffer, is not handled once Serve is to end, nor once the
// peer cannot be answered.
func TestRouterLeavesWhatWasAsked(t *testing.T) {
	for name, o := range map[string]Options{"end": {}, "peer that does not read": {WriteTimeout: 50 * time.Millisecond}} {
		t.Run(name, func(t *testing.T) {
			r, err := ListenRouter("127.0.0.1:0", RouterOptions{Options: o})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			handled := make(chan struct{}, 1000)
			go func() {
				ended <- r.Serve(ctx, func(_ net.Addr, _ [][]byte, reply func(frames ...[]byte) error) {
					handled <- struct{}{}
					if o.WriteTimeout == 0 {
						cancel()
					}
					for reply(make([]byte, 1<<20)) == nil {
					}
				})
			}()
			c, err := Dial(t.Context(), r.Addr().String(), DEALER, Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			var asks [][]byte // written at once, so that the Router reads them at once
			for range 100 {
				asks = append(asks, appendMessage(nil, [][]byte{[]byte("ask")}))
			}
			must(t, c.writeBatch(asks))
			eventually(t, "the connection ends", func() bool { return r.Counts().Open == 0 })
			cancel()
			if err := came(t, ended); !errors.Is(err, context.Canceled) {
				t.Errorf("Serve returned %v", err)
			}
			if n := len(handled); n != 1 {
				t.Errorf("%d of 100 requests were handled", n)
			}
		})
	}
}
