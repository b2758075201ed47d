package replay

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/fleet"
	"github.com/sluice-epp/sluice/sim/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// logging is a picker that asks a scheduler as a server does, and logs what it decides: the ledger, the index and whatever is
// learnt change with every request.
type logging struct {
	t         *testing.T
	view      *fleet.View
	scheduler *scheduling.Scheduler
	log       *decisionlog.Log
	flights   map[int]*scheduling.Flight
	first     map[int]time.Duration
	unwatch   func()
	failing   bool // the third engine answers with 500 for a while
	narrow    bool // every seventh request may go to two engines only, and for every eleventh the time runs out
	refused   int
}

func (l *logging) Pick(now time.Duration, r *fleet.Request) int {
	q := &scheduling.Request{
		ID: uint64(r.Number) + 1, Operation: scheduling.OperationCompletions, Model: []string{"llama", "qwen"}[r.Session%2], Choices: 1,
		Tokens: r.Tokens, TokenCount: len(r.Tokens), Stream: true,
	}
	c := l.scheduler.Begin(l.view.Pool().Snapshot(), q, now)
	defer l.scheduler.End(c)
	ctx, cancel := context.WithCancel(l.t.Context())
	defer cancel()
	if l.narrow && r.Number%7 == 0 {
		allowed := c.Scratch()
		allowed.Add(r.Number % 4)
		allowed.Add((r.Number + 1) % 4)
		c.Restrict(allowed)
	}
	if l.narrow && r.Number%11 == 0 {
		cancel()
	}
	l.scheduler.Produce(ctx, c)
	f, err := l.scheduler.Commit(c)
	l.log.Picked(c, f, 0)
	if err != nil {
		l.refused++
		return -1
	}
	l.flights[r.Number] = f
	return f.Endpoint.Ordinal
}

func (l *logging) FirstToken(now time.Duration, r *fleet.Request) {
	l.first[r.Number] = now
	if f := l.flights[r.Number]; !l.fails(r, f) {
		f.FirstToken(now)
	}
}

func (l *logging) fails(r *fleet.Request, f *scheduling.Flight) bool {
	return l.failing && f.Endpoint.Ordinal == 2 && r.Number%200 < 100
}

func (l *logging) Done(now time.Duration, r *fleet.Request) {
	f := l.flights[r.Number]
	delete(l.flights, r.Number)
	o := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: r.PromptTokens, CompletionTokens: r.OutputTokens, CachedTokens: r.Cached}}
	if l.fails(r, f) {
		o = scheduling.Outcome{Status: 500, Usage: scheduling.UnknownUsage}
	}
	l.log.Ended(f, o, l.first[r.Number]-f.PickedAt, now-f.PickedAt)
	f.Done(o, now)
}

func (l *logging) Close() error {
	l.unwatch()
	return l.scheduler.Close()
}

// traffic is a chat workload on four small engines, decided by a configuration, and its log.
func traffic(t *testing.T, path, folder string, format decisionlog.Format, requests int, change func(*logging)) {
	t.Helper()
	w := trace.DefaultB2B()
	w.Requests, w.PerSecond = requests, 8
	tr, err := w.Trace(rand.New(rand.NewPCG(3, 4)))
	if err != nil {
		t.Fatal(err)
	}
	log, err := decisionlog.Open(decisionlog.Options{
		Folder: folder, Format: format, SampleRatio: 1, MaxFileBytes: 4 << 20, RotateInterval: time.Hour, MaxFiles: 99, MaxPendingBytes: 256 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
	params := sim.DefaultParams()
	params.BlockSize, params.NumBlocks, params.MaxModelLen = tr.BlockTokens, 60_000/tr.BlockTokens, 20_000
	_, err = fleet.Run(fleet.Config{
		Trace: tr, Engines: []sim.Params{params, params, params, params}, Pickers: 1, Seed: 1,
		Sight: fleet.Sight{EventDelay: 20 * time.Millisecond, ScrapeInterval: 50 * time.Millisecond},
		NewPicker: func(v *fleet.View) (fleet.Picker, error) {
			types := server.Plugins(server.Environment{
				Now: v.Now, Logger: slog.New(slog.DiscardHandler), Engines: v.Engines(), HashSeed: blockhash.SeedOf("test"), Transport: v,
				Follow: v.Follow,
			})
			file, s, err := config.Open(path, nil, types)
			if err != nil {
				return nil, err
			}
			if err := log.KeepConfig(s.ConfigHash(), file.Effective(types)); err != nil {
				return nil, err
			}
			l := &logging{t: t, view: v, scheduler: s, log: log, flights: map[int]*scheduling.Flight{}, first: map[int]time.Duration{}}
			l.unwatch = v.Pool().Watch(s.SnapshotChanged)
			change(l)
			return l, nil
		},
	})
	log.Close()
	if err != nil {
		t.Fatal(err)
	}
}

// written is a configuration's file; empty text means the built-in one.
func written(t *testing.T, text string) string {
	t.Helper()
	if text == "" {
		return ""
	}
	path := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// configured is a configuration to replay with, from its file.
func configured(t *testing.T, text string) *Configuration {
	t.Helper()
	_, s, err := config.Open(written(t, text), nil, server.Catalogue())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &Configuration{Name: "new.yaml", Hash: s.ConfigHash(), Scheduler: s}
}

// planOf is a plan over logs, with the configurations beside them.
func planOf(t *testing.T, next *Configuration, logs ...string) *Plan {
	t.Helper()
	reader, err := decisionlog.NewReader(logs...)
	if err != nil {
		t.Fatal(err)
	}
	recorded := &Configurations{Paths: reader.Configs(), Build: func(path string) (*scheduling.Scheduler, error) {
		_, s, err := config.Open(path, nil, server.Catalogue())
		return s, err
	}}
	t.Cleanup(func() {
		if err := recorded.Close(); err != nil {
			t.Error(err)
		}
	})
	return &Plan{Decisions: reader.Decisions(t.Context()), Recorded: recorded.Find, New: next, Examples: 3}
}

func replayed(t *testing.T, p *Plan) *Result {
	t.Helper()
	r, err := p.Run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return r
}
