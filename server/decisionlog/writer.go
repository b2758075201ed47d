package decisionlog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress/zstd"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling/record"
)

const (
	// flushBytes is how much is put together before it is written, in bytes.
	flushBytes = 256 << 10
	// The pauses between tries, doubled from the first to the longest.
	firstPause, longestPause = time.Second, 30 * time.Second
	// sayEvery is how often a lasting fault is logged.
	sayEvery = time.Minute
	// triesPerFile is how often a file is tried that fails for another reason than a full disk.
	triesPerFile = 3
	// lookEvery is how often it is made sure that the file is still there.
	lookEvery = time.Second
)

// writer makes rows of decisions and writes them, alone.
type writer struct {
	log    *Log
	folder *folder
	shape  *message
	schema *parquet.Schema
	codec  zstd.Codec // keeps its encoder for the next file
	file   *file      // nil between files
	create func(time.Time) (output, string, error)

	pause   time.Duration // 0: nothing is wrong
	said    time.Time
	looked  time.Time // for the file
	lastTry bool      // while closing
}

func newWriter(l *Log) (*writer, error) {
	shape, err := decisionShape()
	if err != nil {
		return nil, err
	}
	d, err := openFolder(l.options.Folder, l.stats)
	if err != nil {
		return nil, fmt.Errorf("the decision log's folder %q: %w", l.options.Folder, err)
	}
	w := &writer{log: l, folder: d, shape: shape, schema: parquetSchema(shape)}
	w.create = func(at time.Time) (output, string, error) {
		f, err := d.create(l.options.Format, at)
		if err != nil {
			return nil, "", err
		}
		name := f.Name()
		return f, name, nil
	}
	w.tidy()
	return w, nil
}

// tidy puts in order what is in the folder at the start.
func (w *writer) tidy() {
	logger := w.log.options.Logger
	settled, broken, err := w.folder.recover()
	if len(settled) > 0 {
		logger.Info("files of the decision log that an earlier process left are kept as far as their lines are whole", "files", settled)
	}
	if len(broken) > 0 {
		logger.Warn("files of the decision log that an earlier process left hold nothing that can be read", "files", broken)
	}
	if err = errors.Join(err, w.folder.prune(w.log.options.MaxFiles)); err != nil {
		w.log.stats.errors.Add(1)
		logger.Warn("the decision log's folder could not be put in order", "error", err)
	}
}

// run writes until Close.
func (w *writer) run() {
	defer close(w.log.done)
	for over := false; !over; {
		var age <-chan time.Time
		var timer *time.Timer
		if w.file != nil {
			timer = time.NewTimer(time.Until(w.file.opened.Add(w.log.options.RotateInterval)))
			age = timer.C
		}
		select {
		case <-w.log.wake:
		case <-age:
		case <-w.log.closing:
			over = true
			w.giveUpPending()
		}
		if timer != nil {
			timer.Stop()
		}
		w.log.awake.Store(false) // before the queues are looked at: what comes after wakes again
		w.writeQueued()
		if w.file != nil && (over || time.Since(w.file.opened) >= w.log.options.RotateInterval) {
			w.finish()
		}
	}
}

// giveUpPending has what waits for its end written without.
func (w *writer) giveUpPending() {
	for i := range w.log.shards {
		n := int64(w.log.shards[i].giveUp())
		w.log.pending.Add(-n)
		w.log.queued.Add(n)
		w.log.stats.unfinished[unfinishedShutdown].Add(n)
	}
}

// writeQueued writes what has ended.
func (w *writer) writeQueued() {
	if w.file != nil && w.removed() {
		w.forget(fmt.Errorf("%s: %w: it was removed or replaced while it was written", w.file.name, fs.ErrNotExist))
	}
	for i := range w.log.shards {
		for e := w.log.shards[i].take(); e != nil; {
			next := e.next
			w.write(e)
			w.log.queued.Add(-1)
			e = next
		}
	}
	w.flush()
}

// write writes one decision and frees it.
func (w *writer) write(e *entry) {
	d := w.record(e)
	w.log.free(e)
	if d == nil {
		return
	}
	for w.file != nil || w.open() {
		err := guard(func() error { return w.file.encoder.add(d) })
		if errors.Is(err, errFull) {
			w.finish()
			continue
		}
		if err != nil {
			w.failed(err)
			w.abandon()
			break
		}
		w.file.rows++
		w.log.stats.rows.Add(1)
		if len(w.file.tail.rest) >= flushBytes {
			w.flush()
		}
		return
	}
	w.log.stats.dropped[droppedWrite].Add(1)
}

// record is an entry's row; nil where it could not be made.
func (w *writer) record(e *entry) (d *decisionv1.Decision) {
	err := guard(func() error {
		s := e.cycle.Scheduler()
		d = record.Of(s, e.cycle, record.Meta{ClientRequestID: string(e.requestID), UnixNano: e.at.UnixNano(), ConfigHash: s.ConfigHash()})
		w.log.options.Hashing.add(&e.prompt, d.GetRequest())
		if e.ended {
			d.Outcome = e.ending.Record()
		}
		return nil
	})
	if err != nil {
		w.log.stats.dropped[droppedPanic].Add(1)
		w.log.options.Logger.Error("a decision cannot be logged", "decision", e.id, "error", err)
		return nil
	}
	return d
}

