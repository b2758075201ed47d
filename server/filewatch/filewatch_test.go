package filewatch

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// told is one call of changed.
type told struct {
	data string
	err  error
}

// start runs a watcher on real files and returns what it tells. It ends with the test.
func start(t *testing.T, w *Watcher) <-chan told {
	t.Helper()
	out := make(chan told, 100)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		w.Run(ctx, func(data []byte, err error) { out <- told{string(data), err} })
	}()
	t.Cleanup(func() { cancel(); <-done })
	return out
}

func next(t *testing.T, out <-chan told) told {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	select {
	case got := <-out:
		return got
	case <-ctx.Done():
		t.Fatal("nothing was told")
		return told{}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEveryWayAFileChanges(t *testing.T) {
	for name, change := range map[string]func(t *testing.T, path string){
		"written in place": func(t *testing.T, path string) { write(t, path, "new") },
		"replaced by a rename": func(t *testing.T, path string) {
			write(t, path+".tmp", "new")
			if err := os.Rename(path+".tmp", path); err != nil {
				t.Fatal(err)
			}
		},
		"removed and written": func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			write(t, path, "new")
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			write(t, path, "old")
			out := start(t, New(path, Options{Recheck: time.Hour}))
			if got := next(t, out); got.data != "old" || got.err != nil {
				t.Fatalf("first told %+v, want old", got)
			}
			change(t, path)
			got := next(t, out)
			if errors.Is(got.err, fs.ErrNotExist) {
				got = next(t, out) // it was read between the removal and the writing
			}
			if got.data != "new" || got.err != nil {
				t.Errorf("then told %+v, want new", got)
			}
		})
	}
}

// A ConfigMap volume: the file is a link through ..data, which is swapped by a rename.
func TestConfigMapSwap(t *testing.T) {
	dir := t.TempDir()
	version := func(name, text string) {
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, name, "sluice.yaml"), text)
		if err := os.Symlink(name, filepath.Join(dir, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	version("..v1", "one")
	if err := os.Symlink(filepath.Join("..data", "sluice.yaml"), filepath.Join(dir, "sluice.yaml")); err != nil {
		t.Fatal(err)
	}
	out := start(t, New(filepath.Join(dir, "sluice.yaml"), Options{Recheck: time.Hour}))
	if got := next(t, out); got.data != "one" {
		t.Fatalf("first told %+v, want one", got)
	}
	version("..v2", "two")
	if got := next(t, out); got.data != "two" {
		t.Errorf("then told %+v, want two", got)
	}
}

// A directory that is replaced carries no event of its own; the look at intervals finds it and watches the new one.
func TestReplacedDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "file")
	write(t, path, "one")
	out := start(t, New(path, Options{Recheck: 50 * time.Millisecond}))
	next(t, out)
	if err := os.Rename(dir, dir+".old"); err != nil {
		t.Fatal(err)
	}
	if got := next(t, out); !errors.Is(got.err, fs.ErrNotExist) {
		t.Fatalf("told %+v, want that the file is gone", got)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, path, "two")
	if got := next(t, out); got.data != "two" {
		t.Errorf("told %+v, want two", got)
	}
}

func TestReadRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "file")
	write(t, path, "123456")
	if data, err := Read(path, 6); err != nil || string(data) != "123456" {
		t.Errorf("Read at the bound = %q, %v", data, err)
	}
	if _, err := Read(path, 5); err == nil || !strings.Contains(err.Error(), "more than 5 bytes") {
		t.Errorf("Read beyond the bound = %v", err)
	}
	if _, err := Read(dir, 5); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("Read of a directory = %v", err)
	}
}

// bench drives the loop in virtual time with events of its own and a file that is a variable.
type bench struct {
	w      *Watcher
	events chan fsnotify.Event
	errs   chan error

	mu      sync.Mutex // guards what the script shares with the loop
	content string
	err     error
	reads   int
	watched int
	told    []string
}

// onBench runs a script in virtual time. The file holds "a" at first.
func onBench(t *testing.T, o Options, script func(b *bench)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		b := &bench{w: New("/nowhere/file", o), events: make(chan fsnotify.Event), errs: make(chan error), content: "a"}
		b.w.read = b.read
		ctx, cancel := context.WithCancel(t.Context())
		go b.w.loop(ctx, b.events, b.errs, b.watch, b.tell)
		synctest.Wait()
		script(b)
		cancel()
		synctest.Wait()
	})
}

