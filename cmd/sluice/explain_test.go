package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	filterv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
)

// running is a Sluice in this process.
type running struct {
	app  *server.App
	conn *grpc.ClientConn
	stop context.CancelFunc
}

// launch starts a Sluice of two engines on loopback.
func launch(t *testing.T, change func(*config.Config)) *running {
	t.Helper()
	app, err := server.New(t.Context(), server.Options{
		Registry: prometheus.NewRegistry(), Version: "test",
		Override: func(c *config.Config) {
			c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
			c.Server.DrainDelay, c.Server.DrainTimeout = 0, 5*time.Second
			c.Endpoints = []string{"127.0.0.1:1,name=engine-0", "127.0.0.1:2,name=engine-1"}
			if change != nil {
				change(c)
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &running{app: app, stop: cancel}
	ended := make(chan error, 1)
	go func() { ended <- app.Run(ctx, nil) }()
	if r.conn, err = grpc.NewClient(app.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = r.conn.Close()
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("run: %v", err)
		}
	})
	for deadline := time.Now().Add(20 * time.Second); !app.Ready(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not ready")
		}
	}
	return r
}

func (r *running) admin() string { return r.app.AdminAddr().String() }

const chatBody = `{"model":"llama","messages":[{"role":"user","content":"hello"}]}`

// request goes through Sluice as Envoy sends it, and is answered by an engine of which 2 of 3 tokens were cached.
func (r *running) request(t *testing.T, id string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	s, err := extprocv3.NewExternalProcessorClient(r.conn).Process(ctx)
	if err != nil {
		t.Fatal(err)
	}
	headers := func(kv ...string) *extprocv3.HttpHeaders {
		m := &corev3.HeaderMap{}
		for i := 0; i+1 < len(kv); i += 2 {
			m.Headers = append(m.Headers, &corev3.HeaderValue{Key: kv[i], RawValue: []byte(kv[i+1])})
		}
		return &extprocv3.HttpHeaders{Headers: m}
	}
	body := func(text string) *extprocv3.HttpBody {
		return &extprocv3.HttpBody{Body: []byte(text), EndOfStream: true}
	}
	for _, m := range []*extprocv3.ProcessingRequest{
		{
			ProtocolConfig: &extprocv3.ProtocolConfiguration{
				RequestBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED, ResponseBodyMode: filterv3.ProcessingMode_FULL_DUPLEX_STREAMED,
			},
			Request: &extprocv3.ProcessingRequest_RequestHeaders{RequestHeaders: headers(
				":method", "POST", ":path", "/v1/chat/completions", "content-type", "application/json", "x-request-id", id)},
		},
		{Request: &extprocv3.ProcessingRequest_RequestBody{RequestBody: body(chatBody)}},
		{Request: &extprocv3.ProcessingRequest_ResponseHeaders{ResponseHeaders: headers(":status", "200", "content-type", "application/json")}},
		{Request: &extprocv3.ProcessingRequest_ResponseBody{ResponseBody: body(
			`{"usage":{"prompt_tokens":3,"completion_tokens":5,"prompt_tokens_details":{"cached_tokens":2}}}`)}},
	} {
		if err := s.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	for err == nil {
		_, err = s.Recv()
	}
	if !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
}

// given lets the commands read a text as standard input.
func given(t *testing.T, text string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "stdin")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	before := os.Stdin
	os.Stdin = f
	t.Cleanup(func() {
		os.Stdin = before
		_ = f.Close()
	})
}

// A request that went through is explained, by its id, by the decision's, and as the newest.
func TestExplainARequest(t *testing.T) {
	r := launch(t, nil)
	r.request(t, "one")
	r.request(t, "two")
	r.request(t, "two")
	code, stdout, stderr := captured(t, "explain", "--admin", r.admin(), "one")
	if code != 0 || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{
		"\n  request id      one\n", "\nWhy\n  engine-", "0 tokens of 0 requests in flight", "complete, HTTP status 200", "5 tokens", "the engine had 2",
		"\nGate\n  verdict         no_sticky by prefix-cache-affinity-filter: ", "\n>  engine-", " picked", " passed",
		"a: prefill-cost-scorer, weight 1", "would have been picked", "predicted TTFT  not yet known", "learnt rates    not yet known", "break-even      not yet known",
	} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	id := regexp.MustCompile(`^Decision (\d+) `).FindStringSubmatch(stdout)
	if id == nil {
		t.Fatalf("no decision's id in\n%s", stdout)
	}
	if code, again, stderr := captured(t, "explain", "--admin", r.admin(), "--id", id[1]); code != 0 || !strings.HasPrefix(again, "Decision "+id[1]+" ") {
		t.Errorf("by the decision's id: exit %d, %s%s", code, again, stderr)
	}
	for args, want := range map[string]int{"two": 2, "two one": 3, "": 1, "--last 2": 2, "--last 1 two": 1} {
		code, stdout, stderr := captured(t, append([]string{"explain", "--admin", r.admin()}, strings.Fields(args)...)...)
		if n := strings.Count(stdout, "Decision "); code != 0 || n != want {
			t.Errorf("%q: exit %d, %d decisions, want %d; %s", args, code, n, want, stderr)
		}
		if left := strings.Contains(stderr, "older ones are left out"); left != strings.Contains(args, "--last") {
			t.Errorf("%q: said %q", args, stderr)
		}
	}
}

func TestExplainAsJSON(t *testing.T) {
	r := launch(t, nil)
	r.request(t, "one")
	r.request(t, "one")
	code, stdout, stderr := captured(t, "explain", "--admin", r.admin(), "one", "-o", "json", "--candidates", "1")
	lines := strings.Split(strings.TrimSuffix(stdout, "\n"), "\n")
	if code != 0 || len(lines) != 2 {
		t.Fatalf("exit %d, %d lines: %s", code, len(lines), stderr)
	}
	for _, line := range lines {
		var x struct {
			Reason   string
			Decision struct {
				RequestID  string `json:"client_request_id"`
				Candidates []struct{ Address string }
				Outcome    struct{ Status int }
			}
			LeftOut int `json:"candidates_left_out"`
		}
		if err := json.Unmarshal([]byte(line), &x); err != nil {
			t.Fatal(err)
		}
		if x.Reason == "" || x.Decision.RequestID != "one" || len(x.Decision.Candidates) != 1 || x.LeftOut != 1 || x.Decision.Outcome.Status != 200 {
			t.Errorf("%+v", x)
		}
	}
}

// A body on standard input is only tried.
func TestExplainABody(t *testing.T) {
	r := launch(t, nil)
	given(t, chatBody)
	code, stdout, stderr := captured(t, "explain", "--admin", r.admin(), "-", "--header", "X-Request-ID: mine", "--subset", "127.0.0.1:2")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, want := range []string{"Dry run  no engine computed it", "\n  request id      mine\n", "model llama", "\n>  engine-1  picked", "engine-0  not allowed"} {
		if !strings.Contains(stdout, want) {
			t.Errorf("no %q in\n%s", want, stdout)
		}
	}
	if strings.Contains(stdout, "Outcome") {
		t.Error("what was tried has an outcome")
	}
	code, _, stderr = captured(t, "explain", "--admin", r.admin())
	if code != exitFailure || !strings.HasPrefix(stderr, "sluice: there was no decision yet; another replica may have decided it: ") {
		t.Errorf("after what was only tried: exit %d, %q", code, stderr)
	}
	given(t, chatBody)
	code, _, stderr = captured(t, "explain", "--admin", r.admin(), "-", "--subset", "127.0.0.1:2,36961")
	if code != exitFailure || stderr != "sluice: subset[1]: must be ip:port, or an ip for all its ports, got \"36961\"\n" {
		t.Errorf("a port alone: exit %d, %q", code, stderr)
	}
	for text, want := range map[string]string{"": "standard input: is empty", "no JSON": "sluice: "} {
		given(t, text)
		if code, _, stderr := captured(t, "explain", "--admin", r.admin(), "-"); code != exitFailure || !strings.HasPrefix(stderr, "sluice: ") || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d, %q", text, code, stderr)
		}
	}
}

