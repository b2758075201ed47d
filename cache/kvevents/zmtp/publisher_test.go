package zmtp

import (
	"testing"
	"time"
)

func TestQuick(t *testing.T) {
	p := NewPublisher(PublisherOptions{})
	defer p.Close()
	addr, err := p.Listen("127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(t.Context(), addr.String(), SUB, Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Subscribe([]byte("a"))
	for p.Subscribers() == 0 {
		time.Sleep(time.Millisecond)
	}
	p.Send([]byte("b"))
	p.Send([]byte("ab"), []byte("x"))
	got, err := c.Receive()
	t.Logf("%q %v", got, err)
}
