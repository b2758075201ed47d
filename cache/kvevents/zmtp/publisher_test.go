package zmtp

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func publish(t testing.TB, o PublisherOptions) (*Publisher, string) {
	t.Helper()
	p := NewPublisher(o)
	t.Cleanup(func() { p.Close() })
	addr, err := p.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return p, addr.String()
}

func dialSub(t testing.TB, address string, topics ...string) *Conn {
	t.Helper()
	c, err := Dial(t.Context(), address, SUB, Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	for _, topic := range topics {
		if err := c.Subscribe([]byte(topic)); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

func receive(t testing.TB, c *Conn) []string {
	t.Helper()
	must(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
	frames, err := c.Receive()
	if err != nil {
		t.Fatal(err)
	}
	return texts(frames)
}

func TestPublisherHonoursTopics(t *testing.T) {
	p, address := publish(t, PublisherOptions{})
	a, both, every := dialSub(t, address, "a"), dialSub(t, address, "a", "b", "a"), dialSub(t, address, "")
	none := dialSub(t, address)
	eventually(t, "three subscribe", func() bool { return p.Subscribers() == 3 })
	eventually(t, "to all topics", func() bool { return topicsOf(p) == 4 })
	for _, topic := range []string{"aa", "b", "c", "", "a"} {
		if err := p.Send([]byte(topic), []byte("of "+topic)); err != nil {
			t.Fatal(err)
		}
	}
	for c, want := range map[*Conn][]string{a: {"aa", "a"}, both: {"aa", "b", "a"}, every: {"aa", "b", "c", "", "a"}} {
		for _, topic := range want {
			if diff := cmp.Diff([]string{topic, "of " + topic}, receive(t, c)); diff != "" {
				t.Error(diff)
			}
		}
	}
	// A topic asked for twice is cancelled by the second cancellation.
	for i, want := range []int{4, 3} {
		if err := both.writeAll(time.Second, appendCommand(nil, commandCancel, []byte("a"))); err != nil {
			t.Fatal(err)
		}
		eventually(t, fmt.Sprintf("cancelled %d times", i+1), func() bool { return topicsOf(p) == want })
	}
	must(t, p.Send([]byte("a")))
	must(t, p.Send([]byte("b")))
	if diff := cmp.Diff([]string{"b"}, receive(t, both)); diff != "" {
		t.Error(diff)
	}
	must(t, none.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	if frames, err := none.Receive(); err == nil {
		t.Errorf("one that asked for nothing got %q", frames)
	}
	if p.Dropped() != 0 {
		t.Errorf("%d dropped", p.Dropped())
	}
}

func topicsOf(p *Publisher) int {
	p.mu.RLock()
	defer p.mu.RUnlock()
	n := 0
	for s := range p.peers {
		n += s.topicCount()
	}
	return n
}

// One that does not read loses whole messages, and nobody else loses or waits.
func TestSlowSubscriberStallsNobody(t *testing.T) {
	p, address := publish(t, PublisherOptions{Queue: 50})
	slow, quick := dialSub(t, address, ""), dialSub(t, address, "")
	eventually(t, "both subscribe", func() bool { return p.Subscribers() == 2 })
	sent := uint64(0)
	message := func() (seq, body []byte) {
		seq = binary.BigEndian.AppendUint64(nil, sent)
		return seq, bytes.Repeat(seq, 1000)
	}
	for ; p.Dropped() < 100; sent++ {
		if sent > 100_000 {
			t.Fatal("nothing is dropped")
		}
		seq, body := message()
		if err := p.Send([]byte("t"), seq, body); err != nil {
			t.Fatal(err)
		}
		if got := receive(t, quick); got[1] != string(seq) || got[2] != string(body) {
			t.Fatalf("message %d: got %q of %d bytes", sent, got[1], len(got[2]))
		}
	}
	// Read at last, it gets what was kept, in order and whole.
	got, last := uint64(0), int64(-1)
	for ; got < sent-p.Dropped(); got++ {
		frames := receive(t, slow)
		seq := binary.BigEndian.Uint64([]byte(frames[1]))
		if int64(seq) <= last || frames[2] != string(bytes.Repeat([]byte(frames[1]), 1000)) {
			t.Fatalf("message %d after %d, %d bytes", seq, last, len(frames[2]))
		}
		last = int64(seq)
	}
	seq, body := message()
	must(t, p.Send([]byte("t"), seq, body))
	if frames := receive(t, slow); frames[1] != string(seq) {
		t.Errorf("after its queue ran empty: message %d, want %d", binary.BigEndian.Uint64([]byte(frames[1])), sent)
	}
}

func TestQueueIsBoundedInBytes(t *testing.T) {
	s := newSubscriber(nil, PublisherOptions{Queue: 4, QueueBytes: 100})
	offers := func(sizes ...int) (taken string) {
		for _, size := range sizes {
			taken += map[bool]string{true: "+", false: "-"}[s.offer(make([]byte, size))]
		}
		return taken
	}
	if got := offers(60, 41, 40, 1); got != "+-+-" {
		t.Errorf("60, 41, 40, 1 bytes of 100: %s", got)
	}
	if batch := s.take(make([][]byte, 0, 1)); len(batch) != 1 || len(batch[0]) != 60 || s.bytes != 40 {
		t.Errorf("took %d, %d bytes stay", len(batch), s.bytes)
	}
	if batch := s.take(make([][]byte, 0, 8)); len(batch) != 1 || s.bytes != 0 {
		t.Errorf("took %d, %d bytes stay", len(batch), s.bytes)
	}
	if got := offers(1000, 1); got != "+-" {
		t.Errorf("a message larger than the bound: %s", got)
	}
	s.take(make([][]byte, 0, 8))
	if got := offers(1, 1, 1, 1, 1); got != "++++-" {
		t.Errorf("five small ones: %s", got)
	}
	s.stop()
	if got := s.take(make([][]byte, 0, 8)); got != nil || s.bytes != 0 {
		t.Errorf("after stop: %d taken, %d bytes stay", len(got), s.bytes)
	}
}

// A subscriber that takes nothing at all is let go.
func TestDeafSubscriberIsClosed(t *testing.T) {
	p, address := publish(t, PublisherOptions{Options: Options{WriteTimeout: 50 * time.Millisecond}})
	dialSub(t, address, "")
	eventually(t, "it subscribes", func() bool { return p.Subscribers() == 1 })
	body := make([]byte, 1<<20)
	eventually(t, "it is closed", func() bool {
		must(t, p.Send(body))
		return p.Subscribers() == 0
	})
}

func TestTopicsAreBounded(t *testing.T) {
	p, address := publish(t, PublisherOptions{MaxTopics: 3})
	c := dialSub(t, address, "a", "b", "c", "a", "b")
	eventually(t, "three topics", func() bool { return topicsOf(p) == 3 })
	must(t, c.Subscribe([]byte("d")))
	if _, err := c.Receive(); err == nil {
		t.Error("a fourth topic is taken")
	}
	c = dialSub(t, address, "a")
	if err := c.Send(make([]byte, 64<<10+1)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Receive(); err == nil {
		t.Error("a subscription of more than 64 KiB is taken")
	}

	s := newSubscriber(nil, PublisherOptions{MaxTopics: 1 << 20})
	taken := 0
	for s.subscribe(append(make([]byte, 1000), byte(taken), byte(taken>>8))) {
		taken++
	}
	if want := maxTopicBytes / 1002; taken != want {
		t.Errorf("%d topics of 1002 bytes, want %d", taken, want)
	}
	s.cancel(append(make([]byte, 1000), 7, 0))
	if !s.subscribe(make([]byte, 1002)[:1000]) {
		t.Error("no room after a cancellation")
	}
}

// What an XSUB sends besides subscriptions is none of a PUB's business.
func TestPublisherIgnoresOtherMessages(t *testing.T) {
	p, address := publish(t, PublisherOptions{})
	c := dialSub(t, address)
	for _, m := range [][][]byte{{{}}, {{2, 'a'}}, {{1, 'a'}, {}}, {{0, 'z'}}, {{1, 'b'}}} {
		if err := c.Send(m...); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "subscribed", func() bool { return topicsOf(p) == 1 })
	must(t, p.Send([]byte("a")))
	must(t, p.Send([]byte("b")))
	if diff := cmp.Diff([]string{"b"}, receive(t, c)); diff != "" {
		t.Error(diff)
	}
}

func TestPublisherAfterClose(t *testing.T) {
	p, address := publish(t, PublisherOptions{})
	c := dialSub(t, address, "")
	p.Close()
	p.Close()
	if _, err := c.Receive(); err == nil {
		t.Error("the connection is still there")
	}
	if err := p.Send([]byte("a")); !errors.Is(err, ErrClosed) {
		t.Errorf("Send: %v", err)
	}
	if err := p.Connect(address); !errors.Is(err, ErrClosed) {
		t.Errorf("Connect: %v", err)
	}
	if _, err := p.Listen("127.0.0.1:0"); !errors.Is(err, ErrClosed) {
		t.Errorf("Listen: %v", err)
	}
	if err := p.Send(); err == nil || errors.Is(err, ErrClosed) {
		t.Errorf("no frames: %v", err)
	}
	if _, err := Dial(t.Context(), address, SUB, Options{}); err == nil {
		t.Error("still bound")
	}
}

// Senders, subscribers that come and go, and Close at once.
func TestPublisherUnderRaces(t *testing.T) {
	p, address := publish(t, PublisherOptions{Queue: 8})
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for i := range 20 {
				c, err := Dial(t.Context(), address, SUB, Options{})
				if err != nil {
					return // Close was first
				}
				if c.Subscribe([]byte{}) == nil && i%2 == 0 {
					_, _ = c.Receive()
				}
				c.Close()
			}
		})
	}
	for range 2 {
		busy.Go(func() {
			for p.Send([]byte("a"), make([]byte, 100)) == nil {
				time.Sleep(10 * time.Microsecond)
			}
		})
	}
	time.Sleep(50 * time.Millisecond)
	p.Close()
	busy.Wait()
	if p.Subscribers() != 0 {
		t.Errorf("%d subscribers after Close", p.Subscribers())
	}
}