// What is not there does not hide what is.
func TestExplainWhatIsNotThere(t *testing.T) {
	r := launch(t, nil)
	r.request(t, "request-17")
	code, stdout, stderr := captured(t, "explain", "--admin", r.admin(), "request-1", "request-17")
	if code != exitFailure || !strings.Contains(stderr, `sluice: no decision carries the x-request-id "request-1"`) || !strings.Contains(stderr, "near it: request-17") || !strings.Contains(stderr, "another replica may have decided it") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	if !strings.Contains(stdout, "request-17") {
		t.Errorf("the other one is not explained:\n%s", stdout)
	}
	if code, _, stderr := captured(t, "explain", "--admin", r.admin(), "--id", "12345"); code != exitFailure || !strings.Contains(stderr, "decision 12345 is not there: the newest is 1") {
		t.Errorf("exit %d, %q", code, stderr)
	}
	if code, _, stderr := captured(t, "explain", "--admin", r.admin(), "12345"); code != exitFailure || !strings.Contains(stderr, "--id 12345 is the decision of that number") {
		t.Errorf("exit %d, %q", code, stderr)
	}
}

// Who reaches nobody, or somebody else, is told what to try.
func TestAdminPortIsNotReached(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nobody := free.Addr().String()
	_ = free.Close()
	plain := launch(t, nil)
	secure := launch(t, func(c *config.Config) { c.Server.AdminTLS = config.AdminTLS{Mode: config.TLSSelfSigned} })
	secure.request(t, "one")
	for name, tc := range map[string]struct {
		args string
		want string
	}{
		"nobody":         {"--admin " + nobody, "nothing listens there"},
		"TLS":            {"--admin " + secure.admin(), "it may speak TLS there: --tls"},
		"no TLS":         {"--admin " + plain.admin() + " --tls", "it speaks plaintext there"},
		"not trusted":    {"--admin " + secure.admin() + " --tls", "--ca FILE names whom to trust"},
		"the other port": {"--admin " + plain.app.Addr().String(), "it is no admin port"},
		"trusted":        {"--admin " + secure.admin() + " --insecure-skip-verify", ""},
	} {
		code, stdout, stderr := captured(t, append([]string{"explain"}, strings.Fields(tc.args)...)...)
		if (tc.want == "") != (code == 0) || !strings.Contains(stderr, tc.want) || tc.want == "" && !strings.Contains(stdout, "engine-") {
			t.Errorf("%s: exit %d, said %q; want %q", name, code, stderr, tc.want)
		}
	}
}

