package decisionlog

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	"go.uber.org/goleak"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bench makes decisions over some endpoints.
type bench struct {
	table     *schedtest.Table
	scheduler *scheduling.Scheduler
	pool      *scheduling.Pool
	next      atomic.Uint64 // id
}

func newBench(t testing.TB, endpoints int) *bench {
	t.Helper()
	table := tableOf(endpoints)
	s := table.Build(t, append(scorer.Types(), picker.Types()...), nil, "prefix-cache-scorer", "token-load-scorer", "max-score-picker")
	s.SetConfigHash("hash")
	return &bench{table: table, scheduler: s, pool: table.Pool()}
}

// options are those of a log of everything, in a folder of its own.
func (*bench) options(t testing.TB, change func(*Options)) Options {
	t.Helper()
	o := Options{
		Folder: t.TempDir(), Format: JSONLines, SampleRatio: 1, MaxFileBytes: 64 << 20, RotateInterval: time.Hour, MaxFiles: 10, MaxPendingBytes: 64 << 20,
	}
	if change != nil {
		change(&o)
	}
	return o
}

// decision is a decision that was told, and how it ends.
type decision struct {
	flight *scheduling.Flight
	record *decisionv1.Decision // without a time
}

// decide makes a decision and tells the log of it.
func (b *bench) decide(t testing.TB, l *Log, requestID string) decision {
	t.Helper()
	r := &scheduling.Request{ID: b.next.Add(1), Model: "m", Choices: 1}
	if requestID != "" {
		r.Headers = []scheduling.Header{{Name: requestIDHeader, Value: []byte(requestID)}}
	}
	c := b.scheduler.Begin(b.pool.Snapshot(), r, 0)
	defer b.scheduler.End(c)
	b.scheduler.Produce(t.Context(), c)
	f, err := b.scheduler.Commit(c)
	if err != nil {
		t.Fatal(err)
	}
	l.Picked(c, f, 0)
	return decision{f, record.Of(b.scheduler, c, record.Meta{ClientRequestID: requestID, ConfigHash: "hash"})}
}

// end ends a request, and is its row.
func (d decision) end(l *Log) *decisionv1.Decision {
	o := scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 160, CachedTokens: 80, CompletionTokens: 3}}
	ending := record.EndingOf(d.flight, o, time.Millisecond, time.Second)
	l.Ended(d.flight, o, time.Millisecond, time.Second)
	d.flight.Done(o, time.Second)
	d.record.Outcome = ending.Record()
	return d.record
}

// open opens a log that the test's end closes.
func open(t *testing.T, o Options) *Log {
	t.Helper()
	l, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// names are the files in a folder.
func names(t testing.TB, folder string) (all []string) {
	t.Helper()
	entries, err := os.ReadDir(folder)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		all = append(all, e.Name())
	}
	return all
}

// found are the rows of a folder's finished files, by id, without their times.
func found(t testing.TB, folder string) (all []*decisionv1.Decision) {
	t.Helper()
	for _, name := range names(t, folder) {
		if !ours.MatchString(name) {
			continue
		}
		content, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		switch filepath.Ext(name) {
		case ".jsonl":
			for line := range bytes.Lines(content) {
				all = append(all, fromLine(t, line))
			}
		case ".parquet":
			all = append(all, fromParquet(t, content)...)
		}
	}
	for _, d := range all {
		if d.GetTimeUnixNano() <= 0 {
			t.Errorf("decision %d has no time", d.GetId())
		}
		d.TimeUnixNano = 0
	}
	slices.SortFunc(all, func(a, b *decisionv1.Decision) int { return int(a.GetId()) - int(b.GetId()) })
	return all
}

func same(t *testing.T, want, got []*decisionv1.Decision) {
	t.Helper()
	if slices.EqualFunc(want, got, func(a, b *decisionv1.Decision) bool { return proto.Equal(a, b) }) {
		return // without the time that a comparison in words takes
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("rows (-want +got):\n%s", diff)
	}
}

// TestRowsAreWhole: a row is written at its request's end, with its outcome, the same in both formats.
func TestRowsAreWhole(t *testing.T) {
	for _, format := range []Format{JSONLines, Parquet} {
		t.Run(string(format), func(t *testing.T) {
			b := newBench(t, 5)
			o := b.options(t, func(o *Options) { o.Format = format })
			l := open(t, o)
			var open []decision
			for i := range 20 {
				open = append(open, b.decide(t, l, fmt.Sprintf("request-%d", i)))
			}
			var want []*decisionv1.Decision
			for i, d := range open {
				if i%4 != 3 {
					want = append(want, d.end(l))
				} else {
					want = append(want, d.record) // the process ends first
				}
			}
			if n := l.pending.Load(); n != 5 {
				t.Errorf("%d pending, want 5", n)
			}
			l.Close()
			same(t, want, found(t, o.Folder))
			if s := l.stats; s.rows.Load() != 20 || s.unfinished[unfinishedShutdown].Load() != 5 || s.finished.Load() != 1 || l.pending.Load()+l.queued.Load()+l.held.Load() != 0 {
				t.Errorf("%d rows, %d unfinished, %d files; left: %d, %d, %d bytes", s.rows.Load(), s.unfinished[unfinishedShutdown].Load(), s.finished.Load(),
					l.pending.Load(), l.queued.Load(), l.held.Load())
			}
			for i, d := range open {
				if i%4 == 3 {
					d.end(l) // too late: no harm
				}
			}
		})
	}
}

