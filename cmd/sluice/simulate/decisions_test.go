package simulate

import (
	"compress/gzip"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
	"github.com/sluice-epp/sluice/sim/trace"
)

// chats are conversations: each prompt is the one before it in its session, and more.
func chats() *trace.Trace {
	t := &trace.Trace{Name: "chats", BlockTokens: 64}
	name := uint64(1)
	prompts := map[uint64][]uint64{1: {1, 2, 3}, 2: {1, 2, 4}, 3: {9}}
	for i := range 30 {
		session := uint64(i%3 + 1)
		for range i % 4 {
			name++
			prompts[session] = append(prompts[session], name<<20)
		}
		blocks := append([]uint64{}, prompts[session]...)
		t.Requests = append(t.Requests, trace.Request{
			At: time.Duration(i*i) * 10 * time.Millisecond, Blocks: append(blocks, name<<40+uint64(i)), Session: session,
			PromptTokens: len(blocks)*64 + 1 + i, OutputTokens: 5 + i,
		})
	}
	return t
}

// served has a trace's requests decided about by a real scheduler, at their times, and logged.
func served(t *testing.T, tr *trace.Trace, folder string, o decisionlog.Options, asText bool) {
	t.Helper()
	o.Folder, o.SampleRatio, o.MaxFileBytes, o.RotateInterval, o.MaxFiles, o.MaxPendingBytes = folder, 1, 1<<22, time.Hour, 9, 1<<24
	log, err := decisionlog.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	_, s, err := config.Open("", nil, server.Catalogue())
	if err != nil {
		t.Fatal(err)
	}
	pool := scheduling.NewPool()
	pool.Watch(s.SnapshotChanged)
	pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}, {Address: "10.0.0.2:8000"}})
	began := time.Now()
	for i := range tr.Requests {
		r := &tr.Requests[i]
		time.Sleep(time.Until(began.Add(r.At)))
		q := &scheduling.Request{ID: uint64(i + 1), Model: "m", Choices: 1, Operation: scheduling.OperationCompletions}
		q.Headers = []scheduling.Header{{Name: "x-session-id", Value: fmt.Appendf(nil, "s-%d", r.Session)}}
		tokens := tr.AppendTokens(nil, r)
		if asText {
			for _, token := range tokens {
				q.Body = append(q.Body, byte('a'+token&15), byte('a'+token>>4&15), byte('a'+token>>20&15), byte('a'+token>>24&15))
			}
			q.Prompt, q.PromptBytes = []scheduling.Span{{Start: 0, End: 7}, {Start: 7, End: len(q.Body)}}, len(q.Body)
		} else {
			q.Tokens, q.TokenCount = tokens, len(tokens)
		}
		c := s.Begin(pool.Snapshot(), q, time.Since(began))
		s.Produce(t.Context(), c)
		f, err := s.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		log.Picked(c, f, 0)
		s.End(c)
		outcome := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: r.PromptTokens, CompletionTokens: r.OutputTokens}}
		log.Ended(f, outcome, 0, 0)
		f.Done(outcome, 0)
	}
	log.Close()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
}

// shared is how many whole blocks two prompts begin alike with.
func shared(a, b *trace.Request, blockTokens int) (n int) {
	whole := min(a.PromptTokens, b.PromptTokens) / blockTokens
	for n < whole && a.Blocks[n] == b.Blocks[n] {
		n++
	}
	return n
}

// TestALogIsATrace: what was sent is what the log of it is read back as: the lengths, the times, and what begins alike.
func TestALogIsATrace(t *testing.T) {
	for name, tc := range map[string]struct {
		format decisionlog.Format
		asText bool
	}{
		"tokens": {decisionlog.JSONLines, false}, "text": {decisionlog.JSONLines, true}, "in Parquet": {decisionlog.Parquet, false},
	} {
		t.Run(name, func(t *testing.T) {
			sent, folder := chats(), t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				served(t, sent, folder, decisionlog.Options{Format: tc.format, Hashing: decisionlog.Hashing{Most: 1000, BlockTokens: 64, Seed: blockhash.SeedOf("x")}}, tc.asText)
			})
			got, err := OpenTrace(t.Context(), folder)
			if err != nil {
				t.Fatal(err)
			}
			if len(got.Notes) > 0 || got.BlockTokens != 64 || len(got.Requests) != len(sent.Requests) {
				t.Fatalf("%d requests, blocks of %d, notes %q", len(got.Requests), got.BlockTokens, got.Notes)
			}
			for i := range got.Requests {
				a, b := &sent.Requests[i], &got.Requests[i]
				if a.At != b.At || a.PromptTokens != b.PromptTokens || a.OutputTokens != b.OutputTokens {
					t.Errorf("request %d: at %v, %d and %d tokens; was sent at %v, %d and %d", i, b.At, b.PromptTokens, b.OutputTokens, a.At, a.PromptTokens, a.OutputTokens)
				}
				for j := range i {
					if want, is := shared(a, &sent.Requests[j], 64), shared(b, &got.Requests[j], 64); want != is {
						t.Errorf("requests %d and %d share %d blocks, and shared %d when sent", i, j, is, want)
					}
					if (a.Session == sent.Requests[j].Session) != (b.Session == got.Requests[j].Session) || b.Session == 0 || b.Session == a.Session {
						t.Errorf("requests %d and %d: sessions %x and %x", i, j, b.Session, got.Requests[j].Session)
					}
				}
			}
		})
	}
}

