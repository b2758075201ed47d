package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/alecthomas/kong"
)

// captured runs the command line and returns its exit code and what it printed.
func captured(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	files := [2]*os.File{}
	for i := range files {
		f, err := os.CreateTemp(t.TempDir(), "")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = f.Close() })
		files[i] = f
	}
	out, errs := os.Stdout, os.Stderr
	os.Stdout, os.Stderr = files[0], files[1]
	defer func() { os.Stdout, os.Stderr = out, errs }()
	code = run(args)
	texts := [2]string{}
	for i, f := range files {
		if _, err := f.Seek(0, io.SeekStart); err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(f)
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(b)
	}
	return code, texts[0], texts[1]
}

func TestUsageErrors(t *testing.T) {
	for args, want := range map[string]string{
		"serve --log-level verbose":                                   `--log-level: must be one of debug, info, warn, error, got "verbose"`,
		"serve --listen 9002":                                         `--listen: must be "host:port"`,
		"serve --admin x":                                             `--admin: must be "host:port"`,
		"serve --admin-listen x":                                      `--admin: must be "host:port"`,
		"serve --endpoint 10.0.0.1":                                   "--endpoint: endpoint",
		"serve --max-endpoints-in-pick 17":                            "--max-endpoints-in-pick: must be from 1 to 16, got 17",
		"serve --drain-delay=-1s":                                     "--drain-delay: must be from 0s to 10m, got -1s",
		"serve --pool demo/Pool":                                      `--pool: "demo/Pool" is no InferencePool's NAMESPACE/NAME`,
		"serve --pool a --service b":                                  "--service: one of pool, selector and service can be followed, and pool is set too",
		"serve --selector app=vllm":                                   "--target-port: is needed beside selector",
		"serve --selector app=a=b --target-port 8000":                 `--selector: "app=a=b"`,
		"serve --service models --target-port http":                   `--target-port: port must be 1 to 65535, got "http"`,
		"serve --pool a/b --namespace c":                              `--namespace: is "c", and pool names "a/b"`,
		"serve --lisen :1":                                            "unknown flag --lisen",
		"engine --blocks 0":                                           "--blocks: must be from 1 to 16777216, got 0",
		"engine --block-size 0":                                       "--block-size: must be from 1 to 1048576, got 0",
		"engine --speed 0":                                            "--speed: must be > 0",
		"engine --speed NaN":                                          "--speed: must be > 0",
		"engine --max-model-len=-1":                                   "--max-model-len: must be",
		"engine --max-model-len 9223372036854775807":                  "--max-model-len: must be from 1 to 16777216, got 9223372036854775807",
		"engine --blocks 9223372036854775807":                         "--blocks: must be from 1 to 16777216",
		"engine --block-size 9223372036854775807":                     "--block-size: must be from 1 to 1048576",
		"engine --cpu-blocks 9223372036854775807":                     "--cpu-blocks: must be from 0 to 16777216",
		"engine --listen 8000":                                        `--listen: must be "host:port", got "8000"`,
		"engine --cpu-blocks=-1":                                      "--cpu-blocks: must be from 0 to 16777216, got -1",
		"engine --kv-events-port 70000":                               "--kv-events-port: must be from 0 to 65535, got 70000",
		"engine --kv-events-port 1 --kv-events-connect 10.0.0.9:5557": "--kv-events-port: must be absent with --kv-events-connect, got 1",
		"engine --kv-events-connect 10.0.0.9":                         `--kv-events-connect: must be "host:port", got "10.0.0.9"`,
		"engine --kv-events-replay-port=-2":                           "--kv-events-replay-port: must be from -1",
		"engine --kv-events-buffer 0":                                 "--kv-events-buffer: must be >= 1, got 0",
		"engine --data-parallel-rank=-1":                              "--data-parallel-rank: must be >= 0, got -1",
		"demo --engines 17":                                           "--engines: must be from 1 to 16, got 17",
		"simulate":                                                    "--trace or --grid: one of them is needed",
		"simulate --trace b2b --endpoints 0":                          "--endpoints: must be from 1 to 1024, got 0",
		"simulate --trace b2b --from 0.5 --to 0.5":                    "--to: must be above --from, got 0.5",
		"simulate --trace b2b --workers=-1":                           "--workers: must be >= 0, got -1",
		"simulate --trace b2b --find-capacity --results r.jsonl":      "--results: must be absent with --find-capacity, which keeps no runs",
		"simulate --grid a.yaml --limit=-1":                           "--limit: must be >= 0, got -1",
		"demo --speed 0":                                              "--speed: must be > 0",
		"attach envoy --override-host":                                "--override-host: needs the engines that Envoy may choose among: give --endpoint IP:PORT",
		"config":                                                      "expected one of",
		"config check testdata/nowhere.yaml testdata/two.yml":         "unexpected argument",
	} {
		code, stdout, stderr := captured(t, strings.Fields(args)...)
		if code != exitUsage || !strings.Contains(stderr, want) || !strings.Contains(stderr, "Run 'sluice ") || stdout != "" {
			t.Errorf("%s: exit %d, printed %q, said %q; want %q", args, code, stdout, stderr, want)
		}
	}
}

