package zmtp

import (
	"bytes"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestReceiveRefuses(t *testing.T) {
	limits := Options{MaxFrameBytes: 1000, MaxFrames: 4}
	for name, tt := range map[string]struct {
		say   string
		close bool
		want  error
		text  string
		took  time.Duration
	}{
		"a length of 2^63":             {say: string(long(0, 1<<63)), want: ErrProtocol, text: "9223372036854775808"},
		"a length of 2^63-1":           {say: string(long(0, 1<<63-1)), want: ErrTooLarge},
		"a byte too many":              {say: string(long(0, 1001)), want: ErrTooLarge, text: "1001 bytes or more, at most 1000"},
		"a byte too many in all":       {say: "\x01\xff" + strings.Repeat("a", 255) + string(long(0, 746)), want: ErrTooLarge, text: "1001 bytes"},
		"endless MORE":                 {say: strings.Repeat("\x01\x00", 5), want: ErrTooLarge, text: "more than 4 frames"},
		"a frame too many":             {say: "\x01\x00\x01\x00\x01\x00\x01\x00\x00\x00", want: ErrTooLarge},
		"reserved flags":               {say: "\x08\x01a", want: ErrProtocol, text: "0x08"},
		"a command with MORE":          {say: "\x05\x03\x01Xa", want: ErrProtocol},
		"a long command":               {say: string(long(4, 1<<40)), want: ErrTooLarge, text: "a command of 1099511627776 bytes, at most 16384"},
		"a command without name":       {say: "\x04\x00", want: ErrProtocol},
		"a PING without time to live":  {say: "\x04\x06\x04PING\x00", want: ErrProtocol},
		"a PING with too much context": {say: "\x04\x18\x04PING\x00\x00" + strings.Repeat("a", 17), want: ErrProtocol},
		"ERROR":                        {say: "\x04\x0b\x05ERROR\x04full", want: &PeerError{}, text: `"full"`},
		"close":                        {close: true, want: io.EOF},
		"half a head, then close":      {say: string(long(0, 20)[:5]), close: true, want: io.ErrUnexpectedEOF},
		"half a body, then close":      {say: "\x00\x05ab", close: true, want: io.ErrUnexpectedEOF},
		"half a message, then close":   {say: "\x01\x02ab", close: true, want: io.ErrUnexpectedEOF},
		"half a command, then close":   {say: "\x04\x05\x04PIN", close: true, want: io.ErrUnexpectedEOF},
		"half a head, then silence":    {say: string(long(0, 20)[:5]), want: ErrStalled, text: "30s", took: 30 * time.Second},
		"half a body, then silence":    {say: "\x00\x05ab", want: ErrStalled, took: 30 * time.Second},
		"half a message, then silence": {say: "\x01\x02ab", want: ErrStalled, took: 30 * time.Second},
		"half a command, then silence": {say: "\x04\x05\x04PIN", want: ErrStalled, took: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c, h := shake(t, 1, SUB, PUB, limits)
				go func() {
					h.Write([]byte("\x00\x05first" + tt.say))
					if tt.close {
						h.Close()
					}
				}()
				if frames, err := c.Receive(); err != nil || string(frames[0]) != "first" {
					t.Fatalf("the message before: %q, %v", frames, err)
				}
				began := time.Now()
				frames, err := c.Receive()
				var refused *PeerError
				if is := errors.Is(err, tt.want) || errors.As(tt.want, &refused) && errors.As(err, &refused); !is || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("frames %q, error %v, want %v with %q", frames, err, tt.want, tt.text)
				}
				if took := time.Since(began); took != tt.took {
					t.Errorf("took %v, want %v", took, tt.took)
				}
				if _, again := c.Receive(); again != err { //nolint:errorlint // the very same error
					t.Errorf("the next error is %v, want %v again", again, err)
				}
				<-h.done // the connection is closed
			})
		})
	}
}

// A quiet publisher is no fault, however long it is quiet.
func TestReceiveWaitsBetweenMessages(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, h := shake(t, 1, SUB, PUB, Options{})
		go func() {
			for range 3 {
				time.Sleep(24 * time.Hour)
				h.Write([]byte("\x01\x01a\x00\x01b"))
			}
		}()
		for range 3 {
			if frames, err := c.Receive(); err != nil || len(frames) != 2 {
				t.Fatalf("%q, %v", frames, err)
			}
		}
	})
}

// A slow message is none that stands still.
func TestReceiveSlowMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, h := shake(t, 1, SUB, PUB, Options{})
		want := strings.Repeat("slow", 30)
		go func() {
			for _, b := range []byte("\x00\x78" + want) {
				time.Sleep(29 * time.Second)
				h.Write([]byte{b})
			}
		}()
		if frames, err := c.Receive(); err != nil || string(frames[0]) != want {
			t.Fatalf("%q, %v", frames, err)
		}
	})
}

