package discovery

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// never is longer than any test runs: what happens with it does not come from the timer.
const never = time.Hour

func write(t *testing.T, path string, lines ...string) {
	t.Helper()
	data := "endpoints:\n"
	for _, l := range lines {
		data += "- " + l + "\n"
	}
	if len(lines) == 0 {
		data = "endpoints: []\n"
	}
	writeRaw(t, path, data)
}

func writeRaw(t *testing.T, path, data string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(data), 0o600); err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, errs ...error) {
	t.Helper()
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

// startFile runs a file source until the test ends.
func startFile(t *testing.T, path string, o Options) (*File, feed) {
	t.Helper()
	f := NewFile(path, o)
	return f, start(t, f)
}

func start(t *testing.T, s Source) feed {
	t.Helper()
	out := newFeed()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := s.Run(ctx, out.publish); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(func() { cancel(); done.Wait() })
	return out
}

// until drops published sets until one has these addresses.
func (f feed) until(t *testing.T, want ...string) {
	t.Helper()
	timeout := time.After(wait)
	var last []string
	for {
		select {
		case specs := <-f:
			if last = addresses(specs); cmp.Equal(last, want) || len(last)+len(want) == 0 {
				return
			}
		case <-timeout:
			t.Fatalf("%v was not published; last was %v", want, last)
		}
	}
}

// silent checks that nothing comes by the time that what has been triggered is through.
func (f feed) silent(t *testing.T) {
	t.Helper()
	select {
	case specs := <-f:
		t.Errorf("%v was published", addresses(specs))
	default:
	}
}

func fileOptions() Options {
	return Options{Stats: new(Stats), Debounce: 5 * time.Millisecond, Recheck: never}
}

func TestFileWrittenInPlace(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, path, "10.0.0.1:8000")
	o := fileOptions()
	_, out := startFile(t, path, o)
	out.until(t, "10.0.0.1:8000")
	write(t, path, "10.0.0.1:8000", "10.0.0.2:8000")
	out.until(t, "10.0.0.1:8000", "10.0.0.2:8000")
	write(t, path)
	out.until(t)
	if loads := o.Stats.FileLoads.Load(); loads != 3 {
		t.Errorf("taken over %d times, want 3", loads)
	}
}

// Editors write another file and rename it over the old one, or move the old one away first.
func TestFileReplacedByEditor(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "endpoints.yaml")
	write(t, path, "10.0.0.1:8000")
	_, out := startFile(t, path, fileOptions())
	out.until(t, "10.0.0.1:8000")
	for i := range 3 {
		address := fmt.Sprintf("10.0.1.%d:8000", i)
		write(t, filepath.Join(dir, ".swap"), address)
		must(t, os.Rename(filepath.Join(dir, ".swap"), path))
		out.until(t, address)
	}
	must(t, os.Rename(path, path+"~"))
	write(t, path, "10.0.2.1:8000")
	out.until(t, "10.0.2.1:8000")
}

// A ConfigMap mount is a link to a link to a directory, and an update replaces the link in the middle.
func TestFileInConfigMap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	version := func(name string, lines ...string) {
		must(t, os.Mkdir(filepath.Join(dir, name), 0o700))
		write(t, filepath.Join(dir, name, "endpoints.yaml"), lines...)
		must(t, os.Symlink(name, filepath.Join(dir, "..data_tmp")),
			os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	}
	version("..2026_01_01", "10.0.0.1:8000")
	path := filepath.Join(dir, "endpoints.yaml")
	must(t, os.Symlink(filepath.Join("..data", "endpoints.yaml"), path))
	_, out := startFile(t, path, fileOptions())
	out.until(t, "10.0.0.1:8000")
	version("..2026_01_02", "10.0.0.2:8000")
	out.until(t, "10.0.0.2:8000")
	must(t, os.RemoveAll(filepath.Join(dir, "..2026_01_01")))
	version("..2026_01_03", "10.0.0.3:8000")
	out.until(t, "10.0.0.3:8000")
}

func TestFileDeletedAndRecreated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, path, "10.0.0.1:8000")
	o := fileOptions()
	_, out := startFile(t, path, o)
	out.until(t, "10.0.0.1:8000")
	must(t, os.Remove(path))
	eventually(t, "the file counts as failing", func() bool { return o.Stats.FilesFailing.Load() == 1 })
	if errs := o.Stats.FileErrors.Load(); errs != 1 {
		t.Errorf("%d errors, want 1", errs)
	}
	out.silent(t)
	write(t, path, "10.0.0.1:8000")
	eventually(t, "the file is good again", func() bool { return o.Stats.FilesFailing.Load() == 0 })
	write(t, path, "10.0.0.2:8000")
	out.until(t, "10.0.0.2:8000")
}