func TestConfigCheck(t *testing.T) {
	if code, stdout, stderr := captured(t, "config", "check"); code != 0 || !strings.Contains(stdout, "is valid") {
		t.Errorf("the built-in one: exit %d, %s", code, stderr)
	}
	if code, _, stderr := captured(t, "config", "check", "/nowhere/sluice.yaml"); code != exitFailure || !strings.Contains(stderr, "/nowhere/sluice.yaml") {
		t.Errorf("no file: exit %d, %s", code, stderr)
	}
	stdin := os.Stdin
	defer func() { os.Stdin = stdin }()
	for text, want := range map[string]struct {
		code int
		says string
	}{
		"endpointsFile: /nowhere/endpoints.yaml\n": {0, "cannot be read here"},
		"servr: {}\ndns: {interval: 0s}\n": {exitFailure, "sluice: the configuration is not valid:\n" +
			"standard input:1:1: servr: unknown key (did you mean \"server\"?)\n" +
			"standard input:2:17: dns.interval: must be from 1s to 1h, got 0s\n"},
		"server: {maxBufferedBytes: 4}\n":      {exitFailure, "server.maxBufferedBytes: must be 0 or from 1MiB to 1024GiB, got 4"},
		"server: {maxBufferedBytes: 100MiB}\n": {0, "server.maxBufferedBytes: one request body may take half of it, 50MiB"},
	} {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.WriteString(text); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		os.Stdin = r
		code, stdout, stderr := captured(t, "config", "check", "-")
		if code != want.code || !strings.Contains(stdout+stderr, want.says) {
			t.Errorf("%q: exit %d, printed %q, said %q; want %d, %q", text, code, stdout, stderr, want.code, want.says)
		}
		_ = r.Close()
	}
}

// Each --sluice is a replica that Envoy may ask; the default is none of them once one is given.
func TestAttachReplicas(t *testing.T) {
	code, stdout, stderr := captured(t, "attach", "envoy", "--sluice", "10.0.0.2:9002", "--sluice", "10.0.0.3:9003")
	want := `        cluster_name: "endpoint-picker"
        endpoints:
          - lb_endpoints:
              - endpoint: {address: {socket_address: {address: "10.0.0.2", port_value: 9002}}}
              - endpoint: {address: {socket_address: {address: "10.0.0.3", port_value: 9003}}}
`
	if code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("exit %d, said %q, no %s in\n%s", code, stderr, want, stdout)
	}
	if strings.Count(stdout, "port_value: 900") != 2 {
		t.Errorf("more pickers than were named:\n%s", stdout)
	}
	if code, _, stderr := captured(t, "attach", "envoy", "--sluice", "10.0.0.2:9002", "--sluice", "10.0.0.2:9002"); code != exitFailure || !strings.Contains(stderr, "is listed twice") {
		t.Errorf("the same twice: exit %d, said %q", code, stderr)
	}
	if code, _, stderr := captured(t, "attach", "envoy", "--sluice="); code == 0 {
		t.Errorf("none: exit %d, said %q", code, stderr)
	}
}

func TestAttachNotes(t *testing.T) {
	slow := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(slow, []byte("server: {produceTimeout: 6s}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for args, want := range map[string]string{
		"":                         "",
		"--endpoint 10.0.0.1:8000": "--endpoint does nothing without --override-host",
		"--retries 1":              "without --override-host and an --endpoint for each engine",
		"--override-host --endpoint 10.0.0.1:8000 --retries 2":               "--max-endpoints-in-pick 3",
		"--override-host --endpoint 10.0.0.1:8000":                           "",
		"--request-body buffered --message-timeout 200ms":                    "",
		"--request-body buffered --message-timeout 150ms":                    "--message-timeout 150ms is not above server.produceTimeout (150ms)",
		"--request-body streamed --message-timeout 100ms":                    "--message-timeout 100ms is not above server.produceTimeout (150ms)",
		"--request-body buffered --message-timeout 0s":                       "",
		"--message-timeout 100ms":                                            "", // it does not run in full duplex
		"--request-body buffered --config " + slow:                           "--message-timeout 5s is not above server.produceTimeout (6s)",
		"--request-body buffered --config " + slow + " --message-timeout 7s": "",
	} {
		code, stdout, stderr := captured(t, append([]string{"attach", "envoy"}, strings.Fields(args)...)...)
		if code != 0 || !strings.Contains(stdout, "static_resources:") || !strings.Contains(stderr, want) || (want == "") != (stderr == "") {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr, want)
		}
	}
	code, stdout, stderr := captured(t, "attach", "envoy", "--config", "/nowhere/sluice.yaml")
	if code != exitFailure || stdout != "" || !strings.Contains(stderr, "--config: ") || !strings.Contains(stderr, "/nowhere/sluice.yaml") {
		t.Errorf("no such file: exit %d, printed %q, said %q", code, stdout, stderr)
	}
}

