package zmtp

import (
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func runAcceptor(t *testing.T, o AcceptorOptions, open func(net.Addr) Handler) *Acceptor {
	t.Helper()
	a, err := ListenSubscriber("127.0.0.1:0", o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := a.Run(ctx, open); !errors.Is(err, context.Canceled) {
			t.Errorf("Run returned %v", err)
		}
	})
	t.Cleanup(func() { cancel(); running.Wait() })
	return a
}

func TestAcceptorHearsEveryPublisher(t *testing.T) {
	n := newNotes()
	var mu sync.Mutex
	remotes := map[string]bool{}
	a := runAcceptor(t, AcceptorOptions{Topics: [][]byte{[]byte("kv@")}}, func(remote net.Addr) Handler {
		mu.Lock()
		defer mu.Unlock()
		remotes[remote.String()] = true
		return n
	})
	const publishers = 5
	var all []*Publisher
	for range publishers {
		p := NewPublisher(PublisherOptions{})
		t.Cleanup(func() { p.Close() })
		if err := p.Connect(a.Addr().String()); err != nil {
			t.Fatal(err)
		}
		all = append(all, p)
		if got := n.next(t); got != "connected" {
			t.Fatal(got)
		}
	}
	for i, p := range all {
		eventually(t, "subscribed", func() bool { return p.Subscribers() == 1 })
		must(t, p.Send([]byte("other"), []byte("not asked for")))
		must(t, p.Send([]byte("kv@a"), []byte{byte('0' + i)}))
		if got, want := n.next(t), "message kv@a "+string(rune('0'+i)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if len(remotes) != publishers {
		t.Errorf("%d remote addresses", len(remotes))
	}
	all[2].Close()
	if got := n.next(t); !strings.HasPrefix(got, "disconnected: ") {
		t.Error(got)
	}
	must(t, all[3].Send([]byte("kv@b")))
	if got := n.next(t); got != "message kv@b" {
		t.Error(got)
	}
	eventually(t, "it is gone", func() bool { return a.Counts() == Counts{Open: publishers - 1} })
}

// Connections beyond the bound, strangers, and those that the owner does not want leave those that are there alone.
func TestAcceptorIsBounded(t *testing.T) {
	n := newNotes()
	var unwanted atomic.Bool
	a := runAcceptor(t, AcceptorOptions{MaxConnections: 3}, func(net.Addr) Handler {
		if unwanted.Load() {
			return nil
		}
		return n
	})
	stranger := func() net.Conn {
		nc, err := net.Dial("tcp", a.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { nc.Close() })
		return nc
	}
	closed := func(nc net.Conn) {
		t.Helper()
		must(t, nc.SetReadDeadline(time.Now().Add(20*time.Second)))
		if _, err := io.Copy(io.Discard, nc); err != nil && strings.Contains(err.Error(), "timeout") {
			t.Error("not closed")
		}
	}
	p := NewPublisher(PublisherOptions{})
	t.Cleanup(func() { p.Close() })
	must(t, p.Connect(a.Addr().String()))
	if got := n.next(t); got != "connected" {
		t.Fatal(got)
	}

	speaksHTTP := stranger()
	io.WriteString(speaksHTTP, "GET / HTTP/1.1\r\n\r\n")
	closed(speaksHTTP)
	eventually(t, "the stranger counts as failed", func() bool { return a.Counts() == Counts{Open: 1, Failed: 1} })

	silent := []net.Conn{stranger(), stranger()}
	eventually(t, "silent ones count", func() bool { return a.Counts().Open == 3 })
	closed(stranger())
	if got := a.Counts(); got != (Counts{Open: 3, Failed: 1, Refused: 1}) {
		t.Errorf("%+v", got)
	}

	for _, nc := range silent {
		nc.Close()
	}
	eventually(t, "they are gone", func() bool { return a.Counts().Open == 1 })
	unwanted.Store(true)
	if c, err := Dial(t.Context(), a.Addr().String(), PUB, Options{}); err != nil {
		t.Error(err)
	} else {
		if _, err := c.Receive(); err == nil {
			t.Error("an unwanted publisher is subscribed to")
		}
		c.Close()
	}
	must(t, p.Send([]byte("still")))
	if got := n.next(t); got != "message still" {
		t.Error(got)
	}
	eventually(t, "the unwanted one is gone", func() bool { return a.Counts() == Counts{Open: 1, Failed: 3, Refused: 2} })
}

// worthy is a handler that is worth something once it brought a message.
type worthy struct {
	n    *notes
	busy atomic.Bool
}

func (w *worthy) Connected(net.Addr) {}
func (w *worthy) Disconnected(error) {}
func (w *worthy) Message(f [][]byte) { w.busy.Store(true); w.n.Message(f) }

// Where it is full the connections that are worth least go, the longest silent first, and never one that is worth more than
// the new one.
func TestAcceptorMakesRoom(t *testing.T) {
	n := newNotes()
	a := runAcceptor(t, AcceptorOptions{MaxConnections: 4, Worth: func(_ net.Addr, h Handler) int {
		if w, ok := h.(*worthy); ok && w.busy.Load() {
			return 1
		}
		return 0
	}}, func(net.Addr) Handler { return &worthy{n: n} })
	publish := func(text string) *Publisher {
		t.Helper()
		p := NewPublisher(PublisherOptions{Backoff: Backoff{Min: time.Hour, Max: time.Hour}})
		t.Cleanup(func() { p.Close() })
		must(t, p.Connect(a.Addr().String()))
		eventually(t, "subscribed", func() bool { return p.Subscribers() == 1 })
		if text != "" {
			must(t, p.Send([]byte(text)))
			if got := n.next(t); got != "message "+text {
				t.Fatal(got)
			}
		}
		return p
	}
	publish("a")
	silent, later := publish(""), publish("")
	halfway, err := net.Dial("tcp", a.Addr().String()) // says nothing at all
	if err != nil {
		t.Fatal(err)
	}
	defer halfway.Close()
	eventually(t, "it is full", func() bool { return a.Counts() == Counts{Open: 4} })
	b := publish("b")
	eventually(t, "the one that was silent longest goes", func() bool { return silent.Subscribers() == 0 })
	publish("c")
	eventually(t, "the next one goes", func() bool { return later.Subscribers() == 0 })
	publish("d")
	if _, err := io.Copy(io.Discard, halfway); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("the one in its handshake is not closed")
	}
	refused, err := net.Dial("tcp", a.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer refused.Close()
	must(t, refused.SetReadDeadline(time.Now().Add(20*time.Second)))
	if _, err := io.Copy(io.Discard, refused); err != nil && strings.Contains(err.Error(), "timeout") {
		t.Error("one more is not turned away")
	}
	must(t, b.Send([]byte("still")))
	if got := n.next(t); got != "message still" {
		t.Error(got)
	}
	if got := a.Counts(); got != (Counts{Open: 4, Refused: 4}) {
		t.Errorf("%+v", got)
	}
}

func TestAcceptorCloseEndsRun(t *testing.T) {
	a, err := ListenSubscriber("127.0.0.1:0", AcceptorOptions{})
	if err != nil {
		t.Fatal(err)
	}
	n := newNotes()
	ended := make(chan error, 1)
	go func() { ended <- a.Run(t.Context(), n.open) }()
	p := NewPublisher(PublisherOptions{})
	defer p.Close()
	must(t, p.Connect(a.Addr().String()))
	if got := n.next(t); got != "connected" {
		t.Fatal(got)
	}
	a.Close()
	if err := came(t, ended); err != nil {
		t.Errorf("Run returned %v", err)
	}
	if got := n.next(t); !strings.HasPrefix(got, "disconnected: ") {
		t.Error(got)
	}
}

func TestListenErrors(t *testing.T) {
	a, err := ListenSubscriber("[::1]:0", AcceptorOptions{})
	if err != nil {
		t.Skipf("no IPv6 here: %v", err)
	}
	defer a.Close()
	for address, text := range map[string]string{
		a.Addr().String():   "address already in use",
		"ipc:///tmp/events": "must be tcp",
		"127.0.0.1":         "missing port",
	} {
		if _, err := ListenSubscriber(address, AcceptorOptions{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: subscriber: %v", address, err)
		}
		if _, err := ListenRouter(address, RouterOptions{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: router: %v", address, err)
		}
		p := NewPublisher(PublisherOptions{})
		if _, err := p.Listen(address); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: publisher: %v", address, err)
		}
		p.Close()
	}
}

// exhausted is a listener that has no file descriptors for a while.
type exhausted struct {
	net.Listener
	failures int
	closed   chan struct{}
	next     chan net.Conn
}

func (e *exhausted) Accept() (net.Conn, error) {
	if e.failures > 0 {
		e.failures--
		return nil, errors.New("too many open files")
	}
	select {
	case nc := <-e.next:
		return nc, nil
	case <-e.closed:
		return nil, net.ErrClosed
	}
}

func (e *exhausted) Close() error {
	select {
	case <-e.closed:
	default:
		close(e.closed)
	}
	return nil
}

func TestListenerOutlivesExhaustion(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := &exhausted{failures: 20, closed: make(chan struct{}), next: make(chan net.Conn, 1)}
		l := &listener{ln: e, socket: SUB, options: Options{}.withDefaults(), max: 1}
		h, ours := newHand(t)
		e.next <- ours
		h.say(hello(3, 1, "NULL"), ready("PUB"))
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		err := l.run(ctx, func(_ context.Context, c *Conn, _ *member) {
			if took := time.Since(began); took < 5*time.Second || took > 20*time.Second {
				t.Errorf("accepted after %v: neither busy nor given up is wanted", took)
			}
			cancel()
		})
		if !errors.Is(err, context.Canceled) {
			t.Errorf("error %v", err)
		}
		if diff := cmp.Diff(Counts{}, l.counts()); diff != "" {
			t.Error(diff)
		}
	})
}
