package trace

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/deploy/jaeger"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// Environment variables that the tests need.
const (
	envJaeger = "SLUICE_JAEGER" // the Jaeger to run
	envSluice = "SLUICE_BINARY" // a built Sluice
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// process is a child that ends with the test.
type process struct {
	name   string
	exited chan struct{}
	mu     sync.Mutex
	log    bytes.Buffer
}

// Write keeps what the child says.
func (p *process) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

// launch starts a child with variables besides the environment's.
func launch(t *testing.T, name string, variables []string, path string, args ...string) *process {
	t.Helper()
	p := &process{name: name, exited: make(chan struct{})}
	cmd := exec.Command(path, args...)
	cmd.Env = append(os.Environ(), variables...)
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr, cmd.WaitDelay = p, p, tied(), 5*time.Second
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the kernel ends a child with the thread that started it
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(p.exited)
		}
	}()
	if err := <-started; err != nil {
		t.Fatalf("start %s: %v", name, err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt) // it may have ended
		late := time.AfterFunc(15*time.Second, func() { _ = cmd.Process.Kill() })
		<-p.exited
		late.Stop()
		if t.Failed() {
			p.mu.Lock()
			defer p.mu.Unlock()
			t.Logf("the end of what %s wrote:\n%s", name, p.log.Bytes()[max(0, p.log.Len()-2000):])
		}
	})
	return p
}

// await waits until a URL answers with 200.
func (p *process) await(t *testing.T, c *http.Client, url string) {
	t.Helper()
	lab.Wait(t, p.name+" to be ready", func() bool {
		select {
		case <-p.exited:
			t.Fatalf("%s ended", p.name)
		default:
		}
		a, err := lab.Try(c, lab.Request(t, http.MethodGet, url, http.NoBody))
		return err == nil && a.Status == http.StatusOK
	})
}

// stack is everything that a request comes through, and where its spans go.
type stack struct {
	client *http.Client
	api    *jaeger.API
	otlp   string
	sluice string // its address
	admin  string
	pools  []string // the engines' addresses
}

func local(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

func newStack(t *testing.T) *stack {
	t.Helper()
	binary, jaegerPath := os.Getenv(envSluice), os.Getenv(envJaeger)
	if binary == "" || jaegerPath == "" {
		t.Skipf("%s or %s names nothing: run `make test-trace`", envSluice, envJaeger)
	}
	at := func() string { return local(envoytest.FreePort(t)) }
	s := &stack{client: lab.NewClient(t), otlp: at(), sluice: at(), admin: at()}
	s.startJaeger(t, jaegerPath, at(), at())
	args := []string{"serve", "--config", writeFile(t, "sluice.yaml", configuration), "--listen", s.sluice, "--admin", s.admin}
	for i := range 2 {
		address, name := at(), fmt.Sprintf("engine-%d", i)
		launch(t, name, s.variables("engine"), binary, "engine", "--listen", address, "--name", name, "--speed", "20").
			await(t, s.client, "http://"+address+"/health")
		s.pools = append(s.pools, address)
		args = append(args, "--endpoint", address+",name="+name)
	}
	launch(t, "sluice", s.variables("sluice"), binary, args...).await(t, s.client, "http://"+s.admin+"/readyz")
	return s
}

// The budgets are ones that a busy machine keeps.
const configuration = `
apiVersion: sluice/v1alpha1
kind: EndpointPickerConfig
server: {drainDelay: 0s, produceTimeout: 10s}
plugins:
  - type: token-producer
    parameters: {vllm: {endpoints: true, timeout: 10s}}
  - type: precise-prefix-cache-producer
`

func writeFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	lab.WriteFile(t, path, text)
	return path
}

func (s *stack) startJaeger(t *testing.T, path, query, queryGRPC string) {
	t.Helper()
	config, err := jaeger.Render(jaeger.Params{Query: query, QueryGRPC: queryGRPC, OTLP: s.otlp})
	if err != nil {
		t.Fatal(err)
	}
	s.api = &jaeger.API{URL: "http://" + query, Client: s.client}
	launch(t, "jaeger", nil, path, "--config", writeFile(t, "jaeger.yaml", string(config))).
		await(t, s.client, s.api.URL+"/api/services")
}

// variables make a process trace.
func (s *stack) variables(service string) []string {
	return []string{
		"OTEL_TRACES_EXPORTER=otlp", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_ENDPOINT=http://" + s.otlp,
		"OTEL_SERVICE_NAME=" + service, "OTEL_BSP_SCHEDULE_DELAY=200",
	}
}

// envoy starts one that traces, or one that does not.
func (s *stack) envoy(t *testing.T, traces bool) *envoytest.Instance {
	t.Helper()
	p := envoy.Params{Picker: envoy.Picker{Address: s.sluice}}
	if traces {
		p.Tracing = &envoy.Tracing{Collector: s.otlp}
	}
	e := envoytest.Start(t, p)
	lab.Wait(t, "the picker to be reached", func() bool {
		a, err := lab.Try(s.client, lab.Request(t, http.MethodGet, e.URL("/v1/models"), http.NoBody, parentHeader, unrecorded))
		return err == nil && a.Status == http.StatusOK
	})
	return e
}
