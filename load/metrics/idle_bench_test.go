//go:build linux

package metrics_test

import (
	"bufio"
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// idlePages names the variable that makes the test binary serve a page instead of running tests, so that what the
// engines cost is not counted as the picker's.
const idlePages = "SLUICE_TEST_SERVE_PAGE"

const idleEndpoints = 512

func init() {
	metrics.ServePages = func() bool {
		path, asked := os.LookupEnv(idlePages)
		if !asked {
			return false
		}
		if err := servePages(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return true
	}
}

// servePages serves a file as the page of idleEndpoints loopback addresses until its standard input ends.
func servePages(path string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	answer := append(fmt.Appendf(nil, "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: %d\r\n\r\n", len(page)), page...)
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			l.Close()
		}
	}()
	port := "0"
	for i := range idleEndpoints {
		l, err := net.Listen("tcp", idleHost(i)+":"+port)
		if err != nil {
			return err
		}
		listeners = append(listeners, l)
		_, port, _ = strings.Cut(l.Addr().String(), ":")
		go serveAll(l, answer)
	}
	fmt.Println(port)
	_, _ = bufio.NewReader(os.Stdin).ReadByte() // until the parent goes
	return nil
}

func idleHost(i int) string { return fmt.Sprintf("127.1.%d.%d", i/250, i%250+1) }

// serveAll answers every request of every connection alike.
func serveAll(l net.Listener, answer []byte) {
	for {
		conn, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer conn.Close()
			r := bufio.NewReader(conn)
			for {
				for line := []byte("x"); len(bytes.TrimSpace(line)) > 0; {
					if line, err = r.ReadBytes('\n'); err != nil {
						return
					}
				}
				if _, err := conn.Write(answer); err != nil {
					return
				}
			}
		}()
	}
}

// startPages starts another process that stands in for the engines, and returns their port.
func startPages(b *testing.B) (port string) {
	b.Helper()
	child := exec.CommandContext(b.Context(), os.Args[0])
	child.Env = append(os.Environ(), idlePages+"=testdata/vllm_idle.txt")
	stdin, err := child.StdinPipe()
	if err != nil {
		b.Fatal(err)
	}
	stdout, err := child.StdoutPipe()
	if err != nil {
		b.Fatal(err)
	}
	if err := child.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		stdin.Close()
		_ = child.Wait()
	})
	if port, err = bufio.NewReader(stdout).ReadString('\n'); err != nil {
		b.Fatal(err)
	}
	return strings.TrimSpace(port)
}

// BenchmarkIdleScraping is the CPU time that reading the 54 KB pages of 512 endpoints on loopback takes, at the default
// intervals: 2.048 s where the load is needed, 10.24 s where only the rest is. An operation is one second of real time;
// the metric core-% is the share of one core.
//
//	go test -run '^$' -bench IdleScraping -benchtime 20x ./load/metrics
func BenchmarkIdleScraping(b *testing.B) {
	for _, kind := range []string{metrics.TypeName, metrics.InfoTypeName} {
		b.Run(kind, func(b *testing.B) { benchmarkIdle(b, kind, startPages(b)) })
	}
}

func benchmarkIdle(b *testing.B, kind, port string) {
	start := time.Now()
	store := metrics.NewStore(metrics.Options{Now: func() time.Duration { return time.Since(start) }})
	cfg := schedtest.Config([]scheduling.Spec{{Name: kind, Type: kind}}, schedtest.First.Type)
	s, err := scheduling.Build(append(store.Types(), schedtest.First), cfg, nil)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	specs := make([]scheduling.EndpointSpec, idleEndpoints)
	for i := range specs {
		specs[i].Address = idleHost(i) + ":" + port
	}
	pool := scheduling.NewPool()
	b.Cleanup(pool.Watch(s.SnapshotChanged))
	pool.Update(specs)
	time.Sleep(5 * time.Second) // every connection is open
	b.ReportAllocs()
	before, pages := cpuTime(b), store.Scrapes(metrics.ResultOK)
	for b.Loop() {
		time.Sleep(time.Second)
	}
	used := cpuTime(b) - before
	pages = store.Scrapes(metrics.ResultOK) - pages
	b.ReportMetric(100*used.Seconds()/b.Elapsed().Seconds(), "core-%")
	b.ReportMetric(float64(pages)/b.Elapsed().Seconds(), "pages/s")
	b.ReportMetric(float64(used.Microseconds())/float64(max(pages, 1)), "cpu-µs/page")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