// A file that cannot be taken over changes nothing, is counted once, and the next good one is taken over.
func TestFileKeepsLastGood(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, path, "10.0.0.1:8000")
	o := fileOptions()
	var log logBuffer
	o.Logger = log.logger()
	f, out := startFile(t, path, o)
	out.until(t, "10.0.0.1:8000")
	for i, bad := range []string{"endpoints: [", "", "endpoints: [nothing]\n", "# " + strings.Repeat("x", maxFileBytes)} {
		writeRaw(t, path+".new", bad)
		must(t, os.Rename(path+".new", path))
		eventually(t, "the fault is counted", func() bool { return o.Stats.FileErrors.Load() == uint64(i+1) })
		f.Reload()
		f.Reload()
	}
	if n := o.Stats.FilesFailing.Load(); n != 1 {
		t.Errorf("%d files failing, want 1", n)
	}
	out.silent(t)
	write(t, path+".new", "10.0.0.1:8000", "10.0.0.2:8000", "nonsense")
	must(t, os.Rename(path+".new", path))
	out.until(t, "10.0.0.1:8000", "10.0.0.2:8000")
	if errs, failing, bad := o.Stats.FileErrors.Load(), o.Stats.FilesFailing.Load(), o.Stats.BadEntries.Load(); errs != 4 || failing != 0 || bad != 1 {
		t.Errorf("%d errors, %d failing, %d bad entries; want 4, 0, 1", errs, failing, bad)
	}
	for _, want := range []string{"last good endpoints stay", "has more than 1048576 bytes", `endpoints[2]: \"nonsense\"`} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("the log lacks %q:\n%s", want, log.String())
		}
	}
	if strings.Contains(log.String(), "until it can") {
		t.Error("a fault after the first content is logged as one before it")
	}
	if n := strings.Count(log.String(), "last good endpoints stay"); n != 4 {
		t.Errorf("4 faults were logged %d times", n)
	}
}

// A content that is put back is not news, and a source that ends takes what it counts out of the gauges.
func TestFilePutBack(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	write(t, path, "10.0.0.1:8000", "bad")
	o := fileOptions()
	f := NewFile(path, o)
	out := newFeed()
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := f.Run(ctx, out.publish); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	out.until(t, "10.0.0.1:8000")
	writeRaw(t, path, "endpoints: [")
	eventually(t, "the fault is counted", func() bool { return o.Stats.FilesFailing.Load() == 1 })
	if bad := o.Stats.BadEntries.Load(); bad != 1 {
		t.Errorf("%d bad entries in what is served, want 1", bad)
	}
	write(t, path, "10.0.0.1:8000", "bad")
	eventually(t, "the file is good again", func() bool { return o.Stats.FilesFailing.Load() == 0 })
	if loads := o.Stats.FileLoads.Load(); loads != 1 {
		t.Errorf("taken over %d times, want once", loads)
	}
	must(t, os.Remove(path))
	eventually(t, "the file is missed", func() bool { return o.Stats.FilesFailing.Load() == 1 })
	cancel()
	done.Wait()
	out.silent(t)
	if failing, bad := o.Stats.FilesFailing.Load(), o.Stats.BadEntries.Load(); failing != 0 || bad != 0 {
		t.Errorf("after the end %d files are failing and %d entries bad", failing, bad)
	}
}

// A file that does not exist yet is waited for.
func TestFileMissingAtStart(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "endpoints.yaml")
	o := fileOptions()
	_, out := startFile(t, path, o)
	eventually(t, "the missing file is counted", func() bool { return o.Stats.FileErrors.Load() == 1 })
	out.silent(t)
	write(t, path, "10.0.0.1:8000")
	out.until(t, "10.0.0.1:8000")
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "endpoints.yaml")
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("a missing file: %v", err)
	}
	write(t, path, "10.0.0.1:8000", "bad")
	l, err := ReadFile(path)
	if err != nil || len(l.Entries) != 1 || l.Skipped != 1 {
		t.Errorf("ReadFile = %v, %v", l, err)
	}
	writeRaw(t, path, "# "+strings.Repeat("x", maxFileBytes))
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), "more than 1048576 bytes") {
		t.Errorf("a large file: %v", err)
	}
	if _, err := ReadFile(filepath.Dir(path)); err == nil || !strings.Contains(err.Error(), "is a directory") {
		t.Errorf("a directory: %v", err)
	}
	writeRaw(t, path, "endpoints: 1")
	if _, err := ReadFile(path); err == nil || !strings.Contains(err.Error(), path+": line 1: endpoints: must be a list") {
		t.Errorf("not a list: %v", err)
	}
}
