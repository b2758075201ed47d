package server

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

const profile = `
schedulingProfiles:
  - name: default
    plugins: [{pluginRef: %s}]
`

func TestReload(t *testing.T) {
	p := launch(t, fmt.Sprintf(profile, "random-picker"), nil)
	path := p.app.options.ConfigPath
	if _, page := p.page(t, "/config"); !strings.Contains(page, "random-picker") {
		t.Fatalf("the file is not in force:\n%s", page)
	}
	ledgerBefore := p.app.current.Load().scheduler
	write(t, path, fmt.Sprintf(profile, "max-score-picker"))
	waitFor(t, func() bool { _, page := p.page(t, "/config"); return strings.Contains(page, "max-score-picker") })
	if p.app.current.Load().scheduler == ledgerBefore {
		t.Error("the scheduler was not replaced")
	}

	write(t, path, fmt.Sprintf(profile, "max-skore-picker")) // a typo
	waitFor(t, func() bool { return !p.app.watcher.OK() })
	_, page := p.page(t, "/metrics")
	if !strings.Contains(page, "sluice_config_last_reload_successful 0") || !strings.Contains(page, "sluice_config_reload_failures_total 1") {
		t.Error("the refused file does not show in the metrics")
	}
	if _, page := p.page(t, "/config"); !strings.Contains(page, "max-score-picker") {
		t.Error("the configuration before did not stay in force")
	}

	write(t, path, fmt.Sprintf(profile, "max-score-picker")+"endpoints: [\"127.0.0.1:7\"]\n")
	waitFor(t, func() bool { return p.app.Pool().Snapshot().ByAddress("127.0.0.1:7") != nil })
	waitFor(t, func() bool { return p.app.Pool().Snapshot().Len() == 1 })
	waitFor(t, p.app.watcher.OK) // said once the file is in force
}

// A key that is read at the start only stays what it was, and whatever shows the configuration says so.
func TestReloadShowsWhatIsInForce(t *testing.T) {
	const text = "server: {maxOpenStreams: %d, endStream: %s, maxEndpointsInPick: %d}\n"
	var log strings.Builder
	p := launch(t, fmt.Sprintf(text, 2, "afterResponse", 1), func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	_, before := p.page(t, "/config")
	first, _, _ := strings.Cut(before, "\n")
	reloads := func(n uint64) { waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == n }) }

	write(t, p.app.options.ConfigPath, fmt.Sprintf(text, 100, "afterPick", 1))
	reloads(1)
	const waits = "\n# waits for a restart: server.maxOpenStreams: 100\n# waits for a restart: server.endStream: afterPick\n"
	if _, page := p.page(t, "/config"); page != first+waits+strings.TrimPrefix(before, first+"\n") {
		t.Errorf("/config was\n%s\nand is, although nothing in force has changed,\n%s", before, page)
	}
	if _, page := p.page(t, "/metrics"); !strings.Contains(page, "sluice_limit{key=\"server.maxOpenStreams\"} 2\n") {
		t.Error("the limit in force has changed")
	}

	write(t, p.app.options.ConfigPath, fmt.Sprintf(text, 100, "afterPick", 2)) // and what a reload does change
	reloads(2)
	if _, page := p.page(t, "/config"); strings.HasPrefix(page, first) || !strings.Contains(page, waits) ||
		!strings.Contains(page, "  maxOpenStreams: 2\n") || !strings.Contains(page, "  maxEndpointsInPick: 2\n") {
		t.Errorf("/config is\n%s", page)
	}

	write(t, p.app.options.ConfigPath, fmt.Sprintf(text, 2, "afterResponse", 2)) // nothing waits any more
	reloads(3)
	if _, page := p.page(t, "/config"); strings.Contains(page, "waits") {
		t.Errorf("/config is\n%s", page)
	}
	p.stop()
	if err := p.wait(t); err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(log.String(), `keys="server.maxOpenStreams, server.endStream"`); got != 2 {
		t.Errorf("the keys that wait are named %d times, want 2:\n%s", got, log.String())
	}
}

func TestReloadKeepsWhatIsInFlight(t *testing.T) {
	p := launch(t, fmt.Sprintf(profile, "max-score-picker")+"plugins: [{type: inflight-load-producer}]\n", nil)
	s, err := extprocv3.NewExternalProcessorClient(p.conn).Process(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	pick(t, s)
	inFlight := func() int { _, page := p.page(t, "/endpoints"); return strings.Count(page, `"in_flight_requests": 1`) }
	waitFor(t, func() bool { return inFlight() == 1 })
	before := p.app.current.Load()
	write(t, p.app.options.ConfigPath, fmt.Sprintf(profile, "random-picker")+"plugins: [{type: inflight-load-producer}]\n")
	waitFor(t, func() bool { return p.app.current.Load() != before })
	if inFlight() != 1 {
		t.Error("the reload lost what is in flight")
	}
	finish(t, s)
	waitFor(t, func() bool { return inFlight() == 0 })
}
