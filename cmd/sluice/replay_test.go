package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// decidedBy is a folder with the log of some decisions of the built-in configuration, about prompts that begin alike.
func decidedBy(t *testing.T) string {
	t.Helper()
	folder := t.TempDir()
	log, err := decisionlog.Open(decisionlog.Options{
		Folder: folder, Format: decisionlog.JSONLines, SampleRatio: 1, MaxFileBytes: 1 << 20, RotateInterval: time.Hour, MaxFiles: 9, MaxPendingBytes: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	types := server.Catalogue()
	file, s, err := config.Open("", nil, types)
	if err != nil {
		t.Fatal(err)
	}
	if err := log.KeepConfig(s.ConfigHash(), file.Effective(types)); err != nil {
		t.Fatal(err)
	}
	pool := scheduling.NewPool()
	pool.Watch(s.SnapshotChanged)
	pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}, {Address: "10.0.0.2:8000"}, {Address: "10.0.0.3:8000"}})
	for i := range 30 {
		tokens := make([]uint32, 2000)
		for j := range tokens {
			tokens[j] = uint32(i%3<<16 + j)
		}
		r := &scheduling.Request{ID: uint64(i + 1), Model: "m", Tokens: tokens, TokenCount: len(tokens), Choices: 1}
		c := s.Begin(pool.Snapshot(), r, 0)
		s.Produce(t.Context(), c)
		f, err := s.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		log.Picked(c, f, 0)
		s.End(c)
		o := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 2000, CompletionTokens: 1}}
		log.Ended(f, o, 0, 0)
		if i%2 == 0 {
			f.Done(o, 0)
		}
	}
	log.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return folder
}

const byLoadAlone = `plugins: [{type: inflight-load-producer}]
schedulingProfiles: [{plugins: [{pluginRef: active-request-scorer}, {pluginRef: max-score-picker}]}]
`

func TestReplay(t *testing.T) {
	folder := decidedBy(t)
	code, stdout, stderr := captured(t, "replay", folder)
	if code != 0 || !strings.Contains(stdout, "30 decisions made again, each by the configuration that made it: 30 the same to the byte") || stderr != "" {
		t.Fatalf("exit %d: %s%s", code, stdout, stderr)
	}
	code, stdout, stderr = captured(t, "replay", folder, "--config", "default")
	if code != 0 || !strings.Contains(stdout, "0 (0.0 %) have another pick; 30 the same to the") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}

	next := filepath.Join(t.TempDir(), "load.yaml")
	page := filepath.Join(t.TempDir(), "flips.html")
	if err := os.WriteFile(next, []byte(byLoadAlone), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr = captured(t, "replay", folder, "--config", next, "--html", page, "--show", "1")
	if code != 0 || !strings.Contains(stdout, "flip 1: decision ") || !strings.Contains(stdout, "what made the difference") || !strings.Contains(stdout, "open-loop") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}
	if content, err := os.ReadFile(page); err != nil || !strings.Contains(string(content), "<svg") {
		t.Errorf("the page: %v", err)
	}
	code, stdout, stderr = captured(t, "replay", folder, "--config", next, "--json", "-")
	var read struct {
		All struct{ Flips, Decisions int }
	}
	if err := json.Unmarshal([]byte(stdout), &read); err != nil || code != 0 || read.All.Decisions != 30 || read.All.Flips == 0 {
		t.Errorf("exit %d, %v: %s%s", code, err, stdout, stderr)
	}
}

// TestReplayOfALogThatIsNotTheSame: the exit code tells, and the first difference is shown.
func TestReplayOfALogThatIsNotTheSame(t *testing.T) {
	folder := decidedBy(t)
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	tampered := strings.Replace(string(content), `"picks":[`, `"picks":[9,`, 1)
	if err := os.WriteFile(files[0], []byte(tampered), 0o600); err != nil {
		t.Fatal(err)
	}
	code, stdout, stderr := captured(t, "replay", folder)
	if code != exitFailure || !strings.Contains(stderr, "a decision is not the same: 1 of 30; the first is decision ") || !strings.Contains(stderr, "whose picks[0] was 9 and is ") || !strings.Contains(stdout, "29 the same") {
		t.Errorf("exit %d: %s%s", code, stdout, stderr)
	}

	configs, err := filepath.Glob(filepath.Join(folder, "*.yaml"))
	if err != nil || len(configs) != 1 {
		t.Fatal(configs, err)
	}
	if err := os.Remove(configs[0]); err != nil {
		t.Fatal(err)
	}
	code, _, stderr = captured(t, "replay", folder)
	if code != exitFailure || !strings.Contains(stderr, "no decision could be made again: the configuration ") || !strings.Contains(stderr, "is not known (30)") || !strings.Contains(stderr, "--config") {
		t.Errorf("without the configuration: exit %d: %s", code, stderr)
	}
}

func TestReplayErrors(t *testing.T) {
	folder := decidedBy(t)
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("plugin: []\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"replay", "/nowhere/at/all"}, "/nowhere/at/all: no such file"},
		{[]string{"replay", t.TempDir()}, "holds no file of a decision log"},
		{[]string{"replay", folder, "--config", bad}, "plugin"},
		{[]string{"replay", folder, "--show=-1"}, "--show: must be from 0 to 1000, got -1"},
		{[]string{"replay", folder, "--html", "/nowhere/x.html"}, "--html: open /nowhere/"},
	} {
		if code, _, stderr := captured(t, tc.args...); code == 0 || !strings.Contains(stderr, tc.want) {
			t.Errorf("%v: exit %d, %s", tc.args, code, stderr)
		}
	}
}