// A deadline may pass at any byte, and costs nothing of the message.
func TestReceiveGoesOnAfterADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, h := shake(t, 1, SUB, PUB, Options{})
		body := strings.Repeat("0123456789", 4000) // more than the input buffer holds
		stream := append([]byte("\x01\x05topic\x04\x07\x05OTHERa"), long(0, uint64(len(body)))...)
		edge := len(stream)
		stream = append(stream, body...)
		go func() {
			for i := 0; i < len(stream); {
				n := 1
				if i > edge {
					n = 1000
				}
				n = min(n, len(stream)-i)
				time.Sleep(3 * time.Second)
				h.Write(stream[i : i+n])
				i += n
			}
		}()
		passed := 0
		for {
			if err := c.SetReadDeadline(time.Now().Add(time.Second)); err != nil {
				t.Fatal(err)
			}
			frames, err := c.Receive()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				passed++
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff([]string{"topic", body}, texts(frames)); diff != "" {
				t.Error(diff)
			}
			break
		}
		if passed < edge {
			t.Errorf("%d deadlines passed, want one before each byte of %d at least", passed, edge)
		}
	})
}

// Deadlines of the user do not lengthen a peer's time to go on with a message, and what is spent between two calls is
// not the peer's.
func TestStallBesideDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, h := shake(t, 1, SUB, PUB, Options{})
		h.say([]byte("\x00\x05ab"))
		passed := 0
		for {
			must(t, c.SetReadDeadline(time.Now().Add(time.Second)))
			_, err := c.Receive()
			if errors.Is(err, ErrStalled) {
				break
			}
			if !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Fatal(err)
			}
			if passed++; passed > 100 {
				t.Fatal("no end")
			}
			if passed == 10 {
				time.Sleep(time.Hour)
			}
		}
		if passed < 28 || passed > 30 {
			t.Errorf("stalled after %d deadlines of a second, want 30 s", passed)
		}
	})
}

func TestReadDeadlineWhileReceiving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := shake(t, 1, SUB, PUB, Options{})
		time.AfterFunc(time.Minute, func() { must(t, c.SetReadDeadline(time.Now().Add(time.Minute))) })
		began := time.Now()
		if _, err := c.Receive(); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal(err)
		}
		if took := time.Since(began); took != 2*time.Minute {
			t.Errorf("took %v", took)
		}
	})
}

func TestCommandsBesideMessages(t *testing.T) {
	c, h := shake(t, 1, SUB, PUB, Options{})
	h.say([]byte("\x04\x09\x04PING\x00\x0aab" + // answered with its context
		"\x04\x06\x05OTHER" + "\x04\x05\x04PONG" + // without a meaning here
		"\x04\x0b\x09SUBSCRIBEa" + // said to the wrong side
		"\x01\x01x" + "\x04\x07\x04PING\x00\x00" + "\x00\x01y")) // between the frames of a message
	frames, err := c.Receive()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"x", "y"}, texts(frames)); diff != "" {
		t.Error(diff)
	}
	want := "\x04\x07\x04PONGab" + "\x04\x05\x04PONG"
	eventually(t, "both are answered", func() bool { return len(h.heard()) >= len(want) })
	if got := h.heard(); got != want {
		t.Errorf("answered %q, want %q", got, want)
	}
}

func TestSubscribeOnTheWire(t *testing.T) {
	for minor, want := range map[byte]string{
		0: "\x00\x04\x01kv@" + "\x00\x01\x01",
		1: "\x04\x0d\x09SUBSCRIBEkv@" + "\x04\x0a\x09SUBSCRIBE",
	} {
		c, h := shake(t, minor, SUB, PUB, Options{})
		if err := errors.Join(c.Subscribe([]byte("kv@")), c.Subscribe(nil)); err != nil {
			t.Fatal(err)
		}
		eventually(t, "it is said", func() bool { return len(h.heard()) >= len(want) })
		if got := h.heard(); got != want {
			t.Errorf("3.%d: said %q, want %q", minor, got, want)
		}
		if err := c.Subscribe(make([]byte, 16<<10)); !errors.Is(err, ErrTooLarge) {
			t.Errorf("a topic of 16 KiB: error %v", err)
		}
	}
	c, _ := shake(t, 1, DEALER, ROUTER, Options{})
	if err := c.Subscribe(nil); err == nil || !strings.Contains(err.Error(), "must be SUB, got DEALER") {
		t.Errorf("a DEALER subscribes: error %v", err)
	}
}

// Both forms of a subscription look the same to a PUB.
func TestSubscriptionsArrive(t *testing.T) {
	c, h := shake(t, 1, PUB, SUB, Options{})
	h.say([]byte("\x00\x03\x01ab" + "\x04\x0c\x09SUBSCRIBEab" + "\x04\x09\x06CANCELab" + "\x00\x03\x00ab" + "\x04\x0a\x09SUBSCRIBE"))
	for _, want := range []string{"\x01ab", "\x01ab", "\x00ab", "\x00ab", "\x01"} {
		frames, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{want}, texts(frames)); diff != "" {
			t.Error(diff)
		}
	}
}

