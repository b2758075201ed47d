package discovery

import (
	"context"
	"crypto/sha256"
	"fmt"
	"sync"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/filewatch"
)

// maxFileBytes bounds an endpoints file.
const maxFileBytes = 1 << 20

// ReadFile reads and parses an endpoints file of at most 1 MiB. It is what a File does at its start, for those who want to
// know beforehand.
func ReadFile(path string) (Listing, error) {
	data, err := filewatch.Read(path, maxFileBytes)
	if err != nil {
		return Listing{}, err
	}
	l, err := ParseFile(data)
	if err != nil {
		return Listing{}, fmt.Errorf("%s: %w", path, err)
	}
	return l, nil
}

// File is a source that publishes what an endpoints file lists and follows the file. A file that is missing or cannot be
// taken over leaves the last good set in force.
type File struct {
	o     *Options
	path  string
	list  *List
	watch *filewatch.Watcher

	// The rest belongs to the goroutine of Run.
	loaded  bool              // a content has been taken over
	current [sha256.Size]byte // of the content taken over last
	refused string            // what is wrong with the present content; empty if nothing is
	skipped int               // bad entries of the content taken over
}

// NewFile returns a source for the file at path, which need not exist yet.
func NewFile(path string, o Options) *File {
	opts := o.withDefaults()
	return &File{
		o:    opts,
		path: path,
		list: newList(nil, opts, "file "+path),
		watch: filewatch.New(path, filewatch.Options{
			Logger: opts.Logger, Debounce: opts.Debounce, Recheck: opts.Recheck, MaxBytes: maxFileBytes,
		}),
	}
}

// String names the source in logs.
func (f *File) String() string { return f.list.String() }

// Reload looks at the file at once. It does not wait.
func (f *File) Reload() { f.watch.Reload() }

// Refresh looks all names in the file up at once. It does not wait.
func (f *File) Refresh() { f.list.Refresh() }

// Run implements Source. It publishes nothing until the file has been taken over once. Run may be called once.
func (f *File) Run(ctx context.Context, publish func([]scheduling.EndpointSpec)) error {
	var listing sync.WaitGroup
	f.watch.Run(ctx, func(data []byte, err error) {
		entries, isNew := f.take(data, err)
		switch {
		case isNew && f.loaded:
			f.list.Replace(entries)
		case isNew:
			f.loaded = true
			f.list.set(entries)
			listing.Go(func() { _ = f.list.Run(ctx, publish) }) // returns nil
		}
	})
	listing.Wait()
	f.settle("", 0)
	return nil
}

// take returns the entries of a content where they are new and to be taken over.
func (f *File) take(data []byte, err error) (entries []Entry, isNew bool) {
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
		f.fail(err)
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
	if f.loaded {
		f.o.Logger.Error("endpoints file cannot be taken over, the last good endpoints stay", "path", f.path, "error", err)
	} else {
		f.o.Logger.Error("endpoints file cannot be read; until it can, it lists no endpoint", "path", f.path, "error", err)
	}
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
