package config

import (
	"errors"
	"strings"
	"testing"
)

// A secret put under the wrong key does not show in what is said of it, whatever the key and the secret.
func TestErrorsShowReferencesNotValues(t *testing.T) {
	places := map[string]string{
		"apiVersion":     `apiVersion: "${SECRET}"`,
		"kind":           `kind: "${SECRET}"`,
		"listen":         `server: {listen: "${SECRET}"}`,
		"listen, part":   `server: {listen: "x${SECRET}y"}`,
		"adminListen":    `server: {adminListen: "${SECRET}"}`,
		"healthListen":   `server: {healthListen: "${SECRET}"}`,
		"TLS mode":       `server: {tls: {mode: "${SECRET}"}}`,
		"number":         `server: {maxEndpointsInPick: "${SECRET}"}`,
		"size":           `server: {maxRequestBodyBytes: "${SECRET}"}`,
		"duration":       `server: {pickTimeout: "${SECRET}"}`,
		"truth":          `server: {decisionHeader: "${SECRET}"}`,
		"logLevel":       `telemetry: {logLevel: "${SECRET}"}`,
		"modelLabels":    `telemetry: {modelLabels: ["${SECRET}", "${SECRET}"]}`,
		"endpoint":       `endpoints: ["${SECRET}"]`,
		"endpoint twice": `endpoints: ["10.0.0.1:1,uid=${SECRET}", "10.0.0.1:1,uid=${SECRET}"]`,
		"endpoint key":   `endpoints: ["10.0.0.1:8000,${SECRET}=1"]`,
		"endpoint value": `endpoints: ["10.0.0.1:8000,engine=${SECRET}"]`,
		"endpoint port":  `endpoints: ["10.0.0.1:${SECRET}"]`,
		"plugin type":    `plugins: [{type: "${SECRET}"}]`,
		"plugin name":    `plugins: [{name: "${SECRET}", type: queue-skorer}, {name: "${SECRET}", type: queue-scorer}]`,
		"unused plugin":  `plugins: [{name: "${SECRET}", type: queue-scorer}]`,
		"reference":      `schedulingProfiles: [{plugins: [{pluginRef: "${SECRET}"}]}]`,
		"weight":         `schedulingProfiles: [{plugins: [{pluginRef: queue-scorer, weight: "${SECRET}"}, {pluginRef: max-score-picker}]}]`,
		"profile name":   `schedulingProfiles: [{name: "${SECRET}", plugins: [{pluginRef: queue-scorer}]}]`,
		"parameter":      `plugins: [{type: prefix-cache-affinity-filter, parameters: {affinityThreshold: "${SECRET}"}}]`,
		"feature gate":   `featureGates: ["flowControl=${SECRET}"]`,
	}
	secrets := map[string]string{
		"word": "hunter2secret", "short": "zq", "number": "-7461", "duration": "7461h", "quote": `hunter2"se\cret`, "spaces": "hunter2 secret",
		"commas": "hunter2,secret7=other5", "long": strings.Repeat("hunter2secret-", 30), "address": "hunter2.internal:99999",
	}
	// What must not show of each: the parts that nobody would write otherwise.
	marks := []string{"hunter2", "secret7", "other5", "7461", "zq", "99999", "se\\cret"}
	for where, text := range places {
		for what, secret := range secrets {
			lookup := func(name string) (string, bool) { return secret, name == "SECRET" }
			_, s, err := open("f.yaml", []byte(text+"\n"), lookup, testTypes())
			if err == nil {
				if err := s.Close(); err != nil {
					t.Error(err)
				}
				continue // a good value there
			}
			for _, mark := range marks {
				if strings.Contains(err.Error(), mark) {
					t.Errorf("%s, %s: shows %q:\n%v", where, what, mark, err)
				}
			}
		}
	}
}

func TestErrorsNameTheReference(t *testing.T) {
	lookup := func(name string) (string, bool) { return "hunter2secret", name == "SECRET" }
	for text, want := range map[string]string{
		`kind: "${SECRET}"`:                    `f.yaml:1:7: kind: must be EndpointPickerConfig or absent, got "${SECRET}"`,
		`server: {tls: {mode: "a-${SECRET}"}}`: `f.yaml:1:22: server.tls.mode: must be one of auto, plaintext, selfSigned, files, got "a-${SECRET}"`,
	} {
		_, _, err := open("f.yaml", []byte(text+"\n"), lookup, testTypes())
		if err == nil || err.Error() != want {
			t.Errorf("%s:\n%v, want\n%s", text, err, want)
		}
	}
}

func TestRedact(t *testing.T) {
	f, err := Parse("f.yaml", []byte(`server: {listen: "${HOST}:9002", adminListen: "127.0.0.1:${PORT}"}`), func(name string) (string, bool) {
		return map[string]string{"HOST": "hunter2", "PORT": "1"}[name], true
	})
	if err != nil {
		t.Fatal(err)
	}
	got := f.Redact(errors.New("server.listen: lookup hunter2: no such host, 100 times, 1 left"))
	if want := "server.listen: lookup ${HOST}: no such host, 100 times, ${PORT} left"; got.Error() != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if f.Redact(nil) != nil {
		t.Error("no error became one")
	}
}
