package e2e

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// grpcurlBinary is the grpcurl that SLUICE_GRPCURL names, or the one that `make grpcurl` builds. Without one the test is
// skipped, or fails where the real-Envoy suite may not be skipped either.
func grpcurlBinary(t *testing.T) string {
	t.Helper()
	path := os.Getenv("SLUICE_GRPCURL")
	if path == "" {
		folder, err := os.Getwd()
		for err == nil && path == "" && folder != filepath.Dir(folder) {
			if _, missing := os.Stat(filepath.Join(folder, "go.mod")); missing == nil {
				path = filepath.Join(folder, ".tools", "bin", "grpcurl")
			}
			folder = filepath.Dir(folder)
		}
	}
	if _, err := os.Stat(path); err != nil {
		if os.Getenv(envoytest.EnvRequired) != "" || os.Getenv("SLUICE_GRPCURL") != "" {
			t.Fatalf("no grpcurl: %v", err)
		}
		t.Skipf("no grpcurl: %v; run `make grpcurl`", err)
	}
	return path
}

// grpcurl runs grpcurl in plaintext and returns what it printed.
func grpcurl(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(lab.Context(t), grpcurlBinary(t), append([]string{"-plaintext"}, args...)...)
	cmd.Stdin = strings.NewReader(stdin)
	var faults bytes.Buffer
	cmd.Stderr = &faults
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("grpcurl %q: %v\n%s%s", args, err, out, faults.Bytes())
	}
	return string(out)
}

// grpcurl, knowing nothing of Sluice, can list and describe it, ask for its health, look at its connections, and play
// the proxy.
func TestGrpcurl(t *testing.T) {
	l := lab.New(t, lab.Plan{Engines: 2})
	address := l.Sluice.Addr()
	const service = "envoy.service.ext_proc.v3.ExternalProcessor"

	t.Run("list", func(t *testing.T) {
		services := strings.Fields(grpcurl(t, "", address, "list"))
		for _, want := range []string{service, "grpc.health.v1.Health", "grpc.channelz.v1.Channelz", "grpc.reflection.v1.ServerReflection"} {
			if !strings.Contains(" "+strings.Join(services, " ")+" ", " "+want+" ") {
				t.Errorf("%s is not among %q", want, services)
			}
		}
	})
	t.Run("describe", func(t *testing.T) {
		for symbol, want := range map[string]string{
			service: "rpc Process ( stream .envoy.service.ext_proc.v3.ProcessingRequest ) returns ( stream .envoy.service.ext_proc.v3.ProcessingResponse )",
			"envoy.service.ext_proc.v3.ProcessingRequest": "bool observability_mode",
		} {
			if page := grpcurl(t, "", address, "describe", symbol); !strings.Contains(page, want) {
				t.Errorf("%s is described without %q:\n%s", symbol, want, page)
			}
		}
	})
	t.Run("health", func(t *testing.T) {
		for _, name := range append(readinessNames, "liveness") {
			page := grpcurl(t, "", "-d", lab.JSON(t, map[string]string{"service": name}), address, "grpc.health.v1.Health/Check")
			if !strings.Contains(page, `"status": "SERVING"`) {
				t.Errorf("health of %q: %s", name, page)
			}
		}
	})
	t.Run("process", func(t *testing.T) { playProxy(t, l, address, service) })
	t.Run("channelz", func(t *testing.T) {
		page := grpcurl(t, "", address, "grpc.channelz.v1.Channelz/GetServers")
		var servers struct {
			Server []struct {
				Data struct {
					CallsStarted string `json:"callsStarted"`
				} `json:"data"`
			} `json:"server"`
		}
		if err := json.Unmarshal([]byte(page), &servers); err != nil || len(servers.Server) == 0 || servers.Server[0].Data.CallsStarted == "" {
			t.Errorf("channelz: %v in %s", err, page)
		}
	})
	l.Sluice.Settle(t)
}

// playProxy sends a request's headers and body, as Envoy does in full duplex mode, and reads the pick and the echo.
func playProxy(t *testing.T, l *lab.Lab, address, service string) {
	body := lab.Chat(t, "by hand", 50, 1, false)
	raw := func(s string) string { return base64.StdEncoding.EncodeToString([]byte(s)) }
	type object = map[string]any
	header := func(name, value string) object { return object{"key": name, "rawValue": raw(value)} }
	stdin := lab.JSON(t, object{
		"protocolConfig": object{"requestBodyMode": "FULL_DUPLEX_STREAMED", "responseBodyMode": "FULL_DUPLEX_STREAMED"},
		"requestHeaders": object{"headers": object{"headers": []object{
			header(":method", "POST"), header(":path", "/v1/chat/completions"), header("content-type", "application/json"),
		}}},
	}) + "\n" + lab.JSON(t, object{"requestBody": object{"body": raw(body), "endOfStream": true}})
	out := grpcurl(t, stdin, "-d", "@", address, service+"/Process")

	type answer struct {
		RequestHeaders *struct {
			Response struct {
				HeaderMutation struct {
					SetHeaders []struct {
						Header struct{ Key, RawValue string }
					}
				}
			}
		}
		RequestBody *struct {
			Response struct {
				BodyMutation struct {
					StreamedResponse struct {
						Body        string
						EndOfStream bool
					}
				}
			}
		}
		DynamicMetadata map[string]map[string]string
	}
	var answers []answer
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var a answer
		if err := d.Decode(&a); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, out)
		}
		answers = append(answers, a)
	}
	if len(answers) != 2 || answers[0].RequestHeaders == nil || answers[1].RequestBody == nil {
		t.Fatalf("want an answer to the headers and one to the body, got:\n%s", out)
	}
	pick := answers[0].DynamicMetadata["envoy.lb"]["x-gateway-destination-endpoint"]
	if pick != l.Addresses()[0] && pick != l.Addresses()[1] {
		t.Errorf("picked %q, want one of %v", pick, l.Addresses())
	}
	set := answers[0].RequestHeaders.Response.HeaderMutation.SetHeaders
	if len(set) != 1 || set[0].Header.Key != "x-gateway-destination-endpoint" || set[0].Header.RawValue != raw(pick) {
		t.Errorf("headers set: %+v, want the pick %q", set, pick)
	}
	if echo := answers[1].RequestBody.Response.BodyMutation.StreamedResponse; echo.Body != raw(body) || !echo.EndOfStream {
		t.Errorf("the body came back as %+v", echo)
	}
}
