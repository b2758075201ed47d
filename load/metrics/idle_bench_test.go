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
	port := "0"
	for i := range idleEndpoints {
		l, err := net.Listen("tcp", idleHost(i)+":"+port)
		if err != nil {
			return err
		}
		defer l.Close()
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

// BenchmarkIdleScraping is the CPU time that reading the 54 KB pages of 512 endpoints on loopback takes per second, at
// the default interval of 2.048 s: an operation is one second. The share of one core is in the metric core-%.
//
//	go test -run '^$' -bench IdleScraping -benchtime 10x ./load/metrics
func BenchmarkIdleScraping(b *testing.B) {
	child := exec.Command(os.Args[0])
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
	b.Cleanup(func() { stdin.Close(); _ = child.Wait() })
	port, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		b.Fatal(err)
	}
	port = strings.TrimSpace(port)

	start := time.Now()
	store := metrics.NewStore(metrics.Options{Now: func() time.Duration { return time.Since(start) }})
	cfg := schedtest.Config([]scheduling.Spec{{Name: metrics.TypeName, Type: metrics.TypeName}}, schedtest.First.Type)
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
	b.ReportMetric(float64(used.Microseconds())/float64(pages), "cpu-µs/page")
}

func cpuTime(b *testing.B) time.Duration {
	b.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		b.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
