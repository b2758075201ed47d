package vllm

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// Environment variables that name the programs under test.
const (
	// envVLLM is the command of an installed vLLM, with its Python beside it. Without it the tests are skipped.
	envVLLM = "SLUICE_VLLM"
	// envSluice is the binary of Sluice.
	envSluice = "SLUICE_BINARY"
)

const (
	blockSize = 32  // tokens; the smallest that vLLM has on a CPU
	blocks    = 112 // of one engine's cache, one of which it keeps to itself: 3,552 tokens
	maxTokens = 2048
	baseModel = "tiny"

	startTimeout = 8 * time.Minute // a start takes 20 s on an idle machine with two cores, minutes on a busy one
)

var adapters = []string{"sql", "chat"}

// command is the vLLM to test with; without one the test is skipped.
func command(t *testing.T) string {
	t.Helper()
	path := os.Getenv(envVLLM)
	if path == "" {
		t.Skipf("%s names no vLLM; run `make test-vllm`", envVLLM)
	}
	return path
}

// engine is a vLLM on an address of its own.
type engine struct {
	name    string
	address string // of its API, host:port
	events  int    // port of its KV events; 0: one that it chooses anew at each start
	replay  int    // port of its replay socket, as events
	folder  string // the model, the adapters and the logs
	blocks  int    // of its cache, one of which it keeps to itself
	longest int    // tokens of prompt and answer together
	budget  int    // tokens computed in one step; 0: as vLLM chooses

	owner   *testing.T // its processes end with this test
	proc    *process
	tap     *tap
	http    *http.Client
	emptied bool // its cache was emptied, which its events have not told yet
}

// newEngines makes the model and two engines, not yet started. The first has its events on fixed ports, the second on
// ports that it chooses.
func newEngines(t *testing.T) []*engine {
	t.Helper()
	folder := t.ArtifactDir()
	maker := filepath.Join("..", "..", "scripts", "vllm", "tiny_model.py")
	args := []string{maker, filepath.Join(folder, "model")}
	for _, a := range adapters {
		args = append(args, filepath.Join(folder, a))
	}
	python := filepath.Join(filepath.Dir(command(t)), "python")
	if out, err := exec.CommandContext(t.Context(), python, args...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", maker, err, out)
	}
	var all []*engine
	for i, ip := range envoytest.PodIPs(t, 2) {
		port := envoytest.FreePort(t, ip)
		all = append(all, &engine{
			name: fmt.Sprintf("vllm-%d", i), address: net.JoinHostPort(ip, strconv.Itoa(port)), folder: folder,
			blocks: blocks, longest: maxTokens,
			owner: t, http: lab.NewClient(t),
		})
	}
	all[0].events, all[0].replay = envoytest.FreePort(t, "0.0.0.0"), envoytest.FreePort(t, "0.0.0.0")
	return all
}

// start runs the engine; ready waits for it.
func (e *engine) start(t *testing.T) {
	t.Helper()
	host, port, err := net.SplitHostPort(e.address)
	if err != nil {
		t.Fatal(err)
	}
	events := map[string]any{
		"enable_kv_cache_events": true, "publisher": "zmq", "topic": "kv@" + e.address + "@" + baseModel,
		"endpoint": fmt.Sprintf("tcp://*:%d", e.events), "replay_endpoint": fmt.Sprintf("tcp://*:%d", e.replay),
	}
	args := []string{
		"-n", "19", command(t), "serve", filepath.Join(e.folder, "model"), "--served-model-name", baseModel, "--host", host, "--port", port,
		"--uvicorn-log-level", "warning", "--load-format", "dummy", "--enforce-eager",
		"--max-model-len", strconv.Itoa(e.longest), "--max-num-seqs", "8",
		"--block-size", strconv.Itoa(blockSize), "--num-gpu-blocks-override", strconv.Itoa(e.blocks),
		"--enable-prompt-tokens-details", "--enable-scale-out", "--kv-events-config", lab.JSON(t, events),
		"--enable-lora", "--max-lora-rank", "8", "--max-loras", strconv.Itoa(len(adapters)), "--lora-modules",
	}
	for _, a := range adapters {
		args = append(args, a+"="+filepath.Join(e.folder, a))
	}
	if e.budget > 0 {
		args = append(args, "--max-num-batched-tokens", strconv.Itoa(e.budget))
	}
	cmd := exec.Command("nice", args...)
	cmd.Dir = e.folder
	cmd.Env = []string{
		"VLLM_SERVER_DEV_MODE=1", // for /reset_prefix_cache
		"VLLM_HOST_IP=" + host,   // where it publishes on a port of its own choice, and replays
		"VLLM_CPU_KVCACHE_SPACE=1", "OMP_NUM_THREADS=1", "VLLM_PLUGINS=", "VLLM_LOGGING_LEVEL=WARNING",
		"HF_HUB_OFFLINE=1", "VLLM_NO_USAGE_STATS=1", "DO_NOT_TRACK=1",
	}
	for _, v := range os.Environ() {
		// With it every start would compile all of Python's files anew, three times.
		if !strings.HasPrefix(v, "PYTHONDONTWRITEBYTECODE=") {
			cmd.Env = append(cmd.Env, v)
		}
	}
	e.proc = launch(t, e.owner, e.folder, e.name, cmd)
}

