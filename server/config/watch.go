package config

import (
	"context"
	"crypto/sha256"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/server/filewatch"
)

// WatchOptions are what a Watcher is set up with. A field that is zero means its default.
type WatchOptions struct {
	// Logger gets every reload and every fault; by default nothing is logged.
	Logger *slog.Logger
	// Now is the clock that LastSuccess is read from (time.Now).
	Now func() time.Time
	// Debounce and Recheck are those of filewatch.Options.
	Debounce, Recheck time.Duration
}

// Watcher follows a configuration file and applies it when it changes. A file that cannot be read, holds a fault or
// cannot be applied changes nothing: what runs goes on running.
type Watcher struct {
	// Reloads counts the changed files that were applied, Failures those that were not.
	Reloads, Failures atomic.Uint64

	files   *filewatch.Watcher
	path    string
	lookup  func(string) (string, bool)
	apply   func(*File) error
	o       WatchOptions
	running [sha256.Size]byte // of the file that runs; belongs to Run's goroutine
	begun   bool
	ok      atomic.Bool
	last    atomic.Int64 // nanoseconds since 1970
}

// NewWatcher returns a watcher for the file that running was loaded from. apply is given each changed file, with all that
// Parse checks checked; it builds and swaps, or returns an error and leaves everything as it was. lookup knows the
// environment.
func NewWatcher(running *File, lookup func(string) (string, bool), apply func(*File) error, o WatchOptions) *Watcher {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	w := &Watcher{
		files: filewatch.New(running.Name, filewatch.Options{Logger: o.Logger, Debounce: o.Debounce, Recheck: o.Recheck, MaxBytes: MaxFileBytes}),
		path:  running.Name, lookup: lookup, apply: apply, o: o, running: running.sum,
	}
	w.succeeded()
	return w
}

// Run follows the file until ctx ends.
func (w *Watcher) Run(ctx context.Context) { w.files.Run(ctx, w.changed) }

// Reload applies the file again, changed or not; Run does so soon after. It does not wait.
func (w *Watcher) Reload() { w.files.Reload() }

// OK reports whether the file as it stands is what runs.
func (w *Watcher) OK() bool { return w.ok.Load() }

// LastSuccess is when the file that runs was loaded.
func (w *Watcher) LastSuccess() time.Time { return time.Unix(0, w.last.Load()) }

func (w *Watcher) succeeded() {
	w.ok.Store(true)
	w.last.Store(w.o.Now().UnixNano())
}

func (w *Watcher) changed(data []byte, err error) {
	if err != nil {
		w.failed(err)
		return
	}
	// What runs at the start need not be applied; after a fault, a return to what runs needs no more than saying so.
	sum := sha256.Sum256(data)
	first := !w.begun
	w.begun = true
	if sum == w.running && (first || !w.OK()) {
		w.ok.Store(true)
		return
	}
	f, err := Parse(w.path, data, w.lookup)
	if err == nil {
		err = w.apply(f)
	}
	if err != nil {
		w.failed(err)
		return
	}
	w.running = sum
	w.succeeded()
	w.Reloads.Add(1)
	w.o.Logger.Info("configuration reloaded", "file", w.path, "config_hash", f.hash)
	for _, warning := range f.Warnings {
		w.o.Logger.Warn("configuration", "warning", warning.Error())
	}
}

func (w *Watcher) failed(err error) {
	w.begun = true
	w.ok.Store(false)
	w.Failures.Add(1)
	var faults Faults
	if !errors.As(err, &faults) {
		w.o.Logger.Error("configuration not reloaded; the previous one stays", "file", w.path, "error", err)
		return
	}
	const most = 20 // a file can be wrong in every line
	for i, fault := range faults {
		if i == most {
			w.o.Logger.Error("configuration not reloaded", "file", w.path, "more_faults", len(faults)-most)
			break
		}
		w.o.Logger.Error("configuration not reloaded; the previous one stays", "file", w.path, "fault", fault.Error())
	}
}
