package e2e

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/lab"
)

// storm is one client's life against a rough engine, over connections of its own.
type storm struct {
	address string // Envoy's
	engine  *rough
	body    string
	kept    []net.Conn // left open until the ledger has been looked at
}

// points are the points at which an exchange breaks off, or ends in a way of its own.
var points = []struct {
	name   string
	behave string
	act    func(s *storm, c net.Conn, id string) error
}{
	{"in the middle of the upload", complete, (*storm).leave},
	{"after the pick, before an answer", hang, func(s *storm, c net.Conn, id string) error {
		select {
		case <-s.engine.has(id):
			return s.leave(c, id)
		case <-time.After(lab.Timeout):
			return errors.New("the request never came to the engine")
		}
	}},
	{"in the middle of the stream", streamOn, func(s *storm, c net.Conn, id string) error {
		if _, err := readUntil(c, "word 2"); err != nil {
			return err
		}
		return s.leave(c, id)
	}},
	{"half-closed in the middle of the stream", streamOn, func(s *storm, c net.Conn, id string) error {
		if _, err := readUntil(c, "word 2"); err != nil {
			return err
		}
		tcp, ok := c.(*net.TCPConn)
		if !ok {
			return errors.New("not TCP")
		}
		if err := tcp.CloseWrite(); err != nil {
			return err
		}
		_ = c.SetReadDeadline(time.Now().Add(200 * time.Millisecond)) // Envoy may stream on, or close
		_, _ = io.Copy(io.Discard, c)
		return s.leave(c, id)
	}},
	{"an answer without a body", refuseEmpty, func(s *storm, c net.Conn, _ string) error {
		return s.finish(c, http.StatusServiceUnavailable)
	}},
	{"complete, the connection stays", complete, func(s *storm, c net.Conn, _ string) error {
		return s.finish(c, http.StatusOK)
	}},
	{"the engine resets before its answer", resetEarly, func(s *storm, c net.Conn, _ string) error {
		return s.finish(c, http.StatusServiceUnavailable)
	}},
	{"the engine breaks off in the stream", breakOff, func(s *storm, c net.Conn, id string) error {
		// Envoy passes the stream's beginning on, or has not yet begun to and answers 502.
		res, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			return err
		}
		page, err := io.ReadAll(res.Body)
		if whole := err == nil && strings.Contains(string(page), "[DONE]"); whole || err == nil && res.StatusCode == http.StatusOK {
			return fmt.Errorf("status %d, and the stream's end was not missed: %q", res.StatusCode, page)
		}
		return s.leave(c, id)
	}},
}

func (s *storm) leave(c net.Conn, _ string) error { return c.Close() }

// finish reads a whole answer and keeps the connection.
func (s *storm) finish(c net.Conn, status int) error {
	s.kept = append(s.kept, c)
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		return err
	}
	if res.StatusCode != status {
		return fmt.Errorf("status %d, want %d", res.StatusCode, status)
	}
	return res.Body.Close()
}

func readUntil(c net.Conn, text string) (string, error) {
	var page strings.Builder
	buf := make([]byte, 4096)
	for !strings.Contains(page.String(), text) {
		n, err := c.Read(buf)
		page.Write(buf[:n])
		if err != nil {
			return page.String(), fmt.Errorf("%w after %q", err, page.String())
		}
	}
	return page.String(), nil
}

// round does one exchange.
func (s *storm) round(point int, id string) error {
	c, err := net.Dial("tcp", s.address)
	if err != nil {
		return err
	}
	_ = c.SetDeadline(time.Now().Add(lab.Timeout))
	sent := s.body
	if point == 0 {
		sent = sent[:len(sent)/2]
	}
	_, err = fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nhost: storm\r\ncontent-type: application/json\r\n"+
		"x-request-id: the same for all\r\nx-id: %s\r\nx-behave: %s\r\ncontent-length: %d\r\n\r\n%s",
		id, points[point].behave, len(s.body), sent)
	if err != nil {
		return err
	}
	if err := points[point].act(s, c, id); err != nil {
		_ = c.Close()
		return fmt.Errorf("%s: %w", points[point].name, err)
	}
	return nil
}

