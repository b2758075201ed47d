package server

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/server/config"
)

const byLoad = `plugins: [{type: inflight-load-producer}, {type: approx-prefix-cache-producer}]
schedulingProfiles: [{plugins: [{pluginRef: token-load-scorer}, {pluginRef: max-score-picker}]}]
`

const byCache = `plugins: [{type: approx-prefix-cache-producer}, {type: inflight-load-producer}]
schedulingProfiles: [{plugins: [{pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]}]
`

const byChance = `plugins: [{type: inflight-load-producer}, {type: random-picker}]
schedulingProfiles: [{plugins: [{pluginRef: random-picker}]}]
`

// chats plays so many requests, each after the other, of three conversations; the first of each goes on.
func (p *process) chats(t *testing.T, name string, n int) {
	t.Helper()
	for i := range n {
		p.chatAndAnswer(t, fmt.Sprintf("%s-%d", name, i), []string{"river", "lake", "sea"}[i%3], 0)
	}
}

// compared is how many decisions were compared with the shadow's, and how many of these agreed.
func (p *process) compared(t *testing.T) (all, agreed float64) {
	t.Helper()
	for _, result := range []string{"agreed", "gate", "filter", "scorer", "draw", "picker", "endpoint"} {
		n := p.metric(t, `sluice_shadow_decisions_total{result="`+result+`"}`)
		if all += n; result == "agreed" {
			agreed = n
		}
	}
	return all, agreed
}

// TestShadow: a second configuration decides beside the one that picks; both files are followed.
func TestShadow(t *testing.T) {
	second := filepath.Join(t.TempDir(), "b.yaml")
	write(t, second, byLoad)
	beside := "shadow: {config: " + second + "}\n"
	p := launch(t, beside+byLoad, nil)
	p.chats(t, "same", 30)
	waitFor(t, func() bool { all, agreed := p.compared(t); return all == 30 && agreed == 30 })
	if ratio := p.metric(t, "sluice_shadow_agreement_ratio"); ratio != 1 {
		t.Errorf("the same configuration agrees to %v", ratio)
	}

	write(t, second, byChance) // the second changes
	waitFor(t, func() bool { return p.metric(t, "sluice_shadow_config_reloads_total") == 1 })
	p.chats(t, "other", 30)
	waitFor(t, func() bool { all, agreed := p.compared(t); return all == 60 && agreed < 60 && agreed >= 30 })

	write(t, second, "plugin: []\n") // a fault keeps the one before
	waitFor(t, func() bool {
		return p.metric(t, "sluice_shadow_config_reload_failures_total") >= 1 && p.metric(t, "sluice_shadow_config_last_reload_successful") == 0
	})
	p.chats(t, "faulty", 6)
	waitFor(t, func() bool { all, _ := p.compared(t); return all == 66 })

	write(t, second, byLoad)
	waitFor(t, func() bool { return p.metric(t, "sluice_shadow_config_last_reload_successful") == 1 })
	write(t, p.app.options.ConfigPath, beside+byCache) // the first changes
	waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == 1 })
	p.chats(t, "first", 12)
	waitFor(t, func() bool { all, _ := p.compared(t); return all == 78 })

	third := filepath.Join(t.TempDir(), "d.yaml") // another file beside it
	write(t, third, byCache)
	write(t, p.app.options.ConfigPath, "shadow: {config: "+third+"}\n"+byCache)
	waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == 2 })
	_, before := p.compared(t)
	p.chats(t, "third", 12)
	waitFor(t, func() bool { all, agreed := p.compared(t); return all == 90 && agreed == before+12 })
	failures := p.metric(t, "sluice_shadow_config_reload_failures_total")
	write(t, third, "plugin: []\n") // which is followed now
	waitFor(t, func() bool { return p.metric(t, "sluice_shadow_config_reload_failures_total") > failures })

	write(t, p.app.options.ConfigPath, byCache) // nothing beside it
	waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == 3 })
	p.chats(t, "alone", 6)
	if _, page := p.page(t, "/metrics"); strings.Contains(page, "sluice_shadow_") {
		t.Errorf("metrics of a shadow that is not there:\n%s", page)
	}

	lacking := filepath.Join(t.TempDir(), "c.yaml")
	write(t, lacking, strings.Replace(byLoad, "token-load-scorer", "queue-scorer", 1))
	write(t, p.app.options.ConfigPath, "shadow: {config: "+lacking+"}\n"+byCache) // which does not go with it
	waitFor(t, func() bool { return p.app.watcher.Failures.Load() == 1 })
	p.chats(t, "kept", 3)
	if p.app.config().Shadow.Config != "" {
		t.Errorf("the shadow is %q", p.app.config().Shadow.Config)
	}
}

