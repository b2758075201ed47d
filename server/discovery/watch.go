package discovery

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/sluice-epp/sluice/scheduling"
)

// File is a source that publishes what an endpoints file lists and follows the file. A file that is missing or cannot be
// taken over leaves the last good set in force.
type File struct {
	o      *Options
	path   string
	list   *List
	reload chan struct{} // holds one when the file is to be looked at at once

	// The rest belongs to the goroutine of Run.
	loaded  bool              // a content has been taken over
	current [sha256.Size]byte // of the content taken over last
	refused string            // what is wrong with the present content; empty if nothing is
	skipped int               // bad entries of the content taken over
}

// NewFile returns a source for the file at path.
func NewFile(path string, o Options) *File {
	opts := o.withDefaults()
	return &File{
		o:      opts,
		path:   path,
		list:   newList(nil, opts, "file "+path),
		reload: make(chan struct{}, 1),
	}
}

// ReadFile reads and parses an endpoints file of at most maxBytes; 0 means 1 MiB. It is what a File does at its start, for
// those who want to know beforehand.
func ReadFile(path string, maxBytes int64) (Listing, error) {
	o := Options{MaxFileBytes: maxBytes}.withDefaults()
	data, err := readBounded(path, o.MaxFileBytes)
	if err != nil {
		return Listing{}, err
	}
	l, err := ParseFile(data)
	if err != nil {
		return Listing{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// String names the source in logs.
func (f *File) String() string { return f.list.String() }

// Reload looks at the file at once. It does not wait.
func (f *File) Reload() { signal(f.reload) }

// Refresh looks all names in the file up at once. It does not wait.
func (f *File) Refresh() { f.list.Refresh() }

// Run implements Source. It publishes nothing until the file has been taken over once.
func (f *File) Run(ctx context.Context, publish func([]scheduling.EndpointSpec)) error {
	var listing sync.WaitGroup
	defer listing.Wait()
	defer f.settle("", 0)
	watch := f.newWatch()
	defer watch.close()

	recheck := time.NewTicker(f.o.Recheck)
	defer recheck.Stop()
	quiet := time.NewTimer(time.Hour)
	quiet.Stop()
	defer quiet.Stop()
	var since time.Time // of the first event not yet looked into; zero if there is none
	for {
		watch.ensure()
		if entries, changed := f.check(); changed {
			f.list.Replace(entries)
			if !f.loaded {
				f.loaded = true
				listing.Go(func() { _ = f.list.Run(ctx, publish) }) // returns nil
			}
		}
		since = time.Time{}
	wait:
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-f.reload:
				break wait
			case <-recheck.C:
				break wait
			case <-quiet.C:
				break wait
			case _, ok := <-watch.events:
				if !ok {
					watch.events = nil
					continue
				}
				now := time.Now()
				if since.IsZero() {
					since = now
				}
				quiet.Reset(min(f.o.Debounce, max(0, 10*f.o.Debounce-now.Sub(since))))
			case err, ok := <-watch.errors:
				if !ok {
					watch.errors = nil
					continue
				}
				// Events may be lost, for one when the kernel's queue ran over.
				f.o.Logger.Warn("watching the endpoints file", "path", f.path, "error", err)
				break wait
			}
		}
	}
}

// check reads the file. It returns its entries where they are new and to be taken over.
func (f *File) check() (entries []Entry, changed bool) {
	data, err := readBounded(f.path, f.o.MaxFileBytes)
	if err != nil {
		f.fail(err)
		return nil, false
	}
	sum := sha256.Sum256(data)
	if f.loaded && sum == f.current {
		if f.refused != "" {
			f.o.Logger.Info("endpoints file is as before again", "path", f.path)
		}
		f.settle("", f.skipped)
		return nil, false
	}
	l, err := ParseFile(data)
	if err != nil {
		f.fail(fmt.Errorf("%s: %w", f.path, err))
		return nil, false
	}
	f.current = sum
	f.o.Stats.FileLoads.Add(1)
	f.settle("", l.Skipped)
	for _, fault := range l.Faults {
		f.o.Logger.Error("entry of the endpoints file is skipped", "path", f.path, "error", fault)
	}
	f.o.Logger.Info("endpoints file is taken over", "path", f.path, "entries", len(l.Entries), "skipped", l.Skipped)
	return l.Entries, true
}

// fail notes that the present content is not taken over. The same fault is counted and logged once.
func (f *File) fail(err error) {
	if err.Error() == f.refused {
		return
	}
	f.o.Stats.FileErrors.Add(1)
	f.o.Logger.Error("endpoints file cannot be taken over, the last good endpoints stay", "path", f.path, "error", err)
	f.settle(err.Error(), f.skipped)
}

// settle brings the gauges in line with what is wrong now.
func (f *File) settle(refused string, skipped int) {
	if (refused != "") != (f.refused != "") {
		delta := int64(1)
		if refused == "" {
			delta = -1
		}
		f.o.Stats.FilesFailing.Add(delta)
	}
	f.o.Stats.BadEntries.Add(int64(skipped - f.skipped))
	f.refused, f.skipped = refused, skipped
}

// readBounded reads a regular file. Anything else could block for ever.
func readBounded(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s: must be a regular file, is %s", path, info.Mode().Type())
	}
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // only read from
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > most {
		return nil, fmt.Errorf("%s: is larger than %d bytes", path, most)
	}
	return data, nil
}

// watch follows the directory of the file, not the file: editors and ConfigMap mounts replace it by renaming another file
// or link over it, and a watch on the file would follow the old one into oblivion.
type watch struct {
	f       *File
	dir     string
	watcher *fsnotify.Watcher // nil where the system gives none
	events  <-chan fsnotify.Event
	errors  <-chan error
	at      fs.FileInfo // the directory that is watched; nil if none is
	last    string      // the last error, said once
}

func (f *File) newWatch() *watch {
	w := &watch{f: f, dir: filepath.Dir(f.path)}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		w.complain(err)
		return w
	}
	w.watcher, w.events, w.errors = watcher, watcher.Events, watcher.Errors
	return w
}

// ensure sees to it that the directory now at the path is the one being watched.
func (w *watch) ensure() {
	if w.watcher == nil {
		return
	}
	at, err := os.Stat(w.dir)
	if err == nil && w.at != nil && os.SameFile(at, w.at) && len(w.watcher.WatchList()) > 0 {
		return
	}
	if w.at != nil {
		if err := w.watcher.Remove(w.dir); err != nil && !errors.Is(err, fsnotify.ErrNonExistentWatch) {
			w.complain(err)
		}
		w.at = nil
	}
	if err == nil {
		err = w.watcher.Add(w.dir)
	}
	if err != nil {
		w.complain(err)
		return
	}
	w.at, w.last = at, ""
}

func (w *watch) complain(err error) {
	if err.Error() != w.last {
		w.last = err.Error()
		w.f.o.Logger.Warn("directory of the endpoints file cannot be watched, it is looked at from time to time",
			"path", w.f.path, "every", w.f.o.Recheck, "error", err)
	}
}

func (w *watch) close() {
	if w.watcher == nil {
		return
	}
	if err := w.watcher.Close(); err != nil {
		w.f.o.Logger.Warn("closing the watch of the endpoints file", "path", w.f.path, "error", err)
	}
}
