package decisionlog

import (
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
)

// The bounds of a Log.
const (
	// maxRequestID is the length to which a request's id is shortened, in bytes.
	maxRequestID = 256
	// overhead is what an entry counts for beside its copy of the decision, in bytes.
	overhead = 256
	// leastEntry is what a decision takes at least, in bytes: it bounds how many can wait.
	leastEntry = 2048
	// requestIDHeader is set by clients and proxies.
	requestIDHeader = "x-request-id"
	// sampleStream keeps the sample apart from what decisions draw from the same seed.
	sampleStream = 0x6465636973696f6e
)

// Format is how rows are written.
type Format string

// The formats.
const (
	// JSONLines is a JSON object a line.
	JSONLines Format = "jsonl"
	// Parquet is Apache Parquet, compressed with Zstandard.
	Parquet Format = "parquet"
)

// Options are what a Log is given.
type Options struct {
	// Folder is where the files are; it is made where it is missing.
	Folder string
	// Format is how rows are written.
	Format Format
	// SampleRatio is the share of requests whose decisions are written, 0 to 1.
	SampleRatio float64
	// MaxFileBytes is the size at which a file is finished, in bytes.
	MaxFileBytes int64
	// RotateInterval is the age at which a file is finished.
	RotateInterval time.Duration
	// MaxFiles is how many files the folder holds at most, the one being written included.
	MaxFiles int
	// MaxPendingBytes bounds what the decisions that are not written yet take, in bytes.
	MaxPendingBytes int64
	// Hashing says which hashes of prompts rows hold; the zero value: none.
	Hashing Hashing
	// Logger gets what an operator should know; nil for nobody.
	Logger *slog.Logger
	// Registerer collects the metrics; nil for nobody.
	Registerer prometheus.Registerer
}

// Log is an extproc.Observer that writes decisions to files. It is safe for concurrent use.
type Log struct {
	options Options
	shards  [shardCount]shard
	entries sync.Pool // of *entry

	threshold atomic.Uint64 // a request is in the sample where its draw is below
	widest    atomic.Uint64 // the largest threshold that there was
	everyone  atomic.Bool   // a threshold of 2^64

	pending, queued, held atomic.Int64 // decisions, decisions, bytes

	awake   atomic.Bool // the writer was woken, and has not looked yet
	wake    chan struct{}
	closed  atomic.Bool
	closing chan struct{}
	done    chan struct{}
	close   sync.Once

	stats *stats
}

// Open makes the folder, puts what an earlier process left there in order and starts the writer. It fails where the
// folder cannot be written to.
func Open(o Options) (*Log, error) {
	l, w, err := prepare(o)
	if err != nil {
		return nil, err
	}
	go w.run()
	return l, nil
}

func prepare(o Options) (*Log, *writer, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	l := &Log{options: o, wake: make(chan struct{}, 1), closing: make(chan struct{}), done: make(chan struct{}), stats: newStats()}
	room := max(shardCount, o.MaxPendingBytes/leastEntry) // decisions
	slots := 1 << bits.Len64(uint64(2*room/shardCount))
	for i := range l.shards {
		l.shards[i].slots = make([]*entry, slots)
	}
	l.SetSampleRatio(o.SampleRatio)
	w, err := newWriter(l)
	if err != nil {
		return nil, nil, err
	}
	if o.Registerer != nil {
		if err := l.register(o.Registerer); err != nil {
			return nil, nil, fmt.Errorf("metrics of the decision log: %w", err)
		}
	}
	return l, w, nil
}

// SetSampleRatio changes the share of requests whose decisions are written, 0 to 1, for requests to come.
func (l *Log) SetSampleRatio(ratio float64) {
	if ratio >= 1 {
		l.everyone.Store(true)
		l.threshold.Store(math.MaxUint64)
		l.widest.Store(math.MaxUint64)
		return
	}
	threshold := uint64(max(0, ratio) * (1 << 63) * 2)
	for widest := l.widest.Load(); threshold > widest && !l.widest.CompareAndSwap(widest, threshold); widest = l.widest.Load() {
	}
	l.threshold.Store(threshold)
	l.everyone.Store(false)
}

// draw is a request's number in the draw for the sample. It follows from the id alone.
func draw(id uint64) uint64 { return scheduling.Mix64(scheduling.SeedOf(id) ^ sampleStream) }

// Picked copies a decision: to be written at its end, or at once where nothing was picked.
func (l *Log) Picked(c *scheduling.Cycle, f *scheduling.Flight, _ time.Duration) {
	id := c.Request.ID
	if !l.everyone.Load() && draw(id) >= l.threshold.Load() || l.closed.Load() {
		return
	}
	held := l.held.Load()
	if held >= l.options.MaxPendingBytes {
		l.stats.dropped[droppedFull].Add(1)
		return
	}
	e := l.keep(c)
	s := &l.shards[id%shardCount]
	switch {
	case f == nil:
	case held < l.options.MaxPendingBytes/4*3 && s.add(e):
		l.pending.Add(1)
		return
	default:
		l.stats.unfinished[unfinishedFull].Add(1)
	}
	l.queued.Add(1)
	s.queue(e)
	l.rouse()
}

// keep copies what a decision's row is made from.
func (l *Log) keep(c *scheduling.Cycle) *entry {
	e, _ := l.entries.Get().(*entry)
	if e == nil {
		e = &entry{}
	}
	e.id, e.cycle, e.at, e.ended = c.Request.ID, c.Scheduler().Keep(c), time.Now(), false
	e.requestID = e.requestID[:0]
	if id, ok := c.Request.Header(requestIDHeader); ok {
		e.requestID = append(e.requestID, id[:min(len(id), maxRequestID)]...)
	}
	l.options.Hashing.hash(&e.prompt, c)
	e.bytes = overhead + int64(e.cycle.Bytes()+cap(e.requestID)+8*cap(e.prompt.hashes))
	l.held.Add(e.bytes)
	return e
}

// free gives an entry's memory back.
func (l *Log) free(e *entry) {
	e.cycle.Scheduler().End(e.cycle)
	l.held.Add(-e.bytes)
	e.cycle, e.next, e.ending = nil, nil, record.Ending{}
	l.entries.Put(e)
}

// Ended hands a decision to the writer, with its outcome.
func (l *Log) Ended(f *scheduling.Flight, o scheduling.Outcome, firstToken, total time.Duration) {
	if draw(f.ID) > l.widest.Load() {
		return // was never in the sample
	}
	ending := record.EndingOf(f, o, firstToken, total)
	l.queued.Add(1)
	if !l.shards[f.ID%shardCount].end(f.ID, &ending) {
		l.queued.Add(-1)
		return
	}
	l.pending.Add(-1)
	l.rouse()
}

// Noted is not of interest here.
func (*Log) Noted(string) {}

// rouse wakes the writer. Only the first of many has to.
func (l *Log) rouse() {
	if l.awake.Load() || l.awake.Swap(true) {
		return
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// Close writes what there is, decisions without an outcome included, and finishes the file. Where it cannot be written
// any more it is given up after a second try.
func (l *Log) Close() {
	l.close.Do(func() {
		l.closed.Store(true)
		close(l.closing)
	})
	<-l.done
}