// TestShadowThatCannotBe is an error at the start and of a check, by its key, which says what is missing.
func TestShadowThatCannotBe(t *testing.T) {
	folder := t.TempDir()
	path := func(name, text string) string {
		path := filepath.Join(folder, name)
		write(t, path, text)
		return path
	}
	lacking := path("lacking.yaml", strings.Replace(byLoad, "token-load-scorer", "queue-scorer", 1))
	broken := path("broken.yaml", "plugin: []\n")
	for _, tc := range []struct{ second, want string }{
		{lacking, "nothing produces it here; declare "}, {broken, "plugin"}, {filepath.Join(folder, "nowhere.yaml"), "no such file"},
	} {
		main := path("main.yaml", "shadow: {config: "+tc.second+"}\n"+byLoad)
		_, err := New(t.Context(), Options{ConfigPath: main, Override: func(c *config.Config) { c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0" }})
		if err == nil || !strings.Contains(err.Error(), "shadow.config") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v", tc.second, err)
		}
		report, err := config.Check(main, os.LookupEnv, Catalogue())
		if strings.Contains(tc.second, "nowhere") { // it may be where the server runs
			if err != nil || !strings.Contains(report, "shadow.config: cannot be read here") {
				t.Errorf("%v: %s", err, report)
			}
		} else if err == nil || !strings.Contains(err.Error(), "shadow.config") || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("check of %s: %v", tc.second, err)
		}
	}
	differs := path("differs.yaml", strings.Replace(byCache, "{type: approx-prefix-cache-producer}", "{type: approx-prefix-cache-producer, parameters: {blockSizeTokens: 32}}", 1))
	main := path("main.yaml", "shadow: {config: "+differs+"}\n"+byCache)
	if report, err := config.Check(main, os.LookupEnv, Catalogue()); err != nil || !strings.Contains(report, "has other parameters for approx-prefix-cache-producer") {
		t.Errorf("%v: %s", err, report)
	}
	// A producer that only the second has is not one with other parameters: what stands in for it is said.
	_, profiles, _ := strings.Cut(byCache, "schedulingProfiles")
	implies := path("implies.yaml", "schedulingProfiles"+profiles)
	write(t, main, "shadow: {config: "+implies+"}\n"+strings.Replace(byCache, "type: approx-prefix-cache-producer", "type: approx-prefix-cache-producer, name: mine", 1))
	report, err := config.Check(main, os.LookupEnv, Catalogue())
	if err != nil || !strings.Contains(report, "PrefixCacheMatchInfo of approx-prefix-cache-producer is that of mine") || strings.Contains(report, "has other parameters") {
		t.Errorf("%v: %s", err, report)
	}
	// What is missing is one error, whatever number of columns it is.
	write(t, main, "shadow: {config: "+path("two.yaml", "schedulingProfiles: [{plugins: [{pluginRef: queue-scorer}, {pluginRef: prefix-cache-scorer}, {pluginRef: max-score-picker}]}]\n")+"}\n"+strings.Replace(byChance, "{type: inflight-load-producer}, ", "", 1))
	if _, err := config.Check(main, os.LookupEnv, Catalogue()); err == nil || strings.Contains(err.Error(), "\n") || strings.Count(err.Error(), "nothing produces it here") != 2 {
		t.Errorf("%v", err)
	}
}