// TestALogTellsAPart: without hashes, with hashes of a part, and with several seeds the trace has notes.
func TestALogTellsAPart(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		served(t, chats(), folder, decisionlog.Options{Format: decisionlog.JSONLines}, false)
	})
	none, err := OpenTrace(t.Context(), folder)
	if err != nil {
		t.Fatal(err)
	}
	if len(none.Notes) != 1 || !strings.Contains(none.Notes[0], "no hashes of prompts") || none.Requests[7].Session != 0 {
		t.Errorf("notes %q", none.Notes)
	}
	for i := range none.Requests {
		for j := range i {
			if none.Requests[i].Blocks[0] == none.Requests[j].Blocks[0] {
				t.Errorf("requests %d and %d begin alike", i, j)
			}
		}
	}
	plan := &Plan{Scenarios: []Scenario{
		{Name: "a", Trace: none, Engines: make([]Engine, 8)}, {Name: "b", Trace: none, Engines: make([]Engine, 8)}, {Trace: none, Engines: make([]Engine, 2)}, {},
	}}
	if notes := plan.Notes(); len(notes) != 2 || !strings.HasPrefix(notes[0], none.Name+": the log holds no hashes") ||
		!strings.HasPrefix(notes[1], "a and 1 other scenario: the log has 2 endpoints, 8 are simulated") {
		t.Errorf("%q", notes)
	}

	both := t.TempDir()
	for _, seed := range []string{"x", "y"} {
		synctest.Test(t, func(t *testing.T) {
			served(t, chats(), both, decisionlog.Options{Format: decisionlog.JSONLines, Hashing: decisionlog.Hashing{Most: 3, BlockTokens: 64, Seed: blockhash.SeedOf(seed)}}, false)
		})
	}
	cut, err := OpenTrace(t.Context(), both)
	if err != nil {
		t.Fatal(err)
	}
	words := strings.Join(cut.Notes, "\n")
	if len(cut.Requests) != 60 || !strings.Contains(words, "the hashes of a part") || !strings.Contains(words, "of 2 seeds") {
		t.Errorf("%d requests, notes %q", len(cut.Requests), cut.Notes)
	}
	if last, before := &cut.Requests[58], &cut.Requests[52]; shared(last, before, 64) > 3 {
		t.Errorf("they share %d blocks, and 3 have hashes", shared(last, before, 64))
	}
}

// TestOpenTraceTellsFormats: a log is told from a trace by how it begins, gzipped too; faults are errors.
func TestOpenTraceTellsFormats(t *testing.T) {
	folder := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		served(t, chats(), folder, decisionlog.Options{Format: decisionlog.JSONLines}, false)
	})
	files, err := filepath.Glob(filepath.Join(folder, "*.jsonl"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	content, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	zipped := filepath.Join(t.TempDir(), "a.jsonl.gz")
	f, err := os.Create(zipped)
	if err != nil {
		t.Fatal(err)
	}
	z := gzip.NewWriter(f)
	_, err = z.Write(append(content, "{\"id\":1,\"time_unix_nano\":5}\nx\n"...))
	if err := errors.Join(err, z.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	got, err := OpenTrace(t.Context(), zipped)
	if err != nil || len(got.Requests) != 30 {
		t.Fatalf("%v", err)
	}
	if words := strings.Join(got.Notes, "\n"); !strings.Contains(words, "1 row could not be read; the first: ") || !strings.Contains(words, "not known: 1 decision") {
		t.Errorf("%q", words)
	}
	mooncake := filepath.Join("..", "..", "..", "sim", "trace", "testdata", "mooncake.jsonl")
	if got, err := OpenTrace(t.Context(), mooncake); err != nil || len(got.Notes) > 0 {
		t.Errorf("a trace: %v", err)
	}
	empty := filepath.Join(t.TempDir(), "decisions.jsonl")
	if err := os.WriteFile(empty, []byte("{\"id\":1,\"time_unix_nano\":5}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	traces := t.TempDir()
	if err := os.WriteFile(filepath.Join(traces, "conversation.jsonl"), []byte(`{"timestamp":0,"input_length":5,"output_length":5,"hash_ids":[1]}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{
		traces: "a folder is read as a decision log; name a trace file", "/nowhere": "no such file", t.TempDir(): "holds no file", empty: "no decision whose prompt's length is known"} {
		if _, err := OpenTrace(t.Context(), path); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
}

// Rounded times are warned of by scenario, unless jitter spreads them.
func TestRoundedTimesAreWarnedOf(t *testing.T) {
	rounded := &trace.Trace{Name: "rounded", BlockTokens: 16}
	for i := range 200 {
		rounded.Requests = append(rounded.Requests, trace.Request{At: time.Duration(i/10) * 3 * time.Second, Blocks: []uint64{1}, PromptTokens: 1, OutputTokens: 1})
	}
	bare, spread := plan().Scenarios[0], plan().Scenarios[0]
	bare.B2B, bare.Trace, bare.Name = nil, rounded, "bare"
	spread.B2B, spread.Trace, spread.Name, spread.Jitter = nil, rounded, "spread", 3*time.Second
	notes := (&Plan{Scenarios: []Scenario{bare, spread}}).Notes()
	const want = "many requests come at the same instant, every 3s: use --jitter 3s"
	if len(notes) != 1 || !strings.HasPrefix(notes[0], "bare: "+want) {
		t.Errorf("%q", notes)
	}
	if text := page(t, []Row{drawnRow(&bare, "a", 1)}); !strings.Contains(text, "<p>Warning: "+want) || !strings.Contains(text, "at the recorded speed;") {
		t.Error("the page does not warn")
	}
	if text := page(t, []Row{drawnRow(&spread, "a", 1)}); strings.Contains(text, "Warning") || !strings.Contains(text, "each request up to 3s later at random") {
		t.Error("the page warns of what is spread, or does not say that it is")
	}
}