// ready waits until the engine serves, and begins to listen to its events.
func (e *engine) ready(t *testing.T) {
	t.Helper()
	begin := time.Now()
	for !e.healthy(t) {
		if !e.proc.alive() {
			t.Fatalf("%s ended: %v", e.name, e.proc.exit)
		}
		if time.Since(begin) > startTimeout {
			t.Fatalf("%s did not come up in %s", e.name, startTimeout)
		}
		time.Sleep(200 * time.Millisecond)
	}
	t.Logf("%s serves on %s, %.0f s after its start", e.name, e.address, time.Since(begin).Seconds())
	e.tap = listen(t, e)
}

func (e *engine) healthy(t *testing.T) bool {
	t.Helper()
	a, err := lab.Try(e.http, lab.Request(t, http.MethodGet, e.url("/health"), http.NoBody))
	return err == nil && a.Status == http.StatusOK
}

// kill ends every process of the engine at once, as the kernel does that is out of memory.
func (e *engine) kill() {
	e.tap.stop()
	e.proc.kill()
}

func (e *engine) url(path string) string { return "http://" + e.address + path }

// reset empties the engine's prefix cache. Its event leaves with the next step that gives a token.
func (e *engine) reset(t *testing.T) {
	t.Helper()
	// The engine refuses while anything runs, and a request's blocks are freed shortly after its answer.
	lab.Wait(t, e.name+" to reset its prefix cache", func() bool {
		a := lab.Post(t, e.http, e.url("/reset_prefix_cache"), "")
		var done struct{ Success bool }
		decode(t, a, &done)
		return done.Success
	})
}

// eventSockets are the addresses of the engine's events and of its replay socket, as it gives them.
func (e *engine) eventSockets(t *testing.T) (events, replay string) {
	t.Helper()
	var ranks map[string]struct {
		Endpoint string `json:"endpoint"`
		Replay   string `json:"replay_endpoint"`
	}
	decode(t, lab.Get(t, e.http, e.url("/kv_event_sources")), &ranks)
	host, _, err := net.SplitHostPort(e.address)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []*string{&events, &replay} {
		given := ranks["0"].Endpoint
		if address == &replay {
			given = ranks["0"].Replay
		}
		on, port, err := net.SplitHostPort(strings.TrimPrefix(given, "tcp://"))
		if err != nil || len(ranks) != 1 {
			t.Fatalf("%s: event sources %v: %v", e.name, ranks, err)
		}
		if on == "*" {
			on = host
		}
		*address = net.JoinHostPort(on, port)
	}
	return events, replay
}

// tokens are the tokens of a request's prompt, as the engine counts them.
func (e *engine) tokens(t *testing.T, r request) []uint32 {
	t.Helper()
	type rendered struct {
		Tokens []uint32 `json:"token_ids"`
	}
	a := lab.Post(t, e.http, e.url(r.path+"/render"), lab.JSON(t, r.body))
	if r.path == completions {
		var all []rendered
		decode(t, a, &all)
		if len(all) != 1 {
			t.Fatalf("%s rendered %d prompts, want 1: %s", e.name, len(all), a.Body)
		}
		return all[0].Tokens
	}
	var one rendered
	decode(t, a, &one)
	return one.Tokens
}

// decode reads a JSON answer with a 200.
func decode(t *testing.T, a lab.Answer, into any) {
	t.Helper()
	if a.Status != http.StatusOK {
		t.Fatalf("status %d: %s", a.Status, a.Body)
	}
	if err := json.Unmarshal([]byte(a.Body), into); err != nil {
		t.Fatalf("%v in %s", err, a.Body)
	}
}
