package envoytest

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
)

const (
	startTimeout = 20 * time.Second
	adminTimeout = 5 * time.Second
	stopTimeout  = 5 * time.Second
	pollInterval = 10 * time.Millisecond
)

// Instance is a running Envoy. It stops with the test that started it.
type Instance struct {
	// Addr is the listener's host:port.
	Addr string
	// AdminAddr is the admin port's host:port.
	AdminAddr string

	log     *tail
	admin   *http.Client
	process *os.Process
	exited  chan struct{} // closed once the process is gone
	exit    error         // how it went, set before exited closes
	stop    sync.Once
}

// Start renders the parameters and runs Envoy with them. An empty Listen or Admin becomes a free port on 127.0.0.1. It
// returns once the listener accepts; the picker need not be up.
func Start(t testing.TB, p envoy.Params) *Instance {
	t.Helper()
	if p.Listen == "" {
		p.Listen = "127.0.0.1:0"
	}
	if p.Admin == "" {
		p.Admin = "127.0.0.1:0"
	}
	bootstrap, err := envoy.Render(p)
	if err != nil {
		t.Fatal(err)
	}
	return StartBootstrap(t, bootstrap)
}

// StartBootstrap runs Envoy with a bootstrap that has an admin port. Addr is that of its first listener.
func StartBootstrap(t testing.TB, bootstrap []byte) *Instance {
	t.Helper()
	e, err := launch(t.Context(), Binary(t), write(t, bootstrap), filepath.Join(t.TempDir(), "admin-address"))
	if e != nil {
		t.Cleanup(func() {
			e.Stop()
			if t.Failed() {
				t.Logf("the end of Envoy's log:\n%s", e.Log())
			}
		})
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// launch starts Envoy and waits until it is ready. With an error the instance, if any, is still to be stopped.
func launch(ctx context.Context, binary, bootstrapFile, adminFile string) (*Instance, error) {
	level := os.Getenv(EnvLogLevel)
	if level == "" {
		level = "warning"
	}
	cmd := exec.Command(binary, "-c", bootstrapFile, "--disable-hot-restart", "--concurrency", "1",
		"--admin-address-path", adminFile, "--log-level", level)
	e := &Instance{log: &tail{}, exited: make(chan struct{}), admin: &http.Client{
		Timeout:   adminTimeout,
		Transport: &http.Transport{DisableKeepAlives: true},
	}}
	cmd.Stdout, cmd.Stderr = e.log, e.log
	cmd.WaitDelay = stopTimeout
	if err := e.run(cmd); err != nil {
		return nil, fmt.Errorf("start envoy: %w", err)
	}
	if err := e.ready(ctx, adminFile); err != nil {
		return e, fmt.Errorf("envoy did not come up: %w", err)
	}
	return e, nil
}

// run starts the process from an OS thread that lives as long as the process: where the kernel ends a child with its
// parent, the parent is the thread.
func (e *Instance) run(cmd *exec.Cmd) error {
	cmd.SysProcAttr = tied()
	started := make(chan error)
	go func() {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		if err := cmd.Start(); err != nil {
			started <- err
			return
		}
		e.process = cmd.Process
		started <- nil
		e.exit = cmd.Wait()
		close(e.exited)
	}()
	return <-started
}

// ready waits for the admin port, for its word that every cluster and listener is up, and for the listener's address.
func (e *Instance) ready(ctx context.Context, adminFile string) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		last := e.probe(ctx, adminFile)
		if last == nil {
			return nil
		}
		select {
		case <-e.exited:
			return fmt.Errorf("it exited: %w", e.exit)
		case <-ctx.Done():
			return fmt.Errorf("%w; last: %w", ctx.Err(), last)
		case <-time.After(pollInterval):
		}
	}
}

func (e *Instance) probe(ctx context.Context, adminFile string) error {
	content, err := os.ReadFile(adminFile)
	if err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(string(content)); err != nil {
		return err
	}
	e.AdminAddr = string(content)
	if _, err := e.call(ctx, http.MethodGet, "/ready"); err != nil {
		return err
	}
	listeners, err := e.call(ctx, http.MethodGet, "/listeners?format=json")
	if err != nil {
		return err
	}
	e.Addr, err = envoy.FirstListener(listeners)
	return err
}

// Pid is the number of the process.
func (e *Instance) Pid() int { return e.process.Pid }

// URL is the listener's address for a path.
func (e *Instance) URL(path string) string { return "http://" + e.Addr + path }

// Admin calls the admin port, such as GET /clusters or POST /logging?ext_proc=debug, and returns the page.
func (e *Instance) Admin(t testing.TB, method, path string) string {
	t.Helper()
	page, err := e.call(t.Context(), method, path)
	if err != nil {
		t.Fatal(err)
	}
	return string(page)
}

func (e *Instance) call(ctx context.Context, method, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://"+e.AdminAddr+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	response, err := e.admin.Do(request)
	if err != nil {
		return nil, fmt.Errorf("envoy admin %s %s: %w", method, path, err)
	}
	defer response.Body.Close()
	page, err := io.ReadAll(response.Body)
	if err != nil {
		return nil, fmt.Errorf("envoy admin %s %s: %w", method, path, err)
	}
	if response.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("envoy admin %s %s: %s: %s", method, path, response.Status, page)
	}
	return page, nil
}

// Stat returns a counter or gauge by its full name, such as cluster.endpoint-picker.upstream_rq_total. A name that Envoy
// does not have fails the test.
func (e *Instance) Stat(t testing.TB, name string) int64 {
	t.Helper()
	page := e.Admin(t, http.MethodGet, "/stats?filter="+strings.ReplaceAll("^"+regexp.QuoteMeta(name)+"$", "+", "%2B"))
	value, found := strings.CutPrefix(strings.TrimSpace(page), name+": ")
	if !found {
		t.Fatalf("envoy has no statistic %s: %q", name, page)
	}
	number, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		t.Fatalf("envoy statistic %s: %v", name, err)
	}
	return number
}

// WaitStat polls a statistic until it is at least a value, and returns it. It fails the test after the timeout.
func (e *Instance) WaitStat(t testing.TB, name string, least int64, timeout time.Duration) int64 {
	t.Helper()
	deadline := time.Now().Add(timeout)
	for {
		value := e.Stat(t, name)
		if value >= least {
			return value
		}
		if time.Now().After(deadline) {
			t.Fatalf("envoy statistic %s is %d after %s, want at least %d", name, value, timeout, least)
		}
		time.Sleep(pollInterval)
	}
}

// Log returns the end of what Envoy wrote, access log included.
func (e *Instance) Log() string { return e.log.String() }

// Stop ends the process and waits for its end. It may be called more than once.
func (e *Instance) Stop() {
	e.stop.Do(func() {
		select {
		case <-e.exited:
			return
		default:
		}
		_ = e.process.Signal(syscall.SIGTERM)
		late := time.NewTimer(stopTimeout)
		defer late.Stop()
		select {
		case <-e.exited:
		case <-late.C:
			_ = e.process.Kill()
			<-e.exited
		}
	})
}
