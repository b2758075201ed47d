package zmtp

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"
)

// soon dials again at once, so that a test waits for the peer alone.
var soon = Backoff{Min: 10 * time.Millisecond, Max: 20 * time.Millisecond}

// An engine dies and comes back on its port, several times.
func TestLibzmqPublisherRestarts(t *testing.T) {
	z := startLibzmq(t, "XPUB", "bind", "127.0.0.1:*")
	address := z.address()
	n := newNotes()
	subscribeTo(t, &Subscriber{Address: address, Topics: [][]byte{[]byte("t")}, Backoff: soon}, n)
	for life := range 3 {
		for {
			if got := n.next(t); got == "connected" {
				break
			} else if !strings.HasPrefix(got, "disconnected: zmtp: dial tcp") {
				t.Fatalf("told %q while the engine is down", got)
			}
		}
		z.recv("\x01t")
		z.send("t", fmt.Sprint("life ", life))
		n.expect(t, fmt.Sprint("message t life ", life))
		z.kill()
		n.expect(t, "disconnected: ")
		if life < 2 {
			z = startLibzmq(t, "XPUB", "bind", address)
		}
	}
}

// The other way round: the engine connects, dies and connects again.
func TestLibzmqConnectingPublisherRestarts(t *testing.T) {
	n := newNotes()
	a := runAcceptor(t, AcceptorOptions{}, n.open)
	for life := range 3 {
		z := startLibzmq(t, "XPUB", "connect", a.Addr().String())
		n.expect(t, "connected")
		z.recv("\x01")
		z.send("t", fmt.Sprint(life))
		n.expect(t, fmt.Sprint("message t ", life))
		z.kill()
		n.expect(t, "disconnected: ")
	}
	if got := a.Counts(); got.Failed != 0 || got.Refused != 0 {
		t.Errorf("%+v", got)
	}
}

// A Publisher finds a bound SUB that came back, and libzmq's SUB a Publisher that did.
func TestLibzmqSubscriberOutlivesRestarts(t *testing.T) {
	z := startLibzmq(t, "SUB", "bind", "127.0.0.1:*")
	address := z.address()
	p := NewPublisher(PublisherOptions{Backoff: soon})
	defer p.Close()
	must(t, p.Connect(address))
	for life := range 3 {
		z.do("subscribed", "subscribe -")
		eventually(t, "libzmq subscribes", func() bool { return p.Subscribers() == 1 })
		must(t, p.Send([]byte("t"), []byte{byte(life)}))
		z.recv("t", string([]byte{byte(life)}))
		z.kill()
		eventually(t, "it is gone", func() bool { return p.Subscribers() == 0 })
		z = startLibzmq(t, "SUB", "bind", address)
	}

	q := NewPublisher(PublisherOptions{})
	addr, err := q.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	z = startLibzmq(t, "SUB", "connect", addr.String())
	z.do("subscribed", "subscribe -")
	for life := range 3 {
		eventually(t, "libzmq subscribes", func() bool { return q.Subscribers() == 1 })
		must(t, q.Send([]byte("t"), []byte{byte(life)}))
		z.recv("t", string([]byte{byte(life)}))
		q.Close()
		q = NewPublisher(PublisherOptions{})
		eventually(t, "the port can be bound again", func() bool {
			_, err := q.Listen(addr.String())
			return err == nil
		})
	}
	q.Close()
}

// gate is a Handler that reads nothing until it is opened, then checks what a flood sent.
type gate struct {
	connected, open chan struct{}

	mu                   sync.Mutex
	count, faults        int
	first, last, longest int64 // longest is the largest gap
}

func newGate() *gate {
	return &gate{connected: make(chan struct{}, 10), open: make(chan struct{}), first: -1, last: -1}
}

func (g *gate) Connected(net.Addr) { g.connected <- struct{}{} }
func (g *gate) Disconnected(error) {}
func (g *gate) Message(frames [][]byte) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	seq := int64(binary.BigEndian.Uint64(frames[1]))
	if len(frames) != 3 || string(frames[0]) != "t" || seq <= g.last || !bytes.Equal(frames[2], bytes.Repeat([]byte{byte(seq)}, len(frames[2]))) {
		g.faults++
	}
	if g.count == 0 {
		g.first = seq
	} else {
		g.longest = max(g.longest, seq-g.last-1)
	}
	g.last = seq
	g.count++
}

func (g *gate) state() (count, faults int, first, last, longest int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.count, g.faults, g.first, g.last, g.longest
}

