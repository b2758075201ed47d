package e2e

import (
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// leastRequests picks by requests in flight alone; the marker tells one version of the file from another.
func leastRequests(marker int) string {
	return fmt.Sprintf(`# version %d
plugins:
  - type: active-request-scorer
  - type: max-score-picker
schedulingProfiles:
  - name: version-%d
    plugins:
      - {pluginRef: active-request-scorer, weight: %d}
      - pluginRef: max-score-picker
`, marker, marker, marker)
}

// The configuration changes while requests are on their way: none fails, each version is in force once it is said to
// be, and one that is wrong changes nothing but a metric.
func TestConfigReloadUnderTraffic(t *testing.T) {
	l := lab.New(t, lab.Plan{Config: leastRequests(1)})
	e := l.Envoy(t, envoy.Params{})
	traffic := lab.StartTraffic(t, l.Client, e.URL("/v1/chat/completions"), 4)
	effective := func() string {
		return lab.Get(t, l.Client, "http://"+l.Sluice.App.AdminAddr().String()+"/config").Body
	}
	busy := func() {
		t.Helper()
		before := traffic.Answered("")
		lab.Wait(t, "some traffic", func() bool { return traffic.Answered("") > before+20 })
	}
	busy()
	for version := 2; version <= 5; version++ {
		l.Sluice.Configure(t, leastRequests(version))
		lab.Wait(t, "the new version", func() bool { return strings.Contains(effective(), fmt.Sprintf("version-%d", version)) })
		busy()
	}
	for i, wrong := range []string{"plugins: [", "plugins:\n  - type: max-scor-picker\n", "schedulingProfiles:\n  - name: empty\n    plugins: []\n"} {
		failures := l.Sluice.Metric(t, "sluice_config_reload_failures_total")
		l.Sluice.Configure(t, wrong)
		lab.Wait(t, "the refusal", func() bool { return l.Sluice.Metric(t, "sluice_config_reload_failures_total") > failures })
		if ok := l.Sluice.Metric(t, "sluice_config_last_reload_successful"); ok != 0 || !strings.Contains(effective(), "version-5") {
			t.Errorf("wrong file %d: last reload successful: %v, in force:\n%s", i, ok, effective())
		}
		busy()
	}
	if !strings.Contains(l.Sluice.Log(), "max-score-picker") {
		t.Error("the log does not name the nearest plugin")
	}
	l.Sluice.Configure(t, leastRequests(6))
	lab.Wait(t, "the mended version", func() bool {
		return strings.Contains(effective(), "version-6") && l.Sluice.Metric(t, "sluice_config_last_reload_successful") == 1
	})
	busy()
	traffic.Stop(t)
	l.Sluice.Settle(t)
}

// A charge that was taken under one configuration is released under the next, in the same counters.
func TestChargesSurviveReload(t *testing.T) {
	g := &gated{gate: make(chan struct{})}
	address := lab.Serve(t, envoytest.PodIPs(t, 1)[0]+":0", g)
	l := lab.New(t, lab.Plan{Engines: -1, Endpoints: []string{address}, Config: leastRequests(1)})
	e := l.Envoy(t, envoy.Params{Endpoints: []string{address}})
	answer := background(t, l, e.URL("/v1/chat/completions"), lab.Chat(t, "stays", 1000, 4, true))
	lab.Wait(t, "the charge", func() bool { return l.Sluice.InFlight(t).Requests == 1 })
	reloads := l.Sluice.Metric(t, "sluice_config_reloads_total")
	l.Sluice.Configure(t, leastRequests(2))
	lab.Wait(t, "the reload", func() bool { return l.Sluice.Metric(t, "sluice_config_reloads_total") > reloads })
	if n := l.Sluice.InFlight(t).Requests; n != 1 {
		t.Errorf("%d requests in flight after the reload, want 1", n)
	}
	close(g.gate)
	if a := <-answer; a.Status != http.StatusOK || !strings.HasSuffix(a.Body, "[DONE]\n\n") {
		t.Errorf("status %d: %s", a.Status, a.Body)
	}
	l.Sluice.Settle(t)
	if n := l.Sluice.Total(t, "sluice_ledger_releases_total", `release="complete"`); n != 1 {
		t.Errorf("%v charges released as complete, want 1", n)
	}
}

// The endpoints file changes while requests are on their way: traffic follows it, none fails, bad entries are skipped,
// and a bad file changes nothing.
func TestEndpointsFileUnderTraffic(t *testing.T) {
	engines := lab.StartEngines(t, 3, roomy())
	file := filepath.Join(t.TempDir(), "endpoints.yaml")
	list := func(some ...int) string {
		text := "endpoints:\n"
		for _, i := range some {
			text += "  - address: " + engines[i].Addr().String() + "\n"
		}
		return text
	}
	if err := os.WriteFile(file, []byte(list(0)), 0o600); err != nil {
		t.Fatal(err)
	}
	l := lab.New(t, lab.Plan{Engines: -1, Config: leastRequests(1), Override: func(c *config.Config) { c.EndpointsFile = file }})
	e := l.Envoy(t, envoy.Params{})
	traffic := lab.StartTraffic(t, l.Client, e.URL("/v1/chat/completions"), 4)
	gets := func(i int) {
		t.Helper()
		name := fmt.Sprintf("engine-%d", i)
		before := traffic.Answered(name)
		lab.Wait(t, name+" to get requests", func() bool { return traffic.Answered(name) > before+10 })
	}
	known := func(n float64) {
		t.Helper()
		lab.Wait(t, "the list to be taken over", func() bool {
			return l.Sluice.Total(t, "sluice_endpoints", `state="ready"`) == n
		})
	}
	gets(0)
	lab.WriteFile(t, file, list(0, 1, 2))
	for i := range engines {
		gets(i)
	}
	lab.WriteFile(t, file, list(1)+"  - address: nonsense\n  - where: 127.0.0.1:1\n")
	known(1)
	gets(1)
	settled := [2]int{traffic.Answered("engine-0"), traffic.Answered("engine-2")}
	gets(1)
	// Each client may have had one request under way.
	if now := [2]int{traffic.Answered("engine-0"), traffic.Answered("engine-2")}; now[0]+now[1] > settled[0]+settled[1]+4 {
		t.Errorf("the engines that left answered %v, then %v", settled, now)
	}
	if n := l.Sluice.Metric(t, "sluice_discovery_bad_entries"); n != 2 {
		t.Errorf("%v bad entries, want 2", n)
	}
	errors := l.Sluice.Metric(t, "sluice_discovery_file_errors_total")
	lab.WriteFile(t, file, "endpoints: {")
	lab.Wait(t, "the refusal", func() bool { return l.Sluice.Metric(t, "sluice_discovery_file_errors_total") > errors })
	gets(1)
	lab.WriteFile(t, file, list(2))
	gets(2)
	traffic.Stop(t)
	l.Sluice.Settle(t)
}
