package zmtp

import (
	"errors"
	"testing"
	"time"
)

// Connections that bring large messages at the same time do not take more than their budget, whatever they bring, and
// give it back when they end.
func TestBudgetOfSeveralConnections(t *testing.T) {
	const message, arrived, most = 12 << 20, 8 << 20, 26 << 20
	budget := NewBudget(most)
	begun := func() *Conn { // a connection with a message of which a part is missing
		c, h := shake(t, 1, DEALER, ROUTER, Options{Budget: budget})
		h.say(long(0, message), make([]byte, arrived))
		return c
	}
	waiting := []*Conn{begun(), begun()}
	for _, c := range waiting {
		if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		for from := budget.Used(); budget.Used() < from+arrived-keepBytes; { // the pipe is slow under the race detector
			if _, err := c.Receive(); err == nil {
				t.Fatal("got a message that never came")
			} else if c.readErr != nil {
				t.Fatal(c.readErr)
			}
			if err := c.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
				t.Fatal(err)
			}
		}
	}
	third := begun()
	if _, err := third.Receive(); !errors.Is(err, ErrTooLarge) {
		t.Errorf("one connection too many: %v", err)
	}
	if used := budget.Used(); used > most || used < 2*(arrived-keepBytes) {
		t.Errorf("%d bytes are taken by two connections", used)
	}
	waiting[0].Close()
	c, h := shake(t, 1, DEALER, ROUTER, Options{Budget: budget})
	h.say(long(0, arrived), make([]byte, arrived))
	if frames, err := c.Receive(); err != nil || len(frames[0]) != arrived {
		t.Errorf("after one went: %v", err)
	}
	for _, c := range append(waiting, c, third) {
		c.Close()
		c.Close()
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("%d bytes are taken by nobody", used)
	}
}

// A buffer that is no longer needed is given back too, and small ones cost nothing.
func TestBudgetOfALargeBufferThatGoes(t *testing.T) {
	budget := NewBudget(20 << 20)
	stream := appendMessage(nil, [][]byte{make([]byte, 4<<20), make([]byte, 4<<20)})
	_, r, _ := readAll(stream, 1<<20, Options{Budget: budget})
	if used := budget.Used(); used < 8<<20-keepBytes || used > 16<<20 {
		t.Errorf("%d bytes are taken for 8 MiB", used)
	}
	r.share.close()
	for range keepMessages + 1 {
		stream = appendMessage(stream, [][]byte{make([]byte, keepBytes/2)})
	}
	if _, _, err := readAll(stream, 1<<20, Options{Budget: budget}); err.Error() != "EOF" {
		t.Error(err)
	}
	if used := budget.Used(); used != 0 {
		t.Errorf("%d bytes are taken for small messages", used)
	}
}
