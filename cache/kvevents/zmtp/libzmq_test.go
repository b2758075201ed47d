package zmtp

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// subscribeTo runs a Subscriber until the test ends.
func subscribeTo(t testing.TB, s *Subscriber, h Handler) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := s.Run(ctx, h); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
}

func (n *notes) expect(t testing.TB, want ...string) {
	t.Helper()
	for _, text := range want {
		if got := n.next(t); !strings.HasPrefix(got, text) {
			t.Fatalf("told %q, want %q", got, text)
		}
	}
}

func TestLibzmqPublishes(t *testing.T) {
	for version, dial := range dialers() {
		for _, kind := range []string{"PUB", "XPUB"} {
			t.Run(version+" "+kind, func(t *testing.T) {
				z := startLibzmq(t, kind, "bind", "127.0.0.1:*")
				n := newNotes()
				subscribeTo(t, &Subscriber{Address: z.address(), Topics: [][]byte{[]byte("kv@"), []byte("x")}, Options: Options{DialContext: dial}}, n)
				n.expect(t, "connected")
				if kind == "XPUB" { // it tells of subscriptions
					z.recv("\x01kv@")
					z.recv("\x01x")
				} else { // messages that come too early are lost
					for len(n.seen) == 0 {
						z.send("x", "early")
						time.Sleep(5 * time.Millisecond)
					}
				}
				z.send("other", "not asked for")
				z.send("kv@a", "12345678", "", strings.Repeat("p", 300))
				z.send("xy")
				got := n.next(t)
				for got == "message x early" {
					got = n.next(t)
				}
				if want := "message kv@a 12345678  " + strings.Repeat("p", 300); got != want {
					t.Errorf("got %q, want %q", got, want)
				}
				n.expect(t, "message xy")
			})
		}
	}
}

func TestLibzmqPublisherConnects(t *testing.T) {
	n := newNotes()
	a := runAcceptor(t, AcceptorOptions{}, n.open)
	one := startLibzmq(t, "XPUB", "connect", a.Addr().String())
	n.expect(t, "connected")
	one.recv("\x01")
	two := startLibzmq(t, "XPUB", "connect", a.Addr().String())
	n.expect(t, "connected")
	two.recv("\x01")
	one.send("t", "of one")
	n.expect(t, "message t of one")
	two.send("t", "of two")
	n.expect(t, "message t of two")
	one.kill()
	n.expect(t, "disconnected")
	two.send("t", "of two")
	n.expect(t, "message t of two")
}

