package e2e

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/lab"
)

// askLines is the block of the README that asks the admin port.
var askLines = regexp.MustCompile("(?s)```\n(ask\\(\\) \\{.*?)```")

// askLine is one line of the block that calls ask.
var askLine = regexp.MustCompile(`^ask (\w+)( .*)?$`)

// What the README says to ask the admin port is asked, word for word, by the shell that its reader has, after a request through a
// real Envoy; each answer is what the line above it promises.
func TestReadmeAsksWhy(t *testing.T) {
	readme, err := os.ReadFile(filepath.Join("..", "..", "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	m := askLines.FindSubmatch(readme)
	if m == nil {
		t.Fatal("README.md has no lines that ask the admin port")
	}
	l := lab.New(t, lab.Plan{Engines: 2})
	e := l.Envoy(t, envoy.Params{})
	request := regexp.MustCompile(`-d '(\{"model":"sim".*\})'\n`).FindSubmatch(readme)
	if request == nil || !bytes.Contains(readme, []byte("-H 'x-request-id: river-1'")) {
		t.Fatal("README.md has no request to explain")
	}
	for i := range 5 { // as many as are tailed; the last one has the id that is asked for
		a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), string(request[1]), "x-request-id", fmt.Sprintf("river-%d", 5-i))
		if a.Status != 200 {
			t.Fatalf("%d %s", a.Status, a.Body)
		}
	}
	l.Sluice.Settle(t)

	admin := l.Sluice.App.AdminAddr().String()
	setup, seen := "set -euo pipefail\n", map[string]bool{}
	for line := range strings.Lines(string(m[1])) {
		line = strings.NewReplacer("$(make -s grpcurl)", grpcurlBinary(t), "127.0.0.1:9090", admin).Replace(line)
		call := askLine.FindStringSubmatch(strings.TrimSpace(line))
		if call == nil {
			setup += line
			continue
		}
		check := answers[call[1]]
		if check == nil {
			t.Errorf("nobody knows what %s should answer", call[1])
			continue
		}
		seen[call[1]] = true
		t.Run(call[1], func(t *testing.T) {
			if text := check(t, answersIn(t, shell(t, setup+line)), l); text != "" {
				t.Error(text)
			}
		})
	}
	for method := range answers {
		if !seen[method] {
			t.Errorf("the README does not ask %s", method)
		}
	}
}

// shell runs a script and returns what it printed.
func shell(t *testing.T, script string) []byte {
	t.Helper()
	cmd := exec.CommandContext(lab.Context(t), "bash", "-c", script)
	var faults bytes.Buffer
	cmd.Stderr = &faults
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s\n%v: %s%s", script, err, out, faults.Bytes())
	}
	return out
}

type message = map[string]any

// answersIn are the JSON messages in a text.
func answersIn(t *testing.T, text []byte) (all []message) {
	t.Helper()
	for d := json.NewDecoder(bytes.NewReader(text)); ; {
		var o message
		if err := d.Decode(&o); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatalf("%v in %s", err, text)
		}
		all = append(all, o)
	}
}

// at follows keys and indices into a value; nil where there is nothing.
func at(v any, path ...any) any {
	for _, step := range path {
		switch step := step.(type) {
		case string:
			o, _ := v.(message)
			v = o[step]
		case int:
			list, _ := v.([]any)
			if step >= len(list) {
				return nil
			}
			v = list[step]
		}
	}
	return v
}

// answers are what each line's answer must show; they return what is wrong with it.
var answers = map[string]func(t *testing.T, o []message, l *lab.Lab) string{
	"Explain": func(_ *testing.T, o []message, _ *lab.Lab) string {
		d := at(o[0], "explanations", 0, "decision")
		pick, _ := at(d, "picks", 0).(float64)
		if at(d, "clientRequestId") != "river-1" || at(d, "outcome", "status") != 200.0 || at(d, "candidates", int(pick), "scores", 0) == nil ||
			at(o[0], "explanations", 0, "reason") == "" || at(o[0], "explanations", 0, "flips", 0, "words") == nil {
			return "no whole explanation"
		}
		return ""
	},
	"DryRun": func(_ *testing.T, o []message, _ *lab.Lab) string {
		d := at(o[0], "explanation", "decision")
		if at(d, "request", "model") != "sim" || at(d, "picks") == nil || at(d, "outcome") != nil {
			return "no decision"
		}
		return ""
	},
	"TailDecisions": func(_ *testing.T, o []message, _ *lab.Lab) string {
		for i, d := range o {
			if at(d, "explanation", "decision", "clientRequestId") != fmt.Sprintf("river-%d", 5-i) || at(d, "explanation", "reason") == nil {
				return "another decision, or none"
			}
		}
		if len(o) != 5 {
			return fmt.Sprintf("%d decisions", len(o))
		}
		return ""
	},
	"ListEndpoints": func(_ *testing.T, o []message, l *lab.Lab) string {
		for i, address := range l.Addresses() {
			e := at(o[0], "endpoints", i)
			if at(e, "address") != address || at(e, "state") != "ENDPOINT_STATE_READY" || at(e, "inFlight") == nil || at(e, "caches", 0, "producer") == nil {
				return "an endpoint is not described"
			}
		}
		return ""
	},
	"LookupPrefix": func(_ *testing.T, o []message, _ *lab.Lab) string {
		if at(o[0], "tokenizedPrompts", 0, "tokens") == nil || at(o[0], "holders", 0, "match", "cachedBlockCount") == nil {
			return "nobody holds what was sent before"
		}
		return ""
	},
	"GetIndexStats": func(_ *testing.T, o []message, _ *lab.Lab) string {
		if at(o[0], "indices", 0, "type") != "approx-prefix-cache-producer" {
			return "no index"
		}
		return ""
	},
	"ListStreams": func(_ *testing.T, o []message, _ *lab.Lab) string {
		if len(o[0]) != 0 {
			return "something is in flight"
		}
		return ""
	},
	"GetConfig": func(_ *testing.T, o []message, _ *lab.Lab) string {
		if yaml, _ := at(o[0], "yaml").(string); !strings.Contains(yaml, "kind: EndpointPickerConfig") || at(o[0], "hash") == nil {
			return "no configuration"
		}
		return ""
	},
	"SetLogLevel": func(_ *testing.T, o []message, _ *lab.Lab) string {
		if at(o[0], "previous") == nil {
			return "no level before"
		}
		return ""
	},
	"Drain": func(t *testing.T, o []message, l *lab.Lab) string {
		if at(o[0], "gracePeriod") == nil {
			return "no grace period"
		}
		lab.Wait(t, "the drain", func() bool {
			select {
			case <-l.Sluice.Done():
				return true
			default:
				return false
			}
		})
		return ""
	},
}
