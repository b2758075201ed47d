package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/bench/record"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/bench/subject"
	"github.com/sluice-epp/sluice/test/envoytest"
)

// binaries are what is measured, built once in a folder that TestMain makes and removes.
var (
	folder   string
	binaries = sync.OnceValues(func() (flags []string, err error) {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
		defer cancel()
		for _, binary := range []struct{ flag, from string }{{"-sluice", module + "/cmd/sluice"}, {"-null", module + "/bench/nullserver"}} {
			path, err := subject.Build(ctx, folder, binary.from)
			if err != nil {
				return nil, err
			}
			flags = append(flags, binary.flag, path)
		}
		return flags, nil
	})
)

// A process that is still being waited for shows as a goroutine, so the check is also one for processes left behind.
func TestMain(m *testing.M) {
	var err error
	if folder, err = os.MkdirTemp("", "bench-binaries-"); err != nil {
		panic(err)
	}
	code := m.Run()
	err = os.RemoveAll(folder)
	if code == 0 {
		err = errors.Join(err, goleak.Find())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

// built returns flags that name what is measured, and skips where the CPU clock of another process cannot be read.
func built(t *testing.T) []string {
	t.Helper()
	if runtime.GOOS != "linux" {
		t.Skip("the CPU clock of another process is Linux's")
	}
	flags, err := binaries()
	if err != nil {
		t.Fatal(err)
	}
	return slices.Clone(flags)
}

// tiny runs the command with one small round and returns its rows.
func tiny(t *testing.T, args ...string) (rows []record.Row, out string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var stdout, progress bytes.Buffer
	if err := run(ctx, slices.Concat(built(t), []string{"-rounds", "1", "-requests", "50"}, args), &stdout, &progress); err != nil {
		t.Fatalf("%v\n%s%s", err, stdout.String(), progress.String())
	}
	rows, err := record.Read(bytes.NewReader(stdout.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	return rows, stdout.String()
}

// numbers are some values of a row, each of them positive.
func numbers(t *testing.T, r record.Row, keys ...string) map[string]float64 {
	t.Helper()
	out := map[string]float64{}
	for _, k := range keys {
		v, err := r.Number(k)
		if err != nil || v <= 0 {
			t.Errorf("%v: %s: %g, %v", r, k, v, err)
		}
		out[k] = v
	}
	return out
}

func find(t *testing.T, rows []record.Row, setup, via string) record.Row {
	t.Helper()
	r, err := record.Find(rows, map[string]string{"setup": setup, "via": via})
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// The stream as small as it gets: every binary is run, driven, profiled, stopped and recorded.
func TestTinyStream(t *testing.T) {
	profiles := filepath.Join(t.TempDir(), "new", "folder")
	file := filepath.Join(t.TempDir(), "record.txt")
	rows, out := tiny(t, "-via", "stream", "-bodies", "1KiB", "-endpoints", "8", "-chunks", "20", "-concurrency", "5",
		"-cpuprofile", profiles, "-profile-time", "1s", "-record", file)
	if len(rows) != 3 {
		t.Fatalf("%d rows in\n%s", len(rows), out)
	}
	null := numbers(t, find(t, rows, setupNull, "stream"), "cpu_us", "p50_us", "p99_us", "allocs", "bytes", "rss_mib")
	for _, setup := range []string{setupApprox, setupPrecise} {
		r := find(t, rows, setup, "stream")
		n := numbers(t, r, "cpu_us", "cpu_ratio", "p50_us", "p99_us", "p99_ratio", "allocs", "bytes", "rss_mib")
		if !r.Is(map[string]string{"body": "1KiB", "endpoints": "8", "chunks": "20", "concurrency": "5"}) {
			t.Errorf("%v", r)
		}
		// One round: the ratio is that of the printed numbers, but for their rounding.
		if ratio := n["cpu_us"] / null["cpu_us"]; n["cpu_ratio"] < ratio-0.02 || n["cpu_ratio"] > ratio+0.02 {
			t.Errorf("%s: ratio %g of %g and %g", setup, n["cpu_ratio"], n["cpu_us"], null["cpu_us"])
		}
		// Neither can be done for less, or takes more on any machine.
		if n["cpu_us"] < 10 || n["allocs"] < 50 || n["allocs"] > 5000 || n["rss_mib"] < 5 || n["rss_mib"] > 500 {
			t.Errorf("implausible: %v", r)
		}
		if b, err := os.ReadFile(filepath.Join(profiles, "stream-"+setup+"-1KiB-8-20-5.pprof")); err != nil || len(b) < 100 {
			t.Errorf("profile of %s: %d bytes, %v", setup, len(b), err)
		}
	}
	for _, want := range []string{"median [range] of 1 rounds of 50 requests", "\nvia stream\n", "chunks  at once  ", "CPU µs/request"} {
		if !strings.Contains(out, want) {
			t.Errorf("the table does not say %q:\n%s", want, out)
		}
	}
	kept, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	again, err := record.Read(bytes.NewReader(kept))
	if diff := cmp.Diff(rows, again); err != nil || diff != "" || !bytes.Contains(kept, []byte("\n# go: go1.")) {
		t.Errorf("the record: %v %s\n%s", err, diff, kept)
	}
}

// As many requests are under way at once as the load says, on the stream and over HTTP.
func TestConcurrency(t *testing.T) {
	b := bench{options: parse(t, strings.Join(append(built(t), "-requests", "50"), " ")), folder: t.TempDir()}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	for _, l := range []load{{1 << 10, 2, usualChunks, 1}, {1 << 10, 2, usualChunks, 70}} {
		f, err := newField(l, false)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range []way{{setupNull, report.ViaStream}, {setupNone, report.ViaRouter}} {
			s, err := b.start(ctx, f, w)
			if err != nil {
				t.Fatal(err)
			}
			// Nobody who would send a request goes on before as many have come as there are to be, and then all stop.
			var came atomic.Int64
			all := make(chan struct{})
			if _, err := s.run(ctx, l.chunks, func() bool {
				if came.Add(1) == int64(l.concurrency) {
					close(all)
				}
				select {
				case <-all:
				case <-ctx.Done():
				}
				return false
			}); err != nil || came.Load() != int64(l.concurrency) {
				t.Errorf("%+v, %+v: %d at once, %v", l, w, came.Load(), err)
			}
			if err := s.stop(); err != nil {
				t.Error(err)
			}
		}
		if err := f.pool.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestTinyEnvoy(t *testing.T) {
	rows, out := tiny(t, "-envoy", envoytest.Binary(t), "-via", "envoy", "-bodies", "1KiB", "-endpoints", "4", "-setups", "none,null,sluice-approx,sluice-precise")
	if len(rows) != 4 {
		t.Fatalf("%d rows in\n%s", len(rows), out)
	}
	none := numbers(t, find(t, rows, setupNone, "envoy"), "cpu_envoy_us", "headers_p50_us", "headers_p99_us")
	for _, setup := range []string{setupApprox, setupPrecise} {
		n := numbers(t, find(t, rows, setup, "envoy"), "cpu_us", "cpu_ratio", "cpu_envoy_us", "total_cpu_us", "total_cpu_ratio", "headers_p50_us", "allocs")
		if n["cpu_envoy_us"] < none["cpu_envoy_us"] {
			t.Errorf("%s: Envoy takes %g µs, and %g without a picker", setup, n["cpu_envoy_us"], none["cpu_envoy_us"])
		}
	}
}

// fakeRouter is a package that looks like a router's from outside and answers by itself.
const fakeRouter = `
import http.server

class RouterArgs:
    def __init__(self, **arguments):
        self.__dict__.update(arguments)

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *arguments):
        pass
    def do_GET(self):
        self.answer(b"ok")
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.answer(b"data: {}\n\ndata: [DONE]\n\n")
    def answer(self, content):
        self.send_response(200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

class Router:
    def __init__(self, arguments):
        assert arguments.policy == "cache_aware" and len(arguments.worker_urls) == 2
        self.server = http.server.ThreadingHTTPServer((arguments.host, arguments.port), Handler)
    from_args = classmethod(lambda kind, arguments: kind(arguments))
    def start(self):
        self.server.serve_forever()
`

func TestTinyRouter(t *testing.T) {
	routers := t.TempDir()
	for _, name := range []string{"sglang_router/__init__.py", "sglang_router/router_args.py", "sglang_router/router.py"} {
		path := filepath.Join(routers, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(fakeRouter), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	rows, out := tiny(t, "-routers", routers, "-via", "router", "-bodies", "1KiB", "-endpoints", "2", "-setups", "none,sglang-router")
	if len(rows) != 2 {
		t.Fatalf("%d rows in\n%s", len(rows), out)
	}
	numbers(t, find(t, rows, setupNone, "router"), "headers_p50_us", "per_s")
	numbers(t, find(t, rows, setupSGLang, "router"), "cpu_us", "total_cpu_us", "headers_p50_us", "rss_mib", "per_s")
}

func TestTinyIdle(t *testing.T) {
	rows, out := tiny(t, "-via", "idle", "-idle-endpoints", "3", "-idle-time", "1s")
	if len(rows) != 2 {
		t.Fatalf("%d rows in\n%s", len(rows), out)
	}
	for _, setup := range []string{setupApprox, setupMetrics} {
		r, err := record.Find(rows, map[string]string{"setup": setup, "op": "idle", "endpoints": "3", "page": "54KB"})
		if err != nil {
			t.Fatal(err)
		}
		keys := []string{"rss_mib", "seconds"}
		if setup == setupMetrics {
			keys = append(keys, "pages_per_s", "cpu_percent")
		}
		numbers(t, r, keys...)
	}
}

// stopWhen cancels once something that is written holds a text.
type stopWhen struct {
	text   string
	cancel context.CancelFunc
	all    bytes.Buffer
}

func (s *stopWhen) Write(b []byte) (int, error) {
	s.all.Write(b)
	if strings.Contains(s.all.String(), s.text) {
		s.cancel()
	}
	return len(b), nil
}

// An interrupt keeps the rows that are done, and leaves neither processes nor files.
func TestInterrupt(t *testing.T) {
	flags := built(t)
	temporary := t.TempDir()
	t.Setenv("TMPDIR", temporary)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var out bytes.Buffer
	progress := &stopWhen{text: "2 of 2", cancel: cancel}
	err := run(ctx, append(flags, "-rounds", "1", "-requests", "50", "-via", "stream", "-setups", "null,sluice-approx",
		"-bodies", "1KiB", "-endpoints", "8,9"), &out, progress)
	if !errors.Is(err, context.Canceled) {
		t.Errorf("%v, want %v", err, context.Canceled)
	}
	if !strings.Contains(out.String(), "bench setup=sluice-approx") || !strings.Contains(out.String(), "CPU µs/request") || strings.Contains(out.String(), "endpoints=9") {
		t.Errorf("of two loads the first was done:\n%s", out.String())
	}
	left, err := os.ReadDir(temporary)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range left {
		if strings.HasPrefix(f.Name(), "sluice-bench-") {
			t.Errorf("%s is left", f.Name())
		}
	}
}

// What is measured has to work: a server that does not start ends the run, with what it said.
func TestNotASluice(t *testing.T) {
	flags := built(t)
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	binary := filepath.Join(t.TempDir(), "broken")
	if err := os.WriteFile(binary, []byte("#!/bin/sh\necho the reason >&2\nexit 4\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := run(ctx, append(flags, "-sluice", binary, "-via", "stream", "-bodies", "1KiB", "-endpoints", "8", "-requests", "50"), &out, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "the reason") || !strings.Contains(err.Error(), "sluice-approx via stream") || out.Len() > 0 {
		t.Errorf("error %v, output %q", err, out.String())
	}
}