func TestLibzmqReplays(t *testing.T) {
	z := startLibzmq(t, "ROUTER", "bind", "127.0.0.1:*")
	c, err := Dial(t.Context(), "tcp://"+z.address(), DEALER, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for _, start := range []uint64{0, 90, 100} {
		if err := c.Send(nil, binary.BigEndian.AppendUint64(nil, start)); err != nil {
			t.Fatal(err)
		}
		z.order("replay 100")
		for seq := start; ; seq++ {
			frames := receive(t, c)
			if seq == 100 {
				if diff := cmp.Diff([]string{"", strings.Repeat("\xff", 8), ""}, frames); diff != "" {
					t.Error(diff)
				}
				break
			}
			want := []string{"", string(binary.BigEndian.AppendUint64(nil, seq)), strings.Repeat(string([]byte{byte(seq)}), 100)}
			if diff := cmp.Diff(want, frames); diff != "" {
				t.Fatal(diff)
			}
		}
		if got := z.answer("replayed "); got != fmt.Sprint(start) {
			t.Errorf("replayed from %s, want %d", got, start)
		}
	}
}

// A DEALER on either side.
func TestLibzmqDealers(t *testing.T) {
	z := startLibzmq(t, "DEALER", "bind", "127.0.0.1:*")
	c, err := Dial(t.Context(), z.address(), DEALER, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	must(t, c.Send([]byte("a"), nil))
	z.recv("a", "")
	z.send("", "b")
	if diff := cmp.Diff([]string{"", "b"}, receive(t, c)); diff != "" {
		t.Error(diff)
	}
}

func TestLibzmqSubscribes(t *testing.T) {
	for version, dial := range dialers() {
		t.Run("bound, "+version, func(t *testing.T) {
			z := startLibzmq(t, "SUB", "bind", "127.0.0.1:*")
			z.do("subscribed", "subscribe %s", hexFrames([]string{"kv@"}))
			p := NewPublisher(PublisherOptions{Options: Options{DialContext: dial}})
			defer p.Close()
			if err := p.Connect("tcp://" + z.address()); err != nil {
				t.Fatal(err)
			}
			checkSubscriber(t, p, z)
		})
	}
	t.Run("connecting", func(t *testing.T) {
		p, address := publish(t, PublisherOptions{})
		z := startLibzmq(t, "SUB", "connect", address)
		z.do("subscribed", "subscribe %s", hexFrames([]string{"kv@"}))
		checkSubscriber(t, p, z)
	})
}

func checkSubscriber(t *testing.T, p *Publisher, z *libzmq) {
	t.Helper()
	eventually(t, "libzmq subscribes", func() bool { return topicsOf(p) == 1 })
	big := strings.Repeat("p", 100_000)
	must(t, p.Send([]byte("other")))
	must(t, p.Send([]byte("kv@a"), []byte("12345678"), nil, []byte(big)))
	z.recv("kv@a", "12345678", "", big)
	z.do("subscribed", "subscribe %s", hexFrames([]string{"oth"}))
	eventually(t, "libzmq subscribes to more", func() bool { return topicsOf(p) == 2 })
	must(t, p.Send([]byte("other")))
	z.recv("other")
}

func TestLibzmqAsks(t *testing.T) {
	r := route(t, RouterOptions{}, func(_ net.Addr, frames [][]byte, reply func(frames ...[]byte) error) {
		if len(frames) == 2 && len(frames[0]) == 0 {
			_ = reply(nil, append([]byte("echo "), frames[1]...))
			if string(frames[1]) == "many" {
				_ = reply(nil, []byte("end"))
			}
		}
	})
	dealer := startLibzmq(t, "DEALER", "connect", r.Addr().String())
	for range 3 {
		dealer.send("", "many")
		dealer.recv("", "echo many")
		dealer.recv("", "end")
	}
	// A REQ adds the empty frame and takes it off.
	req := startLibzmq(t, "REQ", "connect", r.Addr().String())
	for range 3 {
		req.send("b")
		req.recv("echo b")
	}
}

func TestLibzmqOverIPv6(t *testing.T) {
	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	ln.Close()
	z := startLibzmq(t, "XPUB", "bind", "[::1]:*")
	n := newNotes()
	subscribeTo(t, &Subscriber{Address: net.JoinHostPort("::1", z.port)}, n)
	n.expect(t, "connected")
	z.recv("\x01")
	z.send("six")
	n.expect(t, "message six")

	p := NewPublisher(PublisherOptions{})
	defer p.Close()
	addr, err := p.Listen("[::1]:0")
	if err != nil {
		t.Fatal(err)
	}
	sub := startLibzmq(t, "SUB", "connect", addr.String())
	sub.do("subscribed", "subscribe -")
	eventually(t, "libzmq subscribes", func() bool { return p.Subscribers() == 1 })
	must(t, p.Send([]byte("six")))
	sub.recv("six")
}

// libzmq pings, and closes a connection that does not answer within a second.
func TestLibzmqHeartbeats(t *testing.T) {
	z := startLibzmq(t, "ROUTER", "bind", "127.0.0.1:*", "heartbeat=20")
	var pings counter
	c, err := Dial(t.Context(), z.address(), DEALER, Options{DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
		nc, err := new(net.Dialer).DialContext(ctx, network, address)
		return &counting{Conn: nc, pings: &pings}, err
	}})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for pings.value() < 80 { // 1.6 s or more
		must(t, c.SetReadDeadline(time.Now().Add(20*time.Millisecond)))
		if frames, err := c.Receive(); err == nil || !strings.Contains(err.Error(), "timeout") {
			t.Fatalf("%q, %v", frames, err)
		}
	}
	must(t, c.Send(nil, make([]byte, 8)))
	z.do("replayed 0", "replay 1")
	if frames := receive(t, c); len(frames) != 3 || len(frames[2]) != 100 {
		t.Errorf("%q", frames)
	}
}

type counter struct {
	mu sync.Mutex
	n  int
}

func (c *counter) add(n int) { c.mu.Lock(); c.n += n; c.mu.Unlock() }
func (c *counter) value() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.n
}

// counting counts the PINGs that come.
type counting struct {
	net.Conn
	pings *counter
}

func (c *counting) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.pings.add(bytes.Count(p[:n], []byte("\x04PING")))
	return n, err
}

func TestLibzmqRefused(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "CURVE"} {
		z := startLibzmq(t, "PUB", "bind", "127.0.0.1:*", "mechanism="+mechanism)
		_, err := Dial(t.Context(), z.address(), SUB, Options{})
		var unsupported *MechanismError
		if !errors.As(err, &unsupported) || unsupported.Mechanism != mechanism {
			t.Errorf("%s: error %v", mechanism, err)
		}
	}
	z := startLibzmq(t, "ROUTER", "bind", "127.0.0.1:*")
	_, err := Dial(t.Context(), z.address(), SUB, Options{})
	var unfit *SocketError
	if !errors.As(err, &unfit) || *unfit != (SocketError{Own: SUB, Peer: ROUTER}) {
		t.Errorf("a SUB to a ROUTER: error %v", err)
	}
}
