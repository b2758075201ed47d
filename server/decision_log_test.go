package server

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/parquet-go/parquet-go"
	"google.golang.org/protobuf/encoding/protojson"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/server/config"
)

// chatAndAnswer plays a request from its headers to the end of its answer.
func (p *process) chatAndAnswer(t *testing.T, id, word string, cached int) {
	t.Helper()
	s := p.duplex(t, "x-request-id", id, "authorization", "Bearer secret-key")
	sendTo(t, s, requestBody(chatAbout(word), true))
	for picked := false; !picked; { // the pick, before the echo of the body
		m, err := s.Recv()
		if err != nil {
			t.Fatal(err)
		}
		picked = m.GetRequestHeaders() != nil
	}
	answer(t, s, cached)
}

// logged are the content and the names of a folder's files.
func logged(t *testing.T, folder string) (content [][]byte, names []string) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(folder, "decisions-2*")) // the files; configurations are beside them
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		content, names = append(content, b), append(names, filepath.Base(path))
	}
	return content, names
}

// TestDecisionLog: a process writes what it decided, with what came of it, and nothing of what was asked.
func TestDecisionLog(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "a", "b") // made by the process
	p := launch(t, "telemetry: {decisionLog: {path: "+folder+"}}\n", nil)
	_, page := p.page(t, "/config")
	first, _, _ := strings.Cut(page, "\n")
	hash := strings.TrimPrefix(first, "# config_hash: ")
	for i := range 20 {
		p.chatAndAnswer(t, fmt.Sprintf("request-%d", i), "unspeakable", i)
	}
	waitFor(t, func() bool {
		return p.metric(t, "sluice_decision_log_rows_total") == 20 && p.metric(t, "sluice_decision_log_pending") == 0
	})
	if content, names := logged(t, folder); len(names) != 1 || !strings.HasSuffix(names[0], ".jsonl.active") || bytes.Count(content[0], []byte("\n")) == 0 {
		t.Errorf("while the process runs: %q", names)
	}

	write(t, p.app.options.ConfigPath, "telemetry: {decisionLog: {path: "+folder+", sampleRatio: 0, format: parquet}}\n")
	waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == 1 })
	p.chatAndAnswer(t, "unseen", "unspeakable", 0)
	write(t, p.app.options.ConfigPath, "telemetry: {decisionLog: {path: "+folder+", sampleRatio: 1}}\n")
	waitFor(t, func() bool { return p.app.watcher.Reloads.Load() == 2 })

	open := p.duplex(t, "x-request-id", "open")
	sendTo(t, open, requestBody(chatAbout("unspeakable"), true))
	if _, err := open.Recv(); err != nil {
		t.Fatal(err)
	}
	p.stop()
	waitFor(t, func() bool { return !p.app.Ready() })
	answer(t, open, 7) // what ends during the drain is whole
	if err := p.wait(t); err != nil {
		t.Fatal(err)
	}

	content, names := logged(t, folder)
	if len(names) != 1 || !strings.HasSuffix(names[0], ".jsonl") {
		t.Fatalf("files %q", names)
	}
	for _, secret := range []string{"unspeakable", "secret-key", "authorization"} {
		if bytes.Contains(content[0], []byte(secret)) {
			t.Errorf("the file holds %q", secret)
		}
	}
	seen := map[string]bool{}
	for line := range bytes.Lines(content[0]) {
		d := &decisionv1.Decision{}
		if err := protojson.Unmarshal(line, d); err != nil {
			t.Fatalf("%v in %s", err, line)
		}
		seen[d.GetClientRequestId()] = true
		o := d.GetOutcome()
		if o.GetStatus() != 200 || o.GetReason() != "complete" || o.GetPromptTokens() != 700 || o.GetCompletionTokens() != 1 || o.CachedTokens == nil || o.GetTotalMs() <= 0 {
			t.Errorf("%s: the outcome is %v", d.GetClientRequestId(), o)
		}
		if len(d.GetCandidates()) != 2 || len(d.GetPicks()) != 1 || len(d.GetScorers()) == 0 || d.GetRequest().GetModel() != "m" {
			t.Errorf("%s: %v", d.GetClientRequestId(), d)
		}
		if d.GetClientRequestId() != "open" && d.GetConfigHash() != hash {
			t.Errorf("%s: the configuration is %q, want %q", d.GetClientRequestId(), d.GetConfigHash(), hash)
		}
	}
	if len(seen) != 21 || !seen["open"] || !seen["request-0"] || seen["unseen"] {
		t.Errorf("rows of %d requests: %v", len(seen), seen)
	}
}

// TestDecisionLogInParquet: what a process leaves is a whole file.
func TestDecisionLogInParquet(t *testing.T) {
	folder := t.TempDir()
	p := launch(t, "telemetry: {decisionLog: {format: parquet}}\n", func(o *Options) {
		before := o.Override
		o.Override = func(c *config.Config) { before(c); c.Telemetry.DecisionLog.Path = folder }
	})
	for i := range 5 {
		p.chatAndAnswer(t, fmt.Sprintf("request-%d", i), "word", 40*i)
	}
	p.stop()
	if err := p.wait(t); err != nil {
		t.Fatal(err)
	}
	content, names := logged(t, folder)
	if len(names) != 1 || !strings.HasSuffix(names[0], ".parquet") {
		t.Fatalf("files %q", names)
	}
	rows, err := parquet.Read[struct {
		ID      string `parquet:"client_request_id"`
		Outcome *struct {
			Cached *uint64 `parquet:"cached_tokens"`
		} `parquet:"outcome"`
	}](bytes.NewReader(content[0]), int64(len(content[0])))
	if err != nil || len(rows) != 5 {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, r := range rows {
		if r.Outcome == nil || r.Outcome.Cached == nil || fmt.Sprintf("request-%d", *r.Outcome.Cached/40) != r.ID {
			t.Errorf("%+v", r)
		}
	}
}

// TestDecisionLogWithoutAFolder: a place that cannot be written to is told at the start, by its key.
func TestDecisionLogWithoutAFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	write(t, file, "")
	_, err := New(t.Context(), Options{Override: func(c *config.Config) {
		c.Server.Listen, c.Server.AdminListen = "127.0.0.1:0", "127.0.0.1:0"
		c.Telemetry.DecisionLog.Path = file
	}})
	if err == nil || !strings.Contains(err.Error(), "telemetry.decisionLog.path") || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
}