// A SUB that does not read makes libzmq drop whole messages; what comes is in order, and the connection lives on.
func TestLibzmqAndASlowReader(t *testing.T) {
	z := startLibzmq(t, "XPUB", "bind", "127.0.0.1:*", "sndhwm=20")
	g := newGate()
	subscribeTo(t, &Subscriber{Address: z.address()}, g)
	came(t, g.connected)
	z.recv("\x01")
	const flood = 5000
	z.do("flooded", "flood 0 %d 10000", flood) // 50 MB, far more than sockets buffer
	close(g.open)
	z.do("flooded", "flood %d 1 10000", flood) // lost if the queue is still full
	eventually(t, "messages after the flood", func() bool {
		z.do("flooded", "flood %d 1 10000", flood+1)
		_, _, _, last, _ := g.state()
		return last == flood+1
	})
	count, _, first, _, longest := g.state()
	if first != 0 || longest == 0 || count >= flood {
		t.Errorf("%d messages of %d from %d, largest gap %d: want the first ones, and a gap", count, flood, first, longest)
	}
	if len(g.connected) > 0 {
		t.Error("the connection did not last")
	}
}

// A SUB of libzmq that does not read makes the Publisher drop whole messages, and keeps nobody waiting.
func TestSlowLibzmqReader(t *testing.T) {
	p, address := publish(t, PublisherOptions{Queue: 20})
	z := startLibzmq(t, "SUB", "connect", address, "rcvhwm=20")
	z.do("subscribed", "subscribe -")
	quick := dialSub(t, address, "")
	eventually(t, "both subscribe", func() bool { return p.Subscribers() == 2 })
	sent := 0
	for ; p.Dropped() < 100; sent++ {
		if sent > 100_000 {
			t.Fatal("nothing is dropped")
		}
		seq := binary.BigEndian.AppendUint64(nil, uint64(sent))
		must(t, p.Send([]byte("t"), seq, bytes.Repeat(seq[7:], 10_000)))
		if got := receive(t, quick); got[1] != string(seq) {
			t.Fatalf("the quick one got %q, want %d", got[1], sent)
		}
	}
	kept, total, before := sent-int(p.Dropped()), 0, -1
	eventually(t, "libzmq got all that was kept", func() bool {
		var count, first, last, faults int
		answer := z.do("drained ", "drain 50")
		if _, err := fmt.Sscan(answer, &count, &first, &last, &faults); err != nil {
			t.Fatal(answer, err)
		}
		if faults > 0 || count > 0 && (first <= before || total == 0 && first != 0) {
			t.Errorf("libzmq got %d from %d to %d after %d, %d out of order or cut", count, first, last, before, faults)
		}
		if total += count; count > 0 {
			before = last
		}
		return total >= kept
	})
	if total != kept {
		t.Errorf("libzmq got %d messages of %d kept", total, kept)
	}
	must(t, p.Send([]byte("t"), []byte("12345678"), nil))
	z.recv("t", "12345678", "")
}

func TestLibzmqLargeMessages(t *testing.T) {
	const size = 8 << 20
	z := startLibzmq(t, "XPUB", "bind", "127.0.0.1:*")
	c := dialSub(t, z.address(), "t")
	z.recv("\x01t")
	for seq := range uint64(3) {
		z.do("flooded", "flood %d 1 %d", seq, size)
		frames := receive(t, c)
		if len(frames) != 3 || frames[2] != strings.Repeat(string([]byte{byte(seq)}), size) {
			t.Errorf("message %d: %d frames, the last of %d bytes", seq, len(frames), len(frames[len(frames)-1]))
		}
	}

	p, address := publish(t, PublisherOptions{})
	sub := startLibzmq(t, "SUB", "connect", address)
	sub.do("subscribed", "subscribe -")
	eventually(t, "libzmq subscribes", func() bool { return p.Subscribers() == 1 })
	body := strings.Repeat("0123456789abcdef", size/16)
	for _, topic := range []string{"a", "b", "c"} {
		must(t, p.Send([]byte(topic), []byte(body), []byte("end")))
	}
	for _, topic := range []string{"a", "b", "c"} {
		sub.recv(topic, body, "end")
	}

	router := startLibzmq(t, "ROUTER", "bind", "127.0.0.1:*")
	dealer, err := Dial(t.Context(), router.address(), DEALER, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer dealer.Close()
	if err := dealer.Send([]byte(body), []byte("end")); err != nil {
		t.Fatal(err)
	}
	if got, want := router.do("got ", "recv"), hexFrames([]string{body, "end"}); !strings.HasSuffix(got, " "+want) {
		t.Errorf("libzmq's ROUTER got %s, want an identity and %s", got, want)
	}
}