func TestSendOnTheWire(t *testing.T) {
	c, h := shake(t, 1, DEALER, ROUTER, Options{})
	if err := c.Send(nil, []byte("12345678")); err != nil {
		t.Fatal(err)
	}
	body := bytes.Repeat([]byte("a"), 256)
	if err := c.Send(body[:255], body); err != nil {
		t.Fatal(err)
	}
	want := "\x01\x00\x00\x0812345678" + "\x01\xff" + string(body[:255]) + "\x02\x00\x00\x00\x00\x00\x00\x01\x00" + string(body)
	eventually(t, "it is said", func() bool { return len(h.heard()) >= len(want) })
	if got := h.heard(); got != want {
		t.Errorf("said %q", got)
	}
	if err := c.Send(); err == nil {
		t.Error("a message without frames was sent")
	}
}

func TestMessagesOfEverySize(t *testing.T) {
	c, other := pair(t, DEALER, ROUTER, Options{})
	sizes := []int{0, 1, 254, 255, 256, 257, copyBytes - 1, copyBytes, copyBytes + 1, inputBytes - 9, inputBytes, outputSize - 5, outputSize, growBytes + 1, 1 << 20, 8 << 20}
	var messages [][][]byte
	for i, size := range sizes {
		body := bytes.Repeat([]byte{byte(i), 1, 2, 3, 4, 5, 6}, size/7+1)[:size]
		messages = append(messages, [][]byte{body}, [][]byte{[]byte("topic"), body, nil, body})
	}
	failed := make(chan error, 1)
	go func() {
		for _, m := range messages {
			if err := c.Send(m...); err != nil {
				failed <- err
				return
			}
		}
		failed <- nil
	}()
	for i, want := range messages {
		frames, err := other.Receive()
		if err != nil {
			t.Fatal(err)
		}
		if len(frames) != len(want) {
			t.Fatalf("message %d has %d frames, want %d", i, len(frames), len(want))
		}
		for j := range want {
			if !bytes.Equal(frames[j], want[j]) {
				t.Errorf("message %d, frame %d: %d bytes differ from the %d that were sent", i, j, len(frames[j]), len(want[j]))
			}
		}
	}
	if err := <-failed; err != nil {
		t.Error(err)
	}
}

// A peer that reads nothing blocks a sender for a while, not for ever.
func TestSendIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, ours := newDeafPipe(t)
		go func() {
			theirs.Write(hello(3, 1, "NULL"))
			theirs.Write(ready("ROUTER"))
		}()
		go func() { _, _ = io.CopyN(io.Discard, theirs, greetingBytes+43) }() // the greeting and READY
		c, err := Handshake(t.Context(), ours, DEALER, Options{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		err = c.Send([]byte("a"))
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != 10*time.Second {
			t.Errorf("error %v after %v", err, took)
		}
		if again := c.Send([]byte("b")); again != err { //nolint:errorlint // the very same error
			t.Errorf("then %v, want %v again", again, err)
		}
		if _, err := c.Receive(); err == nil || time.Since(began) != 10*time.Second {
			t.Errorf("the connection is still there: %v after %v", err, time.Since(began))
		}
	})
}

// The answer to a PING is a write as any other.
func TestPongIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, ours := newDeafPipe(t)
		go func() {
			theirs.Write(hello(3, 1, "NULL"))
			theirs.Write(ready("ROUTER"))
			theirs.Write([]byte("\x04\x07\x04PING\x00\x00"))
		}()
		go func() { _, _ = io.CopyN(io.Discard, theirs, greetingBytes+43) }()
		c, err := Handshake(t.Context(), ours, DEALER, Options{})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		_, err = c.Receive()
		if took := time.Since(began); !errors.Is(err, os.ErrDeadlineExceeded) || took != 10*time.Second {
			t.Errorf("error %v after %v", err, took)
		}
		if _, again := c.Receive(); again != err { //nolint:errorlint // the very same error
			t.Errorf("then %v: a failed answer is final, unlike a deadline of the reader's", again)
		}
	})
}

func TestCloseEndsReceiveAndSend(t *testing.T) {
	c, _ := pair(t, DEALER, ROUTER, Options{})
	ended := make(chan error, 2)
	go func() {
		_, err := c.Receive()
		ended <- err
	}()
	go func() {
		big := make([]byte, 8<<20)
		for {
			if err := c.Send(big); err != nil {
				ended <- err
				return
			}
		}
	}()
	time.Sleep(20 * time.Millisecond) // for both to block; too short a time only makes the test weaker
	c.Close()
	for range 2 {
		select {
		case err := <-ended:
			if !errors.Is(err, net.ErrClosed) {
				t.Errorf("error %v, want net.ErrClosed", err)
			}
		case <-time.After(5 * time.Second):
			t.Fatal("still blocked")
		}
	}
}