func TestExplainUsage(t *testing.T) {
	for args, want := range map[string]string{
		"explain --admin 9090":                  `--admin: must be "host:port", got "9090"`,
		"explain --admin host:":                 `--admin: must be "host:port", got "host:"`,
		"explain --cert a.pem":                  "--cert: needs --key",
		"explain --key a.pem":                   "--key: needs --cert",
		"explain one -":                         `"-" cannot stand among request ids`,
		"explain one --id 3":                    "--id: give it or a REQUEST-ID, not both",
		"explain --id 3 --last 2":               "--last: an --id names one decision",
		"explain - --last 2":                    "--last: does nothing with -",
		"explain one --header a:b":              "belong to -",
		"explain - --header a":                  `--header: must be "name:value", got "a"`,
		"explain --output xml":                  "must be one of",
		"explain --ca a --insecure-skip-verify": "--ca: does nothing with",
		"explain --last=-1":                     `--last: must be a number of at least 1, got "-1"`,
		"explain --last -1":                     `--last: must be a number of at least 1, got "-1"`,
		"explain --last 0":                      `--last: must be a number of at least 1, got "0"`,
		"explain --id 0":                        `--id: must be a number of at least 1, got "0"`,
		"explain --id 99999999999999999999":     `--id: must be a number of at least 1, got "99999999999999999999"`,
		"explain --id":                          `--id`,
	} {
		if code, _, stderr := captured(t, strings.Fields(args)...); code != exitUsage || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr, want)
		}
	}
	for args, want := range map[string]string{
		"explain --ca /nowhere/ca.pem":                       "--ca: open /nowhere/ca.pem",
		"explain --cert /nowhere/c.pem --key /nowhere/k.pem": "--cert: open /nowhere/c.pem",
	} {
		if code, _, stderr := captured(t, strings.Fields(args)...); code != exitFailure || !strings.Contains(stderr, want) {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr, want)
		}
	}
}
