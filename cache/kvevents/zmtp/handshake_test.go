package zmtp

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// The bytes of RFC 37, without help of the encoder under test.
func TestHandshakeOnTheWire(t *testing.T) {
	for socket, want := range map[Socket]string{
		SUB:    "\x04\x19\x05READY\x0bSocket-Type\x00\x00\x00\x03SUB",
		DEALER: "\x04\x29\x05READY\x0bSocket-Type\x00\x00\x00\x06DEALER\x08Identity\x00\x00\x00\x00",
	} {
		h, nc := newHand(t)
		peer := map[Socket]string{SUB: "PUB", DEALER: "ROUTER"}[socket]
		h.say(hello(3, 1, "NULL"), ready(peer))
		if _, err := Handshake(t.Context(), nc, socket, Options{}); err != nil {
			t.Fatal(err)
		}
		want = "\xff" + strings.Repeat("\x00", 8) + "\x7f\x03\x01NULL" + strings.Repeat("\x00", 48) + want
		eventually(t, string(socket)+" greets", func() bool { return len(h.heard()) >= len(want) })
		if got := h.heard(); got != want {
			t.Errorf("%s: sent %q, want %q", socket, got, want)
		}
	}
}

func TestHandshakeTakes(t *testing.T) {
	split := func(b []byte) [][]byte {
		var out [][]byte
		for i := range b {
			out = append(out, b[i:i+1])
		}
		return out
	}
	for name, tt := range map[string]struct {
		say      [][]byte
		commands bool
	}{
		"3.0":                     {[][]byte{hello(3, 0, "NULL"), ready("PUB")}, false},
		"3.1":                     {[][]byte{hello(3, 1, "NULL"), ready("PUB")}, true},
		"3.2":                     {[][]byte{hello(3, 2, "NULL"), ready("PUB")}, true},
		"4.0":                     {[][]byte{hello(4, 0, "NULL"), ready("PUB")}, true},
		"XPUB":                    {[][]byte{hello(3, 1, "NULL"), ready("XPUB")}, true},
		"byte by byte":            {split(append(hello(3, 0, "NULL"), ready("PUB")...)), false},
		"in one piece":            {[][]byte{append(hello(3, 1, "NULL"), ready("PUB")...)}, true},
		"a property's other case": {[][]byte{hello(3, 1, "NULL"), command("\x05READY" + property("socket-type", "PUB"))}, true},
		"more properties": {[][]byte{hello(3, 1, "NULL"), command("\x05READY" + property("Identity", "") + property("Socket-Type", "PUB") +
			property("X-Other", "ab"))}, true},
		"a long frame for a short command": {[][]byte{hello(3, 1, "NULL"), append(long(4, 25), "\x05READY"+property("Socket-Type", "PUB")...)}, true},
	} {
		t.Run(name, func(t *testing.T) {
			h, nc := newHand(t)
			h.say(tt.say...)
			c, err := Handshake(t.Context(), nc, SUB, Options{})
			if err != nil {
				t.Fatal(err)
			}
			if c.commands != tt.commands {
				t.Errorf("subscribes by commands: %t, want %t", c.commands, tt.commands)
			}
		})
	}
}

