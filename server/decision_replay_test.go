package server

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// logOf is what is in a folder's log.
func logOf(t *testing.T, folder string) (all []*decisionv1.Decision, configs map[string]string) {
	t.Helper()
	reader, err := decisionlog.NewReader(folder)
	if err != nil {
		t.Fatal(err)
	}
	for d, err := range reader.Decisions(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	return all, reader.Configs()
}

// TestServedDecisionsAreReplayed: what a process decided over ext_proc, under two configurations, comes out the same to the byte
// from what it left in the log's folder.
func TestServedDecisionsAreReplayed(t *testing.T) {
	folder := t.TempDir()
	text := "server: {maxEndpointsInPick: 2}\ntelemetry: {decisionLog: {path: " + folder + ", blockHashes: 100, hashBlockTokens: 16, hashSeed: of-the-test}}\n"
	p := launch(t, text, nil)
	for i := range 30 {
		p.chatAndAnswer(t, fmt.Sprintf("request-%d", i), []string{"river", "lake", "sea"}[i%3], 16*i)
	}
	weighed := text + `plugins:
  - {type: prefix-cache-affinity-filter, parameters: {explorationProbability: 0.3}}
schedulingProfiles: [{plugins: [{pluginRef: prefix-cache-affinity-filter}, {pluginRef: prefix-cache-scorer}, {pluginRef: token-load-scorer, weight: 2}, {pluginRef: random-picker}]}]
`
	write(t, p.app.options.ConfigPath, weighed)
	waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == 1 })
	for i := range 30 {
		p.chatAndAnswer(t, fmt.Sprintf("later-%d", i), []string{"river", "lake", "sea"}[i%3], 16*i)
	}
	p.stop()
	if err := p.wait(t); err != nil {
		t.Fatal(err)
	}

	all, configs := logOf(t, folder)
	if len(all) != 60 || len(configs) != 2 {
		t.Fatalf("%d rows, configurations %v", len(all), configs)
	}
	schedulers := map[string]*scheduling.Scheduler{}
	for hash, path := range configs {
		_, s, err := config.Open(path, nil, Catalogue())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		schedulers[hash] = s
	}
	begins := map[string][]uint64{}
	for _, d := range all {
		again, err := record.Replay(schedulers[d.GetConfigHash()], d, d.GetConfigHash())
		if err != nil {
			t.Fatal(err)
		}
		again.Outcome = d.GetOutcome()
		a, errA := record.Marshal(d)
		b, errB := record.Marshal(again)
		if errA != nil || errB != nil || !slices.Equal(a, b) {
			t.Errorf("decision %d: replayed as\n%v\nrecorded\n%v", d.GetId(), again, d)
		}
		checkHashes(t, d, begins)
	}
	if len(begins) != 3 || slices.Equal(begins["river"], begins["lake"]) {
		t.Errorf("%d prompts: %v", len(begins), begins)
	}
}

// checkHashes checks a row's hashes: those of one prompt are always the same.
func checkHashes(t *testing.T, d *decisionv1.Decision, begins map[string][]uint64) {
	t.Helper()
	r := d.GetRequest()
	if len(r.GetBlockHashes()) == 0 || len(r.GetBlockHashes()) > 100 || r.GetHashBlockTokens() != 16 || !r.GetHashesText() || r.GetHashSeed() == "" || strings.Contains(r.GetHashSeed(), "test") || r.GetSession() != 0 {
		t.Errorf("decision %d: %v", d.GetId(), r)
	}
	var n int
	if _, err := fmt.Sscanf(d.GetClientRequestId()[strings.Index(d.GetClientRequestId(), "-")+1:], "%d", &n); err != nil {
		t.Fatal(err)
	}
	word := []string{"river", "lake", "sea"}[n%3]
	if before := begins[word]; before != nil && !slices.Equal(before, r.GetBlockHashes()) {
		t.Errorf("decision %d: other hashes than before for the same prompt", d.GetId())
	}
	begins[word] = r.GetBlockHashes()
}
