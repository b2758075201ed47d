package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// C19: a request may end in many ways; each gets its one decision and its answer, and nothing waits for an end that
// comes in another form.
func TestC19_HowARequestEnds(t *testing.T) {
	const chat = `{"messages":[{"role":"user","content":"x"}],"max_tokens":1}`
	post := func(headers, body string) string {
		return "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n" + headers + "\r\n" + body
	}
	chunk := func(s string) string { return fmt.Sprintf("%x\r\n%s\r\n", len(s), s) }
	const chunked = "transfer-encoding: chunked\r\n"
	requests := map[string]struct {
		text   string
		status int
	}{
		"a GET":                      {"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n", 200},
		"a HEAD":                     {"HEAD /health HTTP/1.1\r\nhost: x\r\n\r\n", 405},
		"a DELETE":                   {"DELETE /v1/responses/1 HTTP/1.1\r\nhost: x\r\n\r\n", 404},
		"chunks, none of them full":  {post(chunked, "0\r\n\r\n"), 400},
		"chunks":                     {post(chunked, chunk(chat[:20])+chunk(chat[20:])+"0\r\n\r\n"), 200},
		"chunks and trailers":        {post(chunked, chunk(chat)+"0\r\nx-check: 1\r\n\r\n"), 200},
		"no chunk, but trailers":     {post(chunked, "0\r\nx-check: 1\r\n\r\n"), 400},
		"content-length 0":           {post("content-length: 0\r\n", ""), 400},
		"neither length nor body":    {post("", ""), 400},
		"content-length":             {post(fmt.Sprintf("content-length: %d\r\n", len(chat)), chat), 200},
		"a GET with a body":          {"GET /v1/models HTTP/1.1\r\nhost: x\r\ncontent-length: 4\r\n\r\nbody", 200},
		"content-length, no content": {"POST /reset_prefix_cache HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n", 200},
	}
	l := lab.New(t, lab.Plan{Engines: 2})
	for _, mode := range bodyModes() {
		p := mode.params
		if p.RequestBody == envoy.Buffered || p.RequestBody == envoy.BufferedPartial {
			// Where trailers come without any body the pick cannot become a header any more; metadata still carries it.
			p.Source = envoy.FromMetadata
		}
		e := l.Envoy(t, p)
		for name, r := range requests {
			t.Run(mode.name+"/"+name, func(t *testing.T) {
				method, _, _ := strings.Cut(r.text, " ")
				status, engine := raw(t, e.Addr, method, r.text)
				if status != r.status || engine == "" {
					t.Errorf("status %d from engine %q, want %d", status, engine, r.status)
				}
			})
		}
		t.Run(mode.name+"/expect 100-continue", func(t *testing.T) { expectContinue(t, e.Addr, chat) })
		t.Run(mode.name+"/curl", func(t *testing.T) { curl(t, e.URL("/v1/chat/completions"), chat) })
	}
	lab.Wait(t, "the streams to end", func() bool { return l.Sluice.Metric(t, "sluice_open_streams") == 0 })
}

// raw sends a request as it stands, and returns the status and the engine that answered.
func raw(t *testing.T, address, method, text string) (int, string) {
	t.Helper()
	c := connect(t, address)
	if _, err := io.WriteString(c, text); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, res.Header.Get("x-sim-endpoint")
}

// answerTime is how long an answer may take that waits for nothing.
const answerTime = 10 * time.Second

func connect(t *testing.T, address string) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(answerTime)); err != nil {
		t.Fatal(err)
	}
	return c
}

// expectContinue holds the body back until Envoy asks for it.
func expectContinue(t *testing.T, address, body string) {
	c := connect(t, address)
	fmt.Fprintf(c, "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\nexpect: 100-continue\r\n"+
		"content-length: %d\r\n\r\n", len(body))
	in := bufio.NewReader(c)
	line, err := in.ReadString('\n')
	if err != nil || !strings.Contains(line, " 100 ") {
		t.Fatalf("%q, %v; want 100 Continue", line, err)
	}
	if _, err := in.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, body); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if res.StatusCode != http.StatusOK || res.Header.Get("x-sim-body-sha256") != lab.SHA256(body) {
		t.Errorf("status %d, hash %q", res.StatusCode, res.Header.Get("x-sim-body-sha256"))
	}
}

// curl uploads a file in chunks, without a length, as scripts do.
func curl(t *testing.T, url, body string) {
	path, err := exec.LookPath("curl")
	if err != nil {
		t.Skip("no curl")
	}
	file := filepath.Join(t.TempDir(), "body.json")
	if err := os.WriteFile(file, []byte(body), 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := exec.CommandContext(t.Context(), path, "--silent", "--show-error", "--max-time", "10", "--noproxy", "*",
		"--header", "transfer-encoding: chunked", "--header", "content-type: application/json", "--upload-file", file,
		"--request", "POST", "--dump-header", "-", url).CombinedOutput()
	if page := string(out); err != nil || !strings.Contains(page, "HTTP/1.1 200") || !strings.Contains(page, lab.SHA256(body)) {
		t.Errorf("%v\n%s", err, out)
	}
}

// C19: an answer may end with its headers, with a body of no length, or with trailers; the charge goes with it.
func TestC19_HowAnAnswerEnds(t *testing.T) {
	address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body)
		switch r.Header.Get("x-answer") {
		case "headers only":
			w.WriteHeader(http.StatusNoContent)
		case "empty":
			w.Header().Set("content-length", "0")
		case "trailers":
			w.Header().Set("trailer", "x-check")
			_, _ = io.WriteString(w, "data: [DONE]\n\n")
			_ = http.NewResponseController(w).Flush() // without it the answer has a length, and HTTP/1.1 then no trailers
			w.Header().Set("x-check", "sum")
		}
	}))
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}})
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Streamed, envoy.Buffered} {
		e := l.Envoy(t, envoy.Params{ResponseBody: mode, HTTP2Upstream: true, Endpoints: []string{address}})
		for answer, status := range map[string]int{"headers only": http.StatusNoContent, "empty": http.StatusOK, "trailers": http.StatusOK} {
			before := l.Sluice.Total(t, "sluice_ledger_releases_total", `release="complete"`)
			a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "x", 10, 1, true), "x-answer", answer)
			if a.Status != status {
				t.Errorf("%s, %s: status %d, want %d", mode, answer, a.Status, status)
			}
			if answer == "trailers" && a.Trailer.Get("x-check") != "sum" {
				t.Errorf("%s: trailers %v", mode, a.Trailer)
			}
			l.Sluice.Settle(t)
			if n := l.Sluice.Total(t, "sluice_ledger_releases_total", `release="complete"`) - before; n != 1 {
				t.Errorf("%s, %s: %v charges released as complete, want 1", mode, answer, n)
			}
		}
	}
}