func TestHandshakeRefuses(t *testing.T) {
	v31 := hello(3, 1, "NULL")
	then := func(parts ...string) (say [][]byte) {
		say = append(say, v31)
		for _, part := range parts {
			say = append(say, []byte(part))
		}
		return say
	}
	for name, tt := range map[string]struct {
		say   [][]byte
		close bool
		want  error  // errors.Is
		text  string // part of the error
	}{
		"HTTP":                 {say: [][]byte{[]byte("HTTP/1.1 400 Bad Request\r\n")}, want: ErrProtocol, text: `begins with "HTTP/1.1`},
		"a wrong first byte":   {say: [][]byte{{0xfe}}, want: ErrProtocol, text: `"\xfe"`},
		"a wrong signature":    {say: [][]byte{[]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7e")}, want: ErrProtocol},
		"ZMTP 2":               {say: [][]byte{[]byte("\xff\x00\x00\x00\x00\x00\x00\x00\x01\x7f\x01\x00")}, want: ErrProtocol, text: "ZMTP 1.0, older than 3.0"},
		"nothing, then close":  {close: true, want: io.EOF},
		"silence":              {want: os.ErrDeadlineExceeded, text: "not done within 5s"},
		"half a greeting":      {say: [][]byte{v31[:40]}, want: os.ErrDeadlineExceeded},
		"half, then close":     {say: [][]byte{v31[:40]}, close: true, want: io.ErrUnexpectedEOF, text: "a mechanism other than NULL"},
		"no READY":             {say: [][]byte{v31}, want: os.ErrDeadlineExceeded},
		"half a READY":         {say: then("\x04\x19\x05REA"), want: os.ErrDeadlineExceeded},
		"no READY, then close": {say: [][]byte{v31}, close: true, want: io.EOF},
		"a message":            {say: then("\x00\x01a"), want: ErrProtocol, text: "before the peer's READY"},
		"a PING":               {say: then("\x04\x07\x04PING\x00\x00"), want: ErrProtocol, text: `"PING" before`},
		"an empty command":     {say: then("\x04\x00"), want: ErrProtocol},
		"a nameless command":   {say: then("\x04\x02\x00a"), want: ErrProtocol},
		"a name too long":      {say: then("\x04\x02\x05R"), want: ErrProtocol},
		"READY and more":       {say: then("\x05\x06\x05READY"), want: ErrProtocol, text: "more to follow"},
		"reserved flags":       {say: then("\x84\x06\x05READY"), want: ErrProtocol, text: "0x84"},
		"no Socket-Type":       {say: then("\x04\x06\x05READY"), want: ErrProtocol, text: "no Socket-Type"},
		"a property cut":       {say: then("\x04\x08\x05READY\x0bS"), want: ErrProtocol},
		"a property's empty name": {
			say: then("\x04\x0b\x05READY\x00\x00\x00\x00\x00"), want: ErrProtocol},
		"a value of 4 GiB": {
			say: then("\x04\x16\x05READY\x0bSocket-Type\xff\xff\xff\xff"), want: ErrProtocol, text: "4294967295"},
		"a huge READY":   {say: then(string(long(4, 16<<10+1))), want: ErrTooLarge},
		"a length of -1": {say: then(string(long(4, 1<<64-1))), want: ErrProtocol},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, nc := newHand(t)
				go func() {
					for _, part := range tt.say {
						if _, err := h.Write(part); err != nil {
							return
						}
					}
					if tt.close {
						time.Sleep(time.Second) // until this side has said its part
						h.Close()
					}
				}()
				began := time.Now()
				_, err := Handshake(t.Context(), nc, SUB, Options{})
				if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.text) {
					t.Errorf("error %v, want %v with %q", err, tt.want, tt.text)
				}
				want := time.Duration(0)
				if tt.close {
					want = time.Second
				}
				if errors.Is(tt.want, os.ErrDeadlineExceeded) {
					want = 5 * time.Second
				}
				if took := time.Since(began); took != want {
					t.Errorf("took %v, want %v", took, want)
				}
				<-h.done
			})
		})
	}
}

// The side that dialled lets the peer name its mechanism and its type first, but not for ever.
func TestDialGreetsSecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, waits := range []bool{false, true} {
			h, nc := newHand(t)
			began := time.Now()
			half, whole := hello(3, 1, "NULL")[:12], string(greeting())
			go func() {
				synctest.Wait()
				if got := h.heard(); got != whole[:12] {
					t.Errorf("first said %q", got)
				}
				h.Write(half)
				for waits && h.heard() != whole {
					time.Sleep(time.Millisecond)
				}
				h.Write(hello(3, 1, "NULL")[12:])
				for waits && !strings.HasSuffix(h.heard(), "\x03SUB") {
					time.Sleep(time.Millisecond)
				}
				h.Write(ready("PUB"))
			}()
			c, err := Dial(t.Context(), "engine:1", SUB, Options{DialContext: func(context.Context, string, string) (net.Conn, error) { return nc, nil }})
			if err != nil {
				t.Fatal(err)
			}
			if took := time.Since(began); took > 0 != waits || took > 2100*time.Millisecond {
				t.Errorf("the peer waits: %t; took %v", waits, took)
			}
			synctest.Wait()
			if got := h.heard(); !strings.HasPrefix(got, whole+"\x04") {
				t.Errorf("said %q", got)
			}
			c.Close()
		}
	})
}