func (b *bench) read() ([]byte, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.reads++
	return []byte(b.content), b.err
}

func (b *bench) watch() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watched++
}

func (b *bench) tell(data []byte, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil {
		data = []byte(err.Error())
	}
	b.told = append(b.told, string(data))
}

// file sets what the next look finds.
func (b *bench) file(content string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.content, b.err = content, err
}

func (b *bench) event()                { b.events <- fsnotify.Event{} }
func (b *bench) after(d time.Duration) { time.Sleep(d); synctest.Wait() }

// check compares what has been told, how often the file was read and the directory watched; -1 is any number.
func (b *bench) check(t *testing.T, reads, watched int, told ...string) {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.told, told) {
		t.Errorf("told %q, want %q", b.told, told)
	}
	if reads >= 0 && b.reads != reads || watched >= 0 && b.watched != watched {
		t.Errorf("read %d times and watched %d times, want %d and %d", b.reads, b.watched, reads, watched)
	}
}

func TestDebounce(t *testing.T) {
	onBench(t, Options{Debounce: 100 * time.Millisecond, Recheck: time.Hour}, func(b *bench) {
		b.file("b", nil)
		for range 3 {
			b.event()
			b.after(60 * time.Millisecond)
		}
		b.check(t, 1, 1, "a") // events still come
		b.after(41 * time.Millisecond)
		b.check(t, 2, 1, "a") // it may be written still
		b.after(100 * time.Millisecond)
		b.check(t, 3, 1, "a", "b")
	})
}

func TestBusyDirectoryIsReadAllTheSame(t *testing.T) {
	onBench(t, Options{Debounce: 100 * time.Millisecond, Recheck: time.Hour}, func(b *bench) {
		b.file("b", nil)
		for range 42 { // 2.1 s without 100 ms of quiet
			b.event()
			b.after(50 * time.Millisecond)
		}
		b.check(t, 3, 1, "a", "b")
	})
}

// A file that is written in place is empty, or cut short, for a while: that is not told.
func TestHalfWritten(t *testing.T) {
	onBench(t, Options{Debounce: 100 * time.Millisecond, Recheck: time.Hour}, func(b *bench) {
		for _, part := range []string{"", "b", "bb"} {
			b.file(part, nil)
			b.event()
			b.after(101 * time.Millisecond)
		}
		b.check(t, 4, 1, "a")
		b.after(100 * time.Millisecond)
		b.check(t, 5, 1, "a", "bb")
		b.after(time.Minute)
		b.check(t, 5, 1, "a", "bb") // it is left alone then
		b.file("", nil)
		b.event()
		b.after(201 * time.Millisecond)
		b.check(t, 7, 1, "a", "bb", "") // it stays empty
	})
}

// A file that is never twice the same is told all the same.
func TestAlwaysMoving(t *testing.T) {
	onBench(t, Options{Debounce: 100 * time.Millisecond, Recheck: time.Hour}, func(b *bench) {
		b.event()
		for i := range 12 {
			b.file(strings.Repeat("b", i+1), nil)
			b.after(100 * time.Millisecond)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if len(b.told) != 2 {
			t.Errorf("told %q after 12 looks", b.told)
		}
	})
}

func TestRecheckAndErrors(t *testing.T) {
	onBench(t, Options{Recheck: time.Minute}, func(b *bench) {
		b.file("b", nil)
		b.after(61 * time.Second)
		b.check(t, 3, 2, "a", "b")
		b.file("", errors.New("gone"))
		b.after(5 * time.Minute)
		b.file("b", nil)
		b.after(time.Minute)
		b.check(t, -1, -1, "a", "b", "gone", "b") // the error once, then the content again
		b.file("c", nil)
		b.errs <- errors.New("overflow")
		b.after(time.Second)
		b.check(t, -1, -1, "a", "b", "gone", "b", "c") // a lost event is made up for
	})
}

func TestReload(t *testing.T) {
	onBench(t, Options{Recheck: time.Hour}, func(b *bench) {
		b.w.Reload()
		synctest.Wait()
		b.check(t, 2, 1, "a", "a") // told although it has not changed
	})
}
