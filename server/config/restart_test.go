package config

import (
	"reflect"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestKeepStarted(t *testing.T) {
	started := defaultConfig()
	started.Telemetry.ModelLabels = []string{"a"}
	f, _ := mustOpen(t, `
server:
  maxOpenStreams: 100
  maxBufferedBytes: 1GiB
  pickTimeout: 10s
  endStream: afterPick
  tls: {mode: plaintext}
  drainDelay: 1s
  drainTimeout: 2s
  maxEndpointsInPick: 3
endpoints: ["10.0.0.1:8000"]
dns: {interval: 7s}
telemetry: {logLevel: debug, modelLabels: [a, "7"], maxModelLabels: 5}
`)
	want := []Waiting{
		{"server.tls.mode", "plaintext"}, {"server.maxOpenStreams", "100"}, {"server.maxBufferedBytes", `"1GiB"`},
		{"server.pickTimeout", "10s"}, {"server.endStream", "afterPick"},
		{"telemetry.modelLabels", `[a, "7"]`}, {"telemetry.maxModelLabels", "5"},
	}
	if diff := cmp.Diff(want, f.KeepStarted(&started)); diff != "" {
		t.Errorf("what waits (-want +got)\n%s", diff)
	}
	inForce := started
	inForce.Server.DrainDelay, inForce.Server.DrainTimeout, inForce.Server.MaxEndpointsInPick = time.Second, 2*time.Second, 3
	inForce.Endpoints, inForce.DNS.Interval, inForce.Telemetry.LogLevel = []string{"10.0.0.1:8000"}, 7*time.Second, "debug"
	if diff := cmp.Diff(inForce, f.Config); diff != "" {
		t.Errorf("what is in force (-want +got)\n%s", diff)
	}
	if again := f.KeepStarted(&started); again != nil {
		t.Errorf("kept already, and %v waits", again)
	}
}

// A misspelt tag would let a reload show what is not in force.
func TestReloadTags(t *testing.T) {
	var walk func(reflect.Value)
	walk = func(v reflect.Value) {
		for _, f := range fieldsOf(v) {
			if tag, ok := f.tag.Lookup("reload"); ok && tag != "restart" && tag != "live" {
				t.Errorf("%s has the tag reload:%q", f.name, tag)
			}
			if f.value.Kind() == reflect.Struct {
				walk(f.value)
			}
		}
	}
	c := defaultConfig()
	walk(reflect.ValueOf(&c).Elem())
}