func TestHandshakeNamesTheMechanism(t *testing.T) {
	for _, mechanism := range []string{"PLAIN", "CURVE", "GSSAPI", "", "AAAAAAAAAAAAAAAAAAAA"} {
		h, nc := newHand(t)
		h.say(hello(3, 1, mechanism))
		_, err := Handshake(t.Context(), nc, SUB, Options{})
		var unsupported *MechanismError
		if !errors.As(err, &unsupported) || unsupported.Mechanism != mechanism || !strings.Contains(err.Error(), `"`+mechanism+`"`) {
			t.Errorf("%s: error %v", mechanism, err)
		}
	}
}

func TestHandshakeChecksSocketTypes(t *testing.T) {
	all := []Socket{"PUB", "XPUB", "SUB", "XSUB", "REQ", "REP", "DEALER", "ROUTER", "PUSH", "PULL", "PAIR", ""}
	fits := map[Socket]string{SUB: " PUB XPUB ", PUB: " SUB XSUB ", DEALER: " REP DEALER ROUTER ", ROUTER: " REQ DEALER ROUTER "}
	for own, with := range fits {
		for _, peer := range all {
			h, nc := newHand(t)
			h.say(hello(3, 1, "NULL"), ready(string(peer)))
			_, err := Handshake(t.Context(), nc, own, Options{})
			if peer != "" && strings.Contains(with, " "+string(peer)+" ") {
				if err != nil {
					t.Errorf("%s with %s: %v", own, peer, err)
				}
				continue
			}
			var unfit *SocketError
			if peer != "" && (!errors.As(err, &unfit) || *unfit != SocketError{Own: own, Peer: peer}) || err == nil {
				t.Errorf("%s with %q: error %v", own, peer, err)
			}
			<-h.done
			if told := strings.HasSuffix(h.heard(), "\x04\x1a\x05ERROR\x13Invalid socket type"); told != (peer != "") {
				t.Errorf("%s with %q: told the peer: %t (%q)", own, peer, told, h.heard())
			}
		}
	}
	_, nc := newHand(t)
	if _, err := Handshake(t.Context(), nc, "REQ", Options{}); err == nil || !strings.Contains(err.Error(), `got "REQ"`) {
		t.Errorf("a socket type that is not there: error %v", err)
	}
}

func TestHandshakeGivesThePeersReason(t *testing.T) {
	for body, want := range map[string]string{
		"\x05ERROR\x02no":   "no",
		"\x05ERROR\x02nope": "no",
		"\x05ERROR\x09no":   "", // longer than what is there
		"\x05ERROR":         "",
	} {
		h, nc := newHand(t)
		h.say(hello(3, 1, "NULL"), command(body))
		_, err := Handshake(t.Context(), nc, SUB, Options{})
		var refused *PeerError
		if !errors.As(err, &refused) || refused.Reason != want {
			t.Errorf("%q: error %v, want a peer's with reason %q", body, err, want)
		}
	}
}

func TestHandshakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, nc := newHand(t)
		cause := errors.New("no longer wanted")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Second, func() { cancel(cause) })
		began := time.Now()
		if _, err := Handshake(ctx, nc, SUB, Options{}); !errors.Is(err, cause) {
			t.Errorf("error %v, want %v", err, cause)
		}
		if took := time.Since(began); took != time.Second {
			t.Errorf("took %v", took)
		}
		<-h.done
	})
}

// A peer that reads nothing holds the handshake up no longer than one that says nothing.
func TestHandshakeWriteIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, ours := newDeafPipe(t)
		defer theirs.Close()
		began := time.Now()
		if _, err := Handshake(t.Context(), ours, SUB, Options{HandshakeTimeout: 3 * time.Second}); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("error %v", err)
		}
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestDialAddresses(t *testing.T) {
	for address, text := range map[string]string{
		"ipc:///tmp/x":     `transport must be tcp, got "ipc"`,
		"inproc://x":       `got "inproc"`,
		"127.0.0.1":        "missing port",
		"tcp://127.0.0.1":  "missing port",
		"tcp://[::1:5557":  "missing ']'",
		"127.0.0.1:nosuch": "nosuch",
	} {
		if _, err := Dial(t.Context(), address, SUB, Options{}); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%s: error %v, want one with %q", address, err, text)
		}
	}
}
