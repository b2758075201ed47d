package zmtp

import (
	"bufio"
	"cmp"
	"context"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// What tells the tests of the Python that has pyzmq, and so libzmq. scripts/pyzmq.sh prints its path.
const (
	envPyzmq    = "SLUICE_PYZMQ"
	envRequired = "SLUICE_PYZMQ_REQUIRED"
)

// libzmq is a socket of libzmq in a process of its own, driven by testdata/peer.py.
type libzmq struct {
	t     testing.TB
	cmd   *exec.Cmd
	in    io.WriteCloser
	lines chan string
	port  string
	end   func()
}

// startLibzmq starts a socket and waits until it is there. The process ends with the test, and after two minutes.
func startLibzmq(t testing.TB, kind, how, address string, options ...string) *libzmq {
	t.Helper()
	python := os.Getenv(envPyzmq)
	if python == "" {
		if os.Getenv(envRequired) != "" {
			t.Fatalf("%s is not set: it names a Python with pyzmq, as scripts/pyzmq.sh prints it", envPyzmq)
		}
		t.Skipf("%s is not set: run with %s=$(scripts/pyzmq.sh) for the tests against libzmq", envPyzmq, envPyzmq)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	cmd := exec.CommandContext(ctx, python, append([]string{"testdata/peer.py", kind, how, "tcp://" + address}, options...)...)
	cmd.WaitDelay = 5 * time.Second
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	z := &libzmq{t: t, cmd: cmd, in: in, lines: make(chan string, 100)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(z.lines)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			z.lines <- lines.Text()
		}
	})
	z.end = sync.OnceFunc(func() {
		_ = cmd.Process.Kill() // it may have ended
		reading.Wait()
		_ = cmd.Wait()
		cancel()
	})
	t.Cleanup(z.end)
	z.port = z.answer("ready ")
	return z
}

// do has a command obeyed, and returns what follows the answer's first word.
func (z *libzmq) do(want, format string, args ...any) string {
	z.t.Helper()
	z.order(format, args...)
	return z.answer(want)
}

// order sends a command without waiting for the answer.
func (z *libzmq) order(format string, args ...any) {
	z.t.Helper()
	if _, err := fmt.Fprintf(z.in, format+"\n", args...); err != nil {
		z.t.Fatal(err)
	}
}

func (z *libzmq) answer(want string) string {
	z.t.Helper()
	timer := time.NewTimer(30 * time.Second)
	defer timer.Stop()
	select {
	case line, running := <-z.lines:
		rest, ok := strings.CutPrefix(line, want)
		if !running {
			z.t.Fatalf("libzmq's side has ended, want %q", want)
		}
		if !ok {
			z.t.Fatalf("libzmq's side says %q, want %q", line, want)
		}
		return rest
	case <-timer.C:
		z.t.Fatalf("libzmq's side does not say %q", want)
		return ""
	}
}

// kill ends the process as a crash does.
func (z *libzmq) kill() { z.end() }

func (z *libzmq) send(frames ...string) {
	z.t.Helper()
	order := "send"
	for _, frame := range frames {
		order += " " + cmp.Or(hex.EncodeToString([]byte(frame)), "-")
	}
	z.do("sent", "%s", order)
}

// recv receives a message and compares it.
func (z *libzmq) recv(want ...string) {
	z.t.Helper()
	if got := z.do("got ", "recv"); got != hexFrames(want) {
		z.t.Errorf("libzmq got %s, want %s", got, hexFrames(want))
	}
}

func (z *libzmq) address() string { return "127.0.0.1:" + z.port }

// hexFrames writes frames as peer.py shows them.
func hexFrames(frames []string) string {
	var out []string
	for _, frame := range frames {
		switch {
		case frame == "":
			out = append(out, "-")
		case len(frame) > 64:
			out = append(out, fmt.Sprintf("*%d:%d", len(frame), crc32.ChecksumIEEE([]byte(frame))))
		default:
			out = append(out, hex.EncodeToString([]byte(frame)))
		}
	}
	return strings.Join(out, " ")
}

// dialers are the ways to dial: as this package does, and with both greetings changed so that either side takes the
// other for one of 3.0.
func dialers() map[string]func(context.Context, string, string) (net.Conn, error) {
	return map[string]func(context.Context, string, string) (net.Conn, error){
		"3.1": nil,
		"3.0": func(ctx context.Context, network, address string) (net.Conn, error) {
			nc, err := new(net.Dialer).DialContext(ctx, network, address)
			return &aged{Conn: nc}, err
		},
	}
}

// aged makes 3.0 of the version in the greetings that pass.
type aged struct {
	net.Conn
	read, written int
}

func (a *aged) Read(p []byte) (int, error) {
	n, err := a.Conn.Read(p)
	age(p[:n], a.read)
	a.read += n
	return n, err
}

func (a *aged) Write(p []byte) (int, error) {
	p = append([]byte(nil), p...)
	age(p, a.written)
	a.written += len(p)
	return a.Conn.Write(p)
}

// age changes the minor version in p, which stands at an offset of the stream.
func age(p []byte, offset int) {
	if at := 11 - offset; at >= 0 && at < len(p) {
		p[at] = 0
	}
}
