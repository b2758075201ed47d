package zmtp

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// captured is what libzmq 4.3.5 said on a socket of each type, from its greeting on.
var captured = map[string]struct {
	own      Socket // the type that hears it
	messages [][]string
}{
	"sub": {PUB, [][]string{{"\x01kv@"}, {"\x00kv@"}}}, // and three PINGs
	"xpub": {SUB, [][]string{
		{"kv@10.0.0.1:8000@m", "\x00\x00\x00\x00\x00\x00\x00\x07", "\x93\xcb\x00\x00\x00\x00\x00\x00\x00\x00\x90\x00"},
		{"kv@", strings.Repeat("x", 300)},
	}},
	"dealer": {ROUTER, [][]string{{"", strings.Repeat("\x00", 8)}}},
	"router": {DEALER, [][]string{{"", strings.Repeat("\x00", 8), "\x93"}, {"", strings.Repeat("\xff", 8), ""}}},
}

func capture(t testing.TB, name string) []byte {
	t.Helper()
	content, err := os.ReadFile("testdata/libzmq-" + name + ".bin")
	if err != nil {
		t.Fatal(err)
	}
	return content
}

// hear gives a stream to a Conn in pieces, and returns the messages of it and the error at the end.
func hear(t testing.TB, own Socket, stream []byte, piece int, o Options) ([][]string, *Conn, error) {
	nc := &replay{content: stream, piece: piece}
	c, err := Handshake(t.Context(), nc, own, o)
	if err != nil {
		return nil, nil, err
	}
	var messages [][]string
	for {
		frames, err := c.Receive()
		if err != nil {
			return messages, c, err
		}
		messages = append(messages, texts(frames))
	}
}

func TestCapturedLibzmq(t *testing.T) {
	for name, want := range captured {
		for _, piece := range []int{1, 7, 1 << 20} {
			got, _, err := hear(t, want.own, capture(t, name), piece, Options{})
			if !errors.Is(err, io.EOF) {
				t.Errorf("%s: error %v", name, err)
			}
			if diff := cmp.Diff(want.messages, got); diff != "" {
				t.Errorf("%s: %s", name, diff)
			}
		}
	}
}

// class is what is the same of an error whichever pieces a stream came in.
func class(err error) string {
	for _, sentinel := range []error{ErrProtocol, ErrTooLarge, io.ErrUnexpectedEOF, io.EOF} {
		if errors.Is(err, sentinel) {
			return sentinel.Error()
		}
	}
	return fmt.Sprintf("%T", errors.Unwrap(err))
}

var fuzzed = []Socket{SUB, PUB, DEALER, ROUTER}

// FuzzConn is a peer that says anything at all: nothing breaks, bounds hold, memory follows what arrived, and the
// pieces in which it arrived do not matter.
func FuzzConn(f *testing.F) {
	for name, c := range captured {
		for i, own := range fuzzed {
			if own == c.own {
				f.Add(capture(f, name), uint8(i), uint8(3))
			}
		}
	}
	shaken := append(hello(3, 0, "NULL"), ready("PUB")...)
	for _, say := range []string{
		"\x00\x01a", "\x01\x01a\x00\x01b", strings.Repeat("\x01\x00", 20), string(long(0, 1<<62)), string(long(1, 1000)) + "abc",
		"\x04\x09\x04PING\x00\x0aab", "\x04\x0b\x05ERROR\x04full", "\x04\x00", "\x01\x01a\x04\x05\x04PONG\x00\x01b",
	} {
		f.Add(append(bytes.Clone(shaken), say...), uint8(0), uint8(1))
	}
	f.Add(hello(3, 1, "CURVE"), uint8(0), uint8(30))
	f.Add([]byte("HTTP/1.1 400 Bad Request\r\n\r\n"), uint8(0), uint8(30))
	f.Fuzz(func(t *testing.T, stream []byte, own, piece uint8) {
		o := Options{MaxFrameBytes: 1 << 20, MaxFrames: 8}
		socket := fuzzed[int(own)%len(fuzzed)]
		whole, c, err := hear(t, socket, stream, 1<<20, o)
		parts, _, partsErr := hear(t, socket, stream, 1+int(piece), o)
		if diff := cmp.Diff(whole, parts); diff != "" || class(err) != class(partsErr) {
			t.Errorf("in one piece (%v) and in pieces (%v) differ: %s", err, partsErr, diff)
		}
		size := 0
		for _, frames := range whole {
			if len(frames) == 0 || len(frames) > o.MaxFrames {
				t.Errorf("a message of %d frames", len(frames))
			}
			for _, frame := range frames {
				size += len(frame)
			}
		}
		if size > len(stream) {
			t.Errorf("%d bytes in messages of a stream of %d", size, len(stream))
		}
		if c != nil && cap(c.in.body)+cap(c.in.command) > 4*len(stream)+growBytes*5/4 {
			t.Errorf("buffers of %d and %d bytes for a stream of %d", cap(c.in.body), cap(c.in.command), len(stream))
		}
	})
}

// FuzzMessages sends any messages through the encoder and back.
func FuzzMessages(f *testing.F) {
	f.Add([]byte("topic"), []byte("12345678"), []byte("payload"), uint16(0), uint8(0))
	f.Add([]byte{}, []byte{0xff}, bytes.Repeat([]byte("a"), 255), uint16(1), uint8(9))
	f.Add([]byte{0}, []byte{}, []byte("b"), uint16(40_000), uint8(200))
	f.Fuzz(func(t *testing.T, a, b, c []byte, repeat uint16, piece uint8) {
		long := bytes.Repeat(c, 1+int(repeat)/(1+len(c)))
		messages := [][][]byte{{a, b, long}, {long}, {{}}, {b, {}, a}}
		var want [][]string
		var stream []byte
		for _, frames := range messages {
			want = append(want, texts(frames))
			before := len(stream)
			stream = appendMessage(stream, frames)
			if len(stream)-before > messageBytes(frames) {
				t.Errorf("%d bytes, foreseen were %d", len(stream)-before, messageBytes(frames))
			}
		}
		got, _, err := readAll(stream, 1+100*int(piece), Options{})
		if !errors.Is(err, io.EOF) {
			t.Errorf("error %v", err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
	})
}