// TestWithoutAPick: nothing ends that was not picked, so it is written at once.
func TestWithoutAPick(t *testing.T) {
	b := newBench(t, 3)
	o := b.options(t, nil)
	l := open(t, o)
	c := b.scheduler.Begin(b.pool.Snapshot(), &scheduling.Request{ID: 9, Model: "m"}, 0)
	c.Candidates.Clear()
	b.scheduler.Preview(c)
	l.Picked(c, nil, 0)
	b.scheduler.End(c)
	l.Close()
	got := found(t, o.Folder)
	if len(got) != 1 || got[0].GetId() != 9 || got[0].GetOutcome() != nil || len(got[0].GetPicks()) != 0 || len(got[0].GetCandidates()) != 3 {
		t.Errorf("%v", got)
	}
}

// TestSample: the share is what was asked for, follows from the ids, and may change while requests run.
func TestSample(t *testing.T) {
	b := newBench(t, 2)
	o := b.options(t, func(o *Options) { o.SampleRatio = 0.25 })
	l := open(t, o)
	var before []decision
	for range 2000 {
		before = append(before, b.decide(t, l, ""))
	}
	l.SetSampleRatio(0)
	for range 100 {
		b.decide(t, l, "").end(l)
	}
	for _, d := range before {
		d.end(l)
	}
	l.SetSampleRatio(1)
	for range 10 {
		b.decide(t, l, "").end(l)
	}
	l.Close()
	got := found(t, o.Folder)
	if n := len(got) - 10; n < 400 || n > 600 {
		t.Errorf("%d of 2000, want about 500", n)
	}
	for _, d := range got {
		if d.GetOutcome() == nil {
			t.Errorf("%d has no outcome", d.GetId())
		}
		if id := d.GetId(); id <= 2000 && draw(id) >= 1<<62 || id > 2000 && id <= 2100 {
			t.Errorf("%d is in the sample", id)
		}
	}
}

// TestSampleIsNoChoiceOfDecisions: what a decision draws from its seed is the same in the sample as elsewhere.
func TestSampleIsNoChoiceOfDecisions(t *testing.T) {
	const share = 0.1
	var sampled, explored int
	for id := range uint64(200_000) {
		if float64(draw(id)) >= share*(1<<63)*2 {
			continue
		}
		sampled++
		r := scheduling.NewRand(scheduling.SeedOf(id), scheduling.StreamOf("prefix-cache-affinity-filter"))
		if r.Float64() < share {
			explored++
		}
	}
	if got := float64(explored) / float64(sampled); sampled < 19_000 || sampled > 21_000 || got < 0.09 || got > 0.11 {
		t.Errorf("%d sampled, of which %v drew below %v", sampled, got, share)
	}
}

// TestNothingWaitsInPlaceOfMemory: when three quarters are taken decisions are written without their outcome, and when the
// writer does not come round, they are left out; every one is in one account.
func TestNothingWaitsInPlaceOfMemory(t *testing.T) {
	b := newBench(t, 100)
	o := b.options(t, func(o *Options) { o.MaxPendingBytes = 1 << 20 })
	l, w, err := prepare(o) // the writer does not run
	if err != nil {
		t.Fatal(err)
	}
	const made = 500
	var open []decision
	for range made {
		open = append(open, b.decide(t, l, ""))
	}
	s := l.stats
	pending, unfinished, dropped := l.pending.Load(), s.unfinished[unfinishedFull].Load(), s.dropped[droppedFull].Load()
	if pending < 10 || unfinished < 3 || dropped < 10 || pending+unfinished+dropped != made {
		t.Errorf("of %d: %d pending, %d unfinished, %d dropped", made, pending, unfinished, dropped)
	}
	if held := l.held.Load(); held > o.MaxPendingBytes+o.MaxPendingBytes/10 || held < o.MaxPendingBytes*9/10 {
		t.Errorf("%d bytes are held of %d", held, o.MaxPendingBytes)
	}
	for _, d := range open {
		d.end(l)
	}
	if l.pending.Load() != 0 || l.queued.Load() != pending+unfinished {
		t.Errorf("%d pending, %d queued", l.pending.Load(), l.queued.Load())
	}
	go w.run()
	l.Close()
	got := found(t, o.Folder)
	if int64(len(got)) != made-dropped || l.held.Load() != 0 {
		t.Errorf("%d rows of %d, %d bytes held", len(got), made-dropped, l.held.Load())
	}
	for i, d := range got { // the first ones in
		if whole := d.GetOutcome() != nil; d.GetId() != uint64(i+1) || whole != (int64(i) < pending) {
			t.Errorf("row %d is decision %d, with an outcome: %v", i, d.GetId(), whole)
		}
	}
}