func help(t *testing.T, args ...string) string {
	t.Helper()
	var page strings.Builder
	parser := newParser(&CLI{}, kong.Writers(&page, &page), kong.Exit(func(int) {}))
	if _, err := parser.Parse(append(args, "--help")); err != nil {
		t.Logf("after the help: %v", err) // the process would have ended
	}
	return page.String()
}

// A placeholder hides a default, so the help says it.
func TestHelpSaysDefaults(t *testing.T) {
	for args, wants := range map[string][]string{
		"attach envoy": {"(default\n", "127.0.0.1:8080)", "sluice attach envoy > envoy.yaml", "--max-endpoints-in-pick"},
		"engine": {"(default 127.0.0.1:8000)", "sluice engine --listen", "KV events:\n", "--[no-]kv-events ", "--kv-events-port=0 ",
			"--kv-events-connect=HOST:PORT", "--kv-events-buffer=10000 ", "--[no-]render ", "--cpu-blocks=0 ", "docs/simulated-engine.md"},
		"calibrate":    {"--timeout=5m ", "sluice calibrate --endpoint http://", "docs/gate.md", "label:KEY", "From a live engine:\n"},
		"gate-report":  {"around the gaps in the log", "(default 1,3)", "sluice gate-report --html", "docs/gate.md"},
		"serve":        {":9002)", "(default info)", "sluice serve --listen", "sluice serve --pool demo/vllm", "[NAMESPACE/]NAME"},
		"demo":         {"from 1 to 16", "sluice demo --envoy"},
		"config check": {"- for standard input", "sluice config check -"},
	} {
		page := help(t, strings.Fields(args)...)
		for _, want := range wants {
			if !strings.Contains(page, want) {
				t.Errorf("%s: no %q in\n%s", args, want, page)
			}
		}
	}
}

// Without arguments there is help; commands that read a log and are given none say what they want.
func TestNothingGiven(t *testing.T) {
	if code, stdout, stderr := captured(t); code != exitUsage || stdout != "" || !strings.Contains(stderr, "Commands:") || !strings.Contains(stderr, "gate-report") {
		t.Errorf("exit %d, printed %q, said %q", code, stdout, stderr)
	}
	for _, command := range []string{"gate-report", "replay"} {
		if code, _, stderr := captured(t, command); code != exitUsage || !strings.Contains(stderr, "give the files or folders of a decision log") {
			t.Errorf("%s: exit %d, said %q", command, code, stderr)
		}
	}
}

func TestConfigImport(t *testing.T) {
	folder := t.TempDir()
	in, out := filepath.Join(folder, "epp.yaml"), filepath.Join(folder, "sluice.yaml")
	text := "apiVersion: llm-d.ai/v1alpha1\nkind: EndpointPickerConfig\nplugins:\n- type: queue-scorer\n- type: utilization-filter\n"
	if err := os.WriteFile(in, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := captured(t, "config", "import", in)
	if code != 0 || stderr != "" || !strings.Contains(stdout, "1 map, 0 differ, 1 missing, 0 not needed") || !strings.Contains(stdout, "-o FILE") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = captured(t, "config", "import", in, "-o", out)
	if code != 0 || stderr != "" || !strings.Contains(stdout, out+" is written") {
		t.Errorf("exit code %d\n%s%s", code, stdout, stderr)
	}
	if code, stdout, stderr = captured(t, "config", "check", out); code != 0 || !strings.Contains(stdout, "- pluginRef: queue-scorer") {
		t.Errorf("what is written does not pass: exit code %d\n%s%s", code, stdout, stderr)
	}
	code, stdout, stderr = captured(t, "config", "import", in, "-o", "-")
	if code != 0 || !strings.HasPrefix(stdout, "# Made of ") || !strings.Contains(stderr, "utilization-filter, line 5") {
		t.Errorf("exit code %d\n%s\n%s", code, stdout, stderr)
	}
	if code, _, stderr = captured(t, "config", "import", filepath.Join(folder, "gone")); code != 1 || !strings.Contains(stderr, "no such file") {
		t.Errorf("exit code %d, %s", code, stderr)
	}
	if err := os.WriteFile(in, []byte("kind: Service\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if code, _, stderr = captured(t, "config", "import", in, "-o", out); code != 1 || !strings.Contains(stderr, `its kind is "Service"`) {
		t.Errorf("exit code %d, %s", code, stderr)
	}
}