// guard makes an error of a panic: the decision log must not end the process.
func guard(do func() error) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v\n%s", p, debug.Stack())
		}
	}()
	return do()
}

// open begins a file, and waits until that is possible; false where the Log is closed first.
func (w *writer) open() bool {
	for {
		f, err := w.newFile()
		if err == nil {
			w.file = f
			return true
		}
		if !w.again(err) {
			return false
		}
	}
}

func (w *writer) newFile() (*file, error) {
	if err := w.folder.prune(w.log.options.MaxFiles - 1); err != nil {
		w.failed(err) // more files than wished are better than no row
	}
	now := time.Now()
	to, name, err := w.create(now)
	if err != nil {
		return nil, err
	}
	f := &file{to: to, name: name, opened: now}
	if w.log.options.Format == Parquet {
		f.encoder = newRows(f, w.shape, w.schema, &w.codec, w.log.options.MaxFileBytes)
	} else {
		f.encoder = &lines{file: f, shape: w.shape, limit: w.log.options.MaxFileBytes}
	}
	return f, nil
}

// flush brings the file's rows to the disk, and waits until that is possible.
func (w *writer) flush() {
	for tries := 1; w.file != nil && len(w.file.tail.rest) > 0; tries++ {
		n, err := w.file.flush()
		w.log.stats.bytes.Add(int64(n))
		if err == nil {
			w.worked()
			return
		}
		if n > 0 {
			tries = 1
		}
		if !w.again(err) || !diskFull(err) && tries >= triesPerFile {
			w.abandon()
		}
	}
}

// diskFull tells an error that passes once there is room.
func diskFull(err error) bool {
	return errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT)
}

// finish completes the file.
func (w *writer) finish() {
	if err := guard(w.file.encoder.end); err != nil {
		w.failed(err)
		w.abandon()
		return
	}
	w.flush()
	if w.file == nil {
		return
	}
	switch err := w.file.finish(); {
	case errors.Is(err, fs.ErrNotExist):
		w.forget(fmt.Errorf("finishing a file: %w", err))
	case err != nil:
		w.failed(fmt.Errorf("finishing a file: %w", err))
	default:
		w.log.stats.finished.Add(1)
	}
	w.file = nil
	if err := w.folder.prune(w.log.options.MaxFiles); err != nil {
		w.failed(err)
	}
}

// removed looks whether somebody has taken the file away, as whoever empties the folder does.
func (w *writer) removed() bool {
	f, ok := w.file.to.(*os.File)
	if now := time.Now(); !ok || now.Sub(w.looked) < lookEvery {
		return false
	} else {
		w.looked = now
	}
	mine, err := f.Stat()
	if err != nil {
		return false // writing to it will tell
	}
	there, err := os.Lstat(w.file.name)
	return errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(mine, there)
}

// forget goes on without a file that is not there any more. All its rows are lost.
func (w *writer) forget(err error) {
	w.failed(err)
	w.log.stats.dropped[droppedWrite].Add(w.file.rows)
	_ = w.file.to.Close() // whatever it says: nobody reads it
	w.file = nil
}

// abandon leaves a file that cannot be completed, with what can be read of it.
func (w *writer) abandon() {
	f := w.file
	w.file = nil
	lost := f.encoder.lost()
	w.log.stats.dropped[droppedWrite].Add(lost)
	w.log.options.Logger.Error("a file of the decision log is given up", "file", f.name, "rows", f.rows, "lost", lost)
	if file, ok := f.to.(*os.File); ok {
		if _, err := w.folder.settle(file); err != nil {
			w.failed(err)
		}
	}
	if err := f.to.Close(); err != nil {
		w.failed(err)
	}
}

// failed counts an error and says it, but not again and again.
func (w *writer) failed(err error) {
	w.log.stats.errors.Add(1)
	if now := time.Now(); w.said.IsZero() || now.Sub(w.said) >= sayEvery {
		w.said = now
		w.log.options.Logger.Error("the decision log cannot be written: decisions wait, and are left out once there is no room for more",
			"error", err, "waiting", w.log.queued.Load(), "left_out", w.log.stats.dropped[droppedFull].Load())
	}
}

// worked says that an error has passed.
func (w *writer) worked() {
	if w.pause > 0 {
		w.log.options.Logger.Info("the decision log is written again")
	}
	w.pause, w.said = 0, time.Time{}
}

// again waits after a failed try; false where there is to be no other one.
func (w *writer) again(err error) bool {
	w.failed(err)
	if w.lastTry {
		return false
	}
	w.pause = min(max(2*w.pause, firstPause), longestPause)
	t := time.NewTimer(w.pause)
	defer t.Stop()
	select {
	case <-t.C:
	case <-w.log.closing:
		w.lastTry = true
	}
	return true
}