// TestShardIsAMap holds the table of a shard against a map.
func TestShardIsAMap(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := &shard{slots: make([]*entry, 16)}
		model := map[uint64]bool{}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				id := rapid.Uint64Range(0, 40).Draw(t, "id")
				if model[id] {
					return
				}
				if got := s.add(&entry{id: id}); got != (len(model) < 8) {
					t.Fatalf("add with %d: %v", len(model), got)
				} else if got {
					model[id] = true
				}
			},
			"end": func(t *rapid.T) {
				id := rapid.Uint64Range(0, 40).Draw(t, "id")
				if got := s.end(id, &record.Ending{Status: int(id)}); got != model[id] {
					t.Fatalf("end of %d: %v", id, got)
				}
				if e := s.take(); model[id] != (e != nil) || e != nil && (e.id != id || !e.ended || e.ending.Status != int(id) || e.next != nil) {
					t.Fatalf("end of %d: took %v", id, e)
				}
				delete(model, id)
			},
			"": func(t *rapid.T) {
				if s.used != len(model) {
					t.Fatalf("%d used of %d", s.used, len(model))
				}
			},
		})
		if n := s.giveUp(); n != len(model) {
			t.Fatalf("gave %d up of %d", n, len(model))
		}
		for e := s.take(); e != nil; e = e.next {
			delete(model, e.id)
		}
		if len(model) != 0 || s.used != 0 {
			t.Fatalf("%v are lost", model)
		}
	})
}

// TestLogIsSharedBySeveral is for the race detector: requests, changes of the sample, a reader of the metrics and a small
// bound at once. Every decision is in one account.
func TestLogIsSharedBySeveral(t *testing.T) {
	b := newBench(t, 20)
	registry := prometheus.NewRegistry()
	o := b.options(t, func(o *Options) {
		o.MaxPendingBytes, o.MaxFileBytes, o.MaxFiles, o.Registerer = 1<<20, 1<<20, 1000, registry
	})
	l := open(t, o)
	var all sync.WaitGroup
	var made atomic.Int64
	for range 8 {
		all.Go(func() {
			for i := range 200 {
				d := b.decide(t, l, "id")
				made.Add(1)
				if i%50 != 0 {
					d.end(l)
				}
			}
		})
	}
	all.Go(func() {
		for range 20 {
			if _, err := registry.Gather(); err != nil {
				t.Error(err)
			}
		}
	})
	all.Wait()
	l.Close()
	rows := int64(len(found(t, o.Folder)))
	if s := l.stats; rows != s.rows.Load() || rows+s.dropped[droppedFull].Load() != made.Load() || rows < 100 || s.errors.Load() != 0 {
		t.Errorf("%d rows in files, %d counted, %d dropped, of %d; %d errors", rows, s.rows.Load(), s.dropped[droppedFull].Load(), made.Load(), s.errors.Load())
	}
	if l.held.Load() != 0 {
		t.Errorf("%d bytes are held", l.held.Load())
	}
	problems, err := promlint.NewWithMetricFamilies(gathered(t, registry)).Lint()
	if err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}

type badFault struct{}

func (badFault) Error() string { panic("no words") }

// TestPanicOfARecord: a decision that cannot be recorded costs itself only.
func TestPanicOfARecord(t *testing.T) {
	b := newBench(t, 2)
	var said lockedBuffer
	o := b.options(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) })
	l := open(t, o)
	c := b.scheduler.Begin(b.pool.Snapshot(), &scheduling.Request{ID: 7, Model: "m"}, 0)
	b.scheduler.Preview(c)
	c.Faults = append(c.Faults, scheduling.Fault{Producer: "p", Err: badFault{}})
	l.Picked(c, nil, 0)
	b.scheduler.End(c)
	b.next.Store(7)
	want := []*decisionv1.Decision{b.decide(t, l, "").end(l)}
	l.Close()
	same(t, want, found(t, o.Folder))
	if l.stats.dropped[droppedPanic].Load() != 1 || l.held.Load() != 0 || !strings.Contains(said.String(), "no words") {
		t.Errorf("%d dropped, %d held: %s", l.stats.dropped[droppedPanic].Load(), l.held.Load(), said.String())
	}
}

// lockedBuffer is a log that a test reads while it is written.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
