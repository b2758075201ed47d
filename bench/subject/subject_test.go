package subject

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

func start(t *testing.T, mode string) (*Process, error) {
	t.Helper()
	t.Setenv(childVariable, mode)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	p, err := Start(ctx, self)
	if p != nil {
		t.Cleanup(func() { _, _ = p.Stop() })
	}
	return p, err
}

func serving(t *testing.T) *Process {
	t.Helper()
	p, err := start(t, "serve")
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// The CPU time read from outside is the one that getrusage gives inside.
func TestCPUIsGetrusageOfTheProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the CPU clock of another process is Linux's")
	}
	p := serving(t)
	before, err := p.CPU()
	if err != nil {
		t.Fatal(err)
	}
	var page bytes.Buffer
	if err := p.get(t.Context(), "/burn?ms=150", &page); err != nil {
		t.Fatal(err)
	}
	after, err := p.CPU()
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.ParseInt(page.String(), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	// Serving the request itself is outside of what the child measures, and takes well under 30 ms of CPU.
	own, seen := time.Duration(n), after-before
	if seen < own || seen > own+30*time.Millisecond {
		t.Errorf("used %v seen from outside, %v by its own getrusage", seen, own)
	}
	usage, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	// The kernel rounds each of user and system time to a microsecond.
	if usage.CPU < after-2*time.Microsecond || usage.CPU > after+time.Second {
		t.Errorf("used %v in its life by getrusage, %v by the last reading", usage.CPU, after)
	}
	if usage.PeakRSS < 1<<20 || usage.PeakRSS > 4<<30 {
		t.Errorf("peak RSS %d bytes", usage.PeakRSS)
	}
}

// What the parent takes up is not the child's.
func TestPeakRSSIsTheProcessesOwn(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the largest resident set is read from proc(5)")
	}
	ballast := bytes.Repeat([]byte{1}, 200<<20)
	p := serving(t)
	if err := p.get(t.Context(), "/hold?mib=20", &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	usage, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	runtime.KeepAlive(ballast)
	if got := usage.PeakRSS >> 20; got < 20 || got > 150 {
		t.Errorf("peak RSS %d MiB, of a child that holds 20 and whose parent holds 200", got)
	}
}

// A program that is no server in Go is ready when it is said to be.
func TestLaunch(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	asked := 0
	p, err := Launch(t.Context(), Command{Name: "the program", Path: self, Environment: []string{childVariable + "=mute"},
		Ready: func(context.Context) (string, error) {
			if asked++; asked < 3 {
				return "", errors.New("not yet")
			}
			return "127.0.0.1:7", nil
		}})
	if err != nil {
		t.Fatal(err)
	}
	if asked != 3 || p.Address != "127.0.0.1:7" || p.Name() != "the program" {
		t.Errorf("asked %d times; %s at %s", asked, p.Name(), p.Address)
	}
	if _, err := p.Stop(); err != nil {
		t.Error(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	for mode, want := range map[string]string{"mute": "the reason", "broken": "exit status 3"} {
		_, err = Launch(ctx, Command{Name: "the program", Path: self, Environment: []string{childVariable + "=" + mode},
			Ready: func(ctx context.Context) (string, error) {
				if mode == "broken" {
					time.Sleep(50 * time.Millisecond) // its end is what counts
				}
				return "", errors.New("the reason")
			}})
		if err == nil || !strings.Contains(err.Error(), want) && ctx.Err() == nil {
			t.Errorf("%s: %v, want an error that says %q", mode, err, want)
		}
	}
}

func TestHeapCountsAllocations(t *testing.T) {
	p := serving(t)
	heap := func() Heap {
		h, err := p.Heap(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return h
	}
	page, err := p.PageHeap(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	before := heap()
	if err := p.get(t.Context(), "/allocate?n=100000", &bytes.Buffer{}); err != nil {
		t.Fatal(err)
	}
	got := heap().Minus(before)
	if n := got.Objects - page.Objects; n < 100_000 || n > 105_000 {
		t.Errorf("%.0f allocations, want about 100,000", n)
	}
	if n := got.Bytes - page.Bytes; n < 6_400_000 || n > 7_500_000 {
		t.Errorf("%.0f bytes, want about 6,400,000", n)
	}
}

func TestProfile(t *testing.T) {
	p := serving(t)
	burning := make(chan error, 1)
	go func() { burning <- p.get(t.Context(), "/burn?ms=300", &bytes.Buffer{}) }()
	var profile bytes.Buffer
	if err := p.Profile(t.Context(), time.Second, &profile); err != nil {
		t.Fatal(err)
	}
	if err := <-burning; err != nil {
		t.Fatal(err)
	}
	if b := profile.Bytes(); len(b) < 100 || b[0] != 0x1f || b[1] != 0x8b {
		t.Errorf("a profile of %d bytes that is not gzip", len(b))
	}
}

func TestServerThatDoesNotStart(t *testing.T) {
	p, err := start(t, "broken")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !strings.Contains(err.Error(), "for a reason") {
		t.Errorf("started: %t; error %v", p != nil, err)
	}
	if _, err := Start(t.Context(), filepath.Join(t.TempDir(), "absent")); err == nil {
		t.Error("a missing binary started")
	}
}

func TestServerThatNeverGetsReady(t *testing.T) {
	for _, mode := range []string{"mute", "unready"} {
		t.Setenv(childVariable, mode)
		self, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		_, err = Start(ctx, self)
		cancel()
		if err == nil || !strings.Contains(err.Error(), context.DeadlineExceeded.Error()) {
			t.Errorf("%s: %v, want the deadline", mode, err)
		}
	}
}

func TestServerThatDies(t *testing.T) {
	p := serving(t)
	if err := p.Err(); err != nil {
		t.Fatal(err)
	}
	if err := p.process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	<-p.exited
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("a dead server's error: %v", err)
	}
	if _, err := p.Heap(t.Context()); err == nil {
		t.Error("a dead server gave metrics")
	}
}

func TestBuildReportsWhatIsWrong(t *testing.T) {
	_, err := Build(t.Context(), t.TempDir(), "github.com/sluice-epp/sluice/bench/absent")
	if err == nil || !strings.Contains(err.Error(), "bench/absent") {
		t.Errorf("building a package that is not there: %v", err)
	}
}
