//go:build linux

package chaos

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

const (
	enginesOfARun = 5
	engineSpeed   = 0.15 // a token every 150 ms or so: streams last as long as faults
	engineBlocks  = 2500 // of 16 tokens: fewer than all conversations need
	// toEngine is a request header that restricts the pick to the engines that it lists.
	toEngine = "x-engine"
	// envBinary is the sluice to run; the test binary itself, with the race detector where the test has it, unless set.
	envBinary = "SLUICE_BINARY"
)

// stage is what a run takes place on.
type stage struct {
	t        *testing.T
	launcher *launcher
	folder   string
	engines  []*engineUnit
	sluices  [2]sluiceArgs
	envoy    *envoytest.Instance
	client   *http.Client // for administration
	say      func(format string, args ...any)

	raging  time.Time     // when faults began
	unable  chan struct{} // has an element for each engine that cannot serve
	touches int           // prompts sent that nobody sent before

	mu      sync.Mutex
	singles map[kind]*sync.Mutex
	now     int // index of the Sluice that serves
	sluice  *process
	all     []*process // that ever ran
	lives   int        // processes started, for their names
	strange []string   // what went wrong in the stage's own steps
	wrong   []string   // how Sluice processes ended that should have ended well
}

// engineUnit is an engine, whatever process it is at present.
type engineUnit struct {
	index   int
	args    engineArgs
	address string

	struck   sync.Mutex // held by a fault
	switches sync.Mutex // held while its own faults are changed

	mu      sync.Mutex
	process *process
	cuts    []time.Time // when its connections were cut: it was killed, or closed them
}

// newStage starts everything: engines, a Sluice, Envoy.
func newStage(t *testing.T, say func(string, ...any)) *stage {
	t.Helper()
	s := &stage{t: t, launcher: newLauncher(t), folder: t.TempDir(), client: lab.NewClient(t), say: say,
		unable: make(chan struct{}, maxUnable)}
	t.Cleanup(s.close)
	ips := envoytest.PodIPs(t, enginesOfARun)
	ports := [3]int{envoytest.FreePort(t, ips...), envoytest.FreePort(t, ips...), envoytest.FreePort(t, ips...)}
	for i, ip := range ips {
		at := func(port int) string { return net.JoinHostPort(ip, fmt.Sprint(ports[port])) }
		e := &engineUnit{index: i, address: at(0)}
		e.args = engineArgs{
			Name: fmt.Sprintf("engine-%d", i), Listen: at(0), Events: at(1), Replay: at(2), Speed: engineSpeed, Blocks: engineBlocks,
			Record: s.path(fmt.Sprintf("engine-%d.jsonl", i)),
		}
		s.engines = append(s.engines, e)
		s.startEngine(e)
	}
	s.writeConfig(0)
	s.writeEndpoints(-1)
	s.writeCertificate()
	for i := range s.sluices {
		s.sluices[i] = sluiceArgs{Config: s.path("sluice.yaml"), Listen: freeAddress(t), Admin: freeAddress(t)}
	}
	for _, e := range s.engines {
		s.await("an engine", func() bool { return s.up(e) })
	}
	s.sluice = s.startSluice(0)
	s.await("Sluice to be ready", func() bool { return s.ready(0) })
	s.startEnvoy()
	return s
}

func freeAddress(t *testing.T) string {
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(envoytest.FreePort(t)))
}

func (s *stage) path(name string) string { return filepath.Join(s.folder, name) }

// accessLog is where Envoy notes every request.
func (s *stage) accessLog() string { return s.path("access.jsonl") }