// C01: whatever ends a request, at whatever point, its charge is released exactly once, and nothing of it stays.
func TestC01_DisconnectStorm(t *testing.T) {
	const clients = 8
	rounds := 2 * len(points)
	if os.Getenv("SLUICE_LONG") != "" {
		rounds = 100
	}
	for name, p := range map[string]envoy.Params{
		"FULL_DUPLEX_STREAMED": {},
		"BUFFERED":             {RequestBody: envoy.Buffered, ResponseBody: envoy.Streamed},
		"STREAMED":             {RequestBody: envoy.Streamed, ResponseBody: envoy.Streamed},
	} {
		t.Run(name, func(t *testing.T) {
			engine := startRough(t)
			l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{engine.address}})
			p.Endpoints = []string{engine.address}
			e := l.Envoy(t, p)
			body := lab.Chat(t, "storm", 750, 100, true)
			var group sync.WaitGroup
			storms := make([]*storm, clients)
			for i := range storms {
				storms[i] = &storm{address: e.Addr, engine: engine, body: body}
				group.Go(func() {
					for r := range rounds {
						if err := storms[i].round((i+r)%len(points), fmt.Sprintf("%d-%d", i, r)); err != nil {
							t.Errorf("client %d, round %d: %v", i, r, err)
							return
						}
					}
				})
			}
			group.Wait()
			l.Sluice.Settle(t)
			picked := l.Sluice.Total(t, "sluice_requests_total", `result="picked"`)
			released := l.Sluice.Total(t, "sluice_ledger_releases_total")
			// All but the broken uploads are picked for; those too where the pick needs no body.
			least := float64(clients * rounds * (len(points) - 1) / len(points))
			if picked != released || picked < least {
				t.Errorf("%v picks, %v releases; want the same, at least %v", picked, released, least)
			}
			if n := l.Sluice.Total(t, "sluice_notes_total", `kind="panic"`); n != 0 {
				t.Errorf("%v panics", n)
			}
			lab.Wait(t, "the streams' goroutines to end", func() bool { return goroutinesIn("server/extproc.") == 0 })
			for _, s := range storms {
				for _, c := range s.kept {
					_ = c.Close()
				}
			}
		})
	}
}

// goroutinesIn counts the goroutines that are in a function of a package, given as the end of its path with a dot.
func goroutinesIn(pkg string) int {
	stacks := make([]byte, 8<<20)
	n := 0
	for stack := range strings.SplitSeq(string(stacks[:runtime.Stack(stacks, true)]), "\n\n") {
		if strings.Contains(stack, "\n"+"github.com/sluice-epp/sluice/"+pkg) {
			n++
		}
	}
	return n
}

// C08: clients that share one request id, and clients without any, are charged and released each on their own.
func TestC08_SharedRequestIDs(t *testing.T) {
	engine := startRough(t)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{engine.address}})
	e := l.Envoy(t, envoy.Params{Endpoints: []string{engine.address}})
	bodies := []string{lab.Chat(t, "one", 1000, 4, true), lab.Chat(t, "two", 50, 4, true), lab.Chat(t, "three", 300, 4, true)}
	ids := []string{"dup-1", "dup-1", "dup-1", "", strings.Repeat("i", 40_000)}
	var open []*http.Response
	for i, id := range ids {
		r := lab.Request(t, http.MethodPost, e.URL("/v1/chat/completions"), strings.NewReader(bodies[i%len(bodies)]),
			"x-request-id", id, "x-id", fmt.Sprint(i), "x-behave", streamOn)
		res, err := l.Client.Do(r)
		if err != nil || res.StatusCode != http.StatusOK {
			t.Fatalf("%d: %v, %v", i, res, err)
		}
		open = append(open, res)
		lab.Wait(t, "one more charge", func() bool { return l.Sluice.InFlight(t).Requests == int64(i+1) })
	}
	for i, res := range open {
		_ = res.Body.Close()
		lab.Wait(t, "one charge to go", func() bool { return l.Sluice.InFlight(t).Requests == int64(len(open)-i-1) })
	}
	l.Sluice.Settle(t)
	if n := l.Sluice.Total(t, "sluice_ledger_releases_total"); n != float64(len(ids)) {
		t.Errorf("%v releases, want %d", n, len(ids))
	}
}
