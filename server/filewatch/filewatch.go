// Package filewatch follows the content of a file. It watches the file's directory, so that it sees a replaced file, a
// file that appears, and a ConfigMap volume, whose files are links that are swapped in one step; and it looks at the file
// at intervals, for what no event tells of: network file systems, links into other directories, replaced directories.
package filewatch

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/fsnotify/fsnotify"
)

// Options are what a Watcher is set up with. A field that is zero means its default.
type Options struct {
	// Logger gets what goes wrong with the watching itself; by default nothing is logged.
	Logger *slog.Logger
	// Debounce is how long the directory must be quiet before the file is read (100 ms). A directory that never is quiet
	// is read at ten times that.
	Debounce time.Duration
	// Recheck is the time between two looks at the file without any event (15 s).
	Recheck time.Duration
	// MaxBytes bounds the file (1 MiB); a larger one cannot be read.
	MaxBytes int64
}

// maxDebounces is how many times the debounce a busy directory can put off a look, and how many looks a file that never is twice
// the same can put off that it is told.
const maxDebounces = 10

// Watcher follows one file. New makes one.
type Watcher struct {
	path   string
	o      Options
	reload chan struct{}
	read   func() ([]byte, error)

	// The rest belongs to the goroutine of Run.
	known  [sha256.Size]byte // of the last content or error that was told
	told   bool
	latest [sha256.Size]byte // of what the last look found
	moving int               // looks that each found something else
}

// New returns a watcher for the file at path, which need not exist.
func New(path string, o Options) *Watcher {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Debounce <= 0 {
		o.Debounce = 100 * time.Millisecond
	}
	if o.Recheck <= 0 {
		o.Recheck = 15 * time.Second
	}
	if o.MaxBytes <= 0 {
		o.MaxBytes = 1 << 20
	}
	w := &Watcher{path: filepath.Clean(path), o: o, reload: make(chan struct{}, 1)}
	w.read = func() ([]byte, error) { return Read(w.path, o.MaxBytes) }
	return w
}

// maxWait bounds the wait for what comes through a pipe.
const maxWait = 5 * time.Second

// Read reads a file of at most maxBytes bytes. A pipe is read to its end, and does not hold the caller up where nobody
// writes to it.
func Read(path string, maxBytes int64) ([]byte, error) {
	f, err := os.OpenFile(filepath.Clean(path), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if info.IsDir() {
		return nil, fmt.Errorf("%s is a directory", path)
	}
	if err := f.SetReadDeadline(time.Now().Add(maxWait)); err != nil && !errors.Is(err, os.ErrNoDeadline) {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > maxBytes {
		return nil, fmt.Errorf("%s has more than %d bytes", path, maxBytes)
	}
	return data, nil
}

// Reload makes Run look at the file at once and tell what it finds, changed or not. It does not wait.
func (w *Watcher) Reload() {
	select {
	case w.reload <- struct{}{}:
	default: // one is waiting already
	}
}

// Run tells changed the file's content at its start and whenever it has changed since, and why it cannot be read where
// that is new. It calls changed from one goroutine, its own, and returns when ctx ends.
func (w *Watcher) Run(ctx context.Context, changed func(data []byte, err error)) {
	notify, err := fsnotify.NewWatcher()
	if err != nil {
		w.o.Logger.Warn("files are looked at in intervals only", "path", w.path, "interval", w.o.Recheck, "error", err)
		w.loop(ctx, nil, nil, func() {}, changed)
		return
	}
	defer notify.Close()
	w.loop(ctx, notify.Events, notify.Errors, func() { w.watchDirectory(notify) }, changed)
}

// watchDirectory begins to watch, or goes on: the directory may have been replaced.
func (w *Watcher) watchDirectory(notify *fsnotify.Watcher) {
	if err := notify.Add(filepath.Dir(w.path)); err != nil {
		w.o.Logger.Debug("directory cannot be watched yet", "path", filepath.Dir(w.path), "error", err)
	}
}

func (w *Watcher) loop(ctx context.Context, events <-chan fsnotify.Event, errs <-chan error, watch func(), changed func([]byte, error)) {
	watch() // before the first look, so that no change falls between
	w.look(changed)
	recheck := time.NewTicker(w.o.Recheck)
	defer recheck.Stop()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	var latest time.Time // when a look is due however busy the directory is; zero: none is due
	for {
		select {
		case <-ctx.Done():
			return
		case <-events:
			now := time.Now()
			if latest.IsZero() {
				latest = now.Add(maxDebounces * w.o.Debounce)
			}
			quiet.Reset(min(w.o.Debounce, latest.Sub(now)))
			continue
		case err := <-errs:
			// An overflow loses events; the look makes up for them.
			w.o.Logger.Warn("watching a directory", "path", filepath.Dir(w.path), "error", err)
		case <-quiet.C:
		case <-recheck.C:
			watch()
		case <-w.reload:
			w.told = false
		}
		latest = time.Time{}
		quiet.Stop()
		if w.look(changed) {
			quiet.Reset(w.o.Debounce)
		}
	}
}

// look reads the file and tells what is new, once two looks have found the same: a file that is being written is empty, or cut
// short, in between. Where it may be so, the next look is due after the debounce.
func (w *Watcher) look(changed func([]byte, error)) (again bool) {
	data, err := w.read()
	var sum [sha256.Size]byte
	if err != nil {
		sum = sha256.Sum256([]byte("error\x00" + err.Error()))
	} else {
		sum = sha256.Sum256(data)
	}
	still := sum == w.latest
	w.latest = sum
	switch {
	case w.told && sum == w.known:
		w.moving = 0
		return false
	case w.told && !still && w.moving < maxDebounces:
		w.moving++
		return true
	}
	w.known, w.told, w.moving = sum, true, 0
	changed(data, err)
	return false
}