// startEnvoy starts an Envoy that knows both Sluices, retries, and notes requests by the clients' own names in a file. On a
// busy machine answers may be late: a Sluice is left after three that are bad.
func (s *stage) startEnvoy() {
	s.t.Helper()
	text := lab.BootstrapWithPickers(s.t, envoy.Params{
		PoolType: envoy.OverrideHost, Endpoints: s.addresses(), Retries: 2, AccessLog: true, SubsetHeader: toEngine,
		Picker: envoy.Picker{TLS: &envoy.TLS{}, HealthInterval: 200 * time.Millisecond},
	}, s.sluices[0].Listen, s.sluices[1].Listen)
	for _, change := range [][2]string{
		{
			`"@type": type.googleapis.com/envoy.extensions.access_loggers.stream.v3.StdoutAccessLog`,
			`"@type": type.googleapis.com/envoy.extensions.access_loggers.file.v3.FileAccessLog` + "\n" +
				strings.Repeat(" ", 22) + fmt.Sprintf("path: %q", s.accessLog()),
		},
		{"%REQ(X-REQUEST-ID)%", "%REQ(" + strings.ToUpper(idHeader) + ")%"},
		{"connect_timeout: 1s", "connect_timeout: 20s"},
		{"timeout: 1s\n          interval", "timeout: 5s\n          interval"},
		{"unhealthy_threshold: 2", "unhealthy_threshold: 3"},
		// Connections to engines that nobody uses end soon, so that none are left at the end.
		{
			"      circuit_breakers: {thresholds: [{max_connections: 1000000, max_pending_requests: 1000000, max_requests: 1000000, max_retries: 1000}]}",
			`      circuit_breakers: {thresholds: [{max_connections: 1000000, max_pending_requests: 1000000, max_requests: 1000000, max_retries: 1000}]}
      typed_extension_protocol_options:
        envoy.extensions.upstreams.http.v3.HttpProtocolOptions:
          "@type": type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions
          common_http_protocol_options: {idle_timeout: 2s}
          explicit_http_config: {http_protocol_options: {enable_trailers: true}}`,
		},
	} {
		if strings.Count(text, change[0]) != 1 {
			s.t.Fatalf("the bootstrap has %q %d times, want once:\n%s", change[0], strings.Count(text, change[0]), text)
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	s.envoy = envoytest.StartBootstrap(s.t, []byte(text))
	s.await("Envoy to find Sluice", func() bool { return s.healthySluices() == 1 })
}

// healthySluices is how many Sluices Envoy sends requests to.
func (s *stage) healthySluices() int {
	return int(s.envoy.Stat(s.t, "cluster."+envoy.PickerCluster+".membership_healthy"))
}

func (s *stage) addresses() (all []string) {
	for _, e := range s.engines {
		all = append(all, e.address)
	}
	return all
}

// writeConfig writes the configuration, one of several that are all right.
func (s *stage) writeConfig(variant int) {
	affinity := []string{
		"explorationProbability: 0", "explorationProbability: 0.1", "explorationProbability: 0, penaltyMode: matchedTokens",
		"explorationProbability: 0.02, affinityThreshold: 0.5",
	}[variant%4]
	s.write("sluice.yaml", fmt.Sprintf(`server:
  decisionHeader: true
  maxEndpointsInPick: 3
  drainDelay: 2s
  drainTimeout: 25s
  tls: {certFile: %s, keyFile: %s}
endpointsFile: %s
plugins:
  - type: token-producer
    parameters: {vllm: {endpoints: true}}
  - type: precise-prefix-cache-producer
  - type: prefix-cache-affinity-filter
    parameters: {%s}
`, s.path("tls.crt"), s.path("tls.key"), s.path("endpoints.yaml"), affinity))
}

// writeEndpoints lists the engines, but for one; -1 leaves none out.
func (s *stage) writeEndpoints(without int) {
	text := "endpoints:\n"
	for _, e := range s.engines {
		if e.index != without {
			text += fmt.Sprintf("  - {address: %q, name: engine-%d}\n", e.address, e.index)
		}
	}
	s.write("endpoints.yaml", text)
}

// writeCertificate writes another certificate and its key.
func (s *stage) writeCertificate() {
	certificate, key := envoytest.WriteCertificate(s.t, "sluice.test", "127.0.0.1")
	s.copy(certificate, "tls.crt")
	s.copy(key, "tls.key")
}

func (s *stage) copy(from, name string) {
	b, err := os.ReadFile(from)
	if err != nil {
		s.oddity("%v", err)
		return
	}
	s.write(name, string(b))
}

// write puts a file in place in one step. It may be called from any goroutine.
func (s *stage) write(name, text string) {
	next := s.path("." + name + ".next")
	err := os.WriteFile(next, []byte(text), 0o600)
	if err == nil {
		err = os.Rename(next, s.path(name))
	}
	if err != nil {
		s.oddity("%v", err)
	}
}

// oddity notes what the stage itself could not do; the run then proves nothing.
func (s *stage) oddity(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.strange = append(s.strange, fmt.Sprintf(format, args...))
}

// misdeed notes what a Sluice process did wrong.
func (s *stage) misdeed(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wrong = append(s.wrong, fmt.Sprintf(format, args...))
}

func (s *stage) run(role, name string, args any, binary string, flags []string) *process {
	s.mu.Lock()
	s.lives++
	name = fmt.Sprintf("%s.%d", name, s.lives)
	s.mu.Unlock()
	p, err := s.launcher.start(s.folder, name, role, args, binary, flags)
	if err != nil {
		s.oddity("%v", err)
		return nil
	}
	s.mu.Lock()
	s.all = append(s.all, p)
	s.mu.Unlock()
	return p
}

func (s *stage) startEngine(e *engineUnit) {
	p := s.run(roleEngine, e.args.Name, e.args, "", nil)
	e.mu.Lock()
	e.process = p
	e.mu.Unlock()
}

func (s *stage) startSluice(i int) *process {
	return s.run(roleSluice, fmt.Sprintf("sluice-%d", i), s.sluices[i], os.Getenv(envBinary), s.sluices[i].flags())
}

// present is the Sluice that serves.
func (s *stage) present() (sluiceArgs, *process) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sluices[s.now], s.sluice
}

// cut notes that an engine's connections break now.
func (e *engineUnit) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.cuts = append(e.cuts, time.Now())
}

// cutWithin reports whether an engine's connections broke in a time.
func (e *engineUnit) cutWithin(from, to time.Time) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, c := range e.cuts {
		if !c.Before(from) && !c.After(to) {
			return true
		}
	}
	return false
}

func (e *engineUnit) now() *process {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.process
}

func (s *stage) up(e *engineUnit) bool {
	_, err := s.get("http://" + e.address + "/health")
	return err == nil
}

func (s *stage) ready(i int) bool {
	_, err := s.get("http://" + s.sluices[i].Admin + "/readyz")
	return err == nil
}

// get reads a page from any goroutine; an answer that is not 200 is an error.
func (s *stage) get(url string) (string, error) { return s.call(http.MethodGet, url, "") }

func (s *stage) call(method, url, body string) (string, error) {
	return s.callIn(s.t.Context(), method, url, body)
}

func (s *stage) callIn(ctx context.Context, method, url, body string) (string, error) {
	r, err := http.NewRequestWithContext(ctx, method, url, strings.NewReader(body))
	if err != nil {
		return "", err
	}
	a, err := lab.Try(s.client, r)
	if err != nil {
		return "", err
	}
	if a.Status != http.StatusOK {
		return "", fmt.Errorf("%s: status %d: %.200s", url, a.Status, a.Body)
	}
	return a.Body, nil
}

// await polls, and fails the test where that takes too long.
func (s *stage) await(what string, ok func() bool) {
	s.t.Helper()
	lab.Wait(s.t, what, ok)
}

// close ends every process.
func (s *stage) close() {
	for _, p := range s.all {
		p.kill()
	}
}
