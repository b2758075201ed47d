package config

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// reloading is a watcher on a real file, and what it has been given to apply.
type reloading struct {
	*Watcher
	path    string
	applied chan *File
	refuse  chan error // an error here refuses the next file
}

func startReloading(t *testing.T, text string) *reloading {
	t.Helper()
	r := &reloading{path: filepath.Join(t.TempDir(), "sluice.yaml"), applied: make(chan *File, 10), refuse: make(chan error, 10)}
	r.write(t, text)
	running, err := Load(r.path, environment)
	if err != nil {
		t.Fatal(err)
	}
	seconds := int64(0)
	r.Watcher = NewWatcher(running, environment, func(f *File) error {
		select {
		case err := <-r.refuse:
			return err
		default:
		}
		r.applied <- f
		return nil
	}, WatchOptions{Debounce: time.Millisecond, Recheck: 20 * time.Millisecond, Now: func() time.Time {
		seconds++
		return time.Unix(seconds, 0)
	}})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

func (r *reloading) write(t *testing.T, text string) {
	t.Helper()
	if err := os.WriteFile(r.path+".new", []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(r.path+".new", r.path); err != nil {
		t.Fatal(err)
	}
}

// wait waits until a condition on the watcher's atomics holds.
func wait(t *testing.T, what string, ok func() bool) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			t.Fatalf("never: %s", what)
		case <-tick.C:
		}
	}
}

func TestReloadKeepsWhatRuns(t *testing.T) {
	const first, second = "server: {maxEndpointsInPick: 2}\n", "server: {maxEndpointsInPick: 3}\n"
	r := startReloading(t, first)
	if !r.OK() || r.LastSuccess() != time.Unix(1, 0) {
		t.Errorf("at the start OK = %v, last success %v", r.OK(), r.LastSuccess())
	}

	r.write(t, second)
	if f := <-r.applied; f.Config.Server.MaxEndpointsInPick != 3 {
		t.Errorf("applied %+v", f.Config.Server)
	}
	wait(t, "a reload is counted", func() bool { return r.Reloads.Load() == 1 && r.OK() })
	if got := r.LastSuccess(); got != time.Unix(2, 0) {
		t.Errorf("last success %v, want the second reading of the clock", got)
	}

	r.write(t, "server: {maxEndpointsInPick: 99}\n")
	wait(t, "a failure is counted", func() bool { return r.Failures.Load() == 1 && !r.OK() })
	if got := r.LastSuccess(); got != time.Unix(2, 0) {
		t.Errorf("a failure moved the last success to %v", got)
	}

	r.write(t, second)
	wait(t, "going back is no failure any more", r.OK)
	if n := len(r.applied); n != 0 || r.Reloads.Load() != 1 {
		t.Errorf("going back to what runs applied %d files and counts %d reloads, want none and 1", n, r.Reloads.Load())
	}

	if err := os.Remove(r.path); err != nil {
		t.Fatal(err)
	}
	wait(t, "a missing file is a failure", func() bool { return r.Failures.Load() == 2 })

	r.refuse <- errors.New("cannot be built")
	r.write(t, first)
	wait(t, "a file that cannot be applied is a failure", func() bool { return r.Failures.Load() >= 3 && len(r.refuse) == 0 })
	r.Reload()
	if f := <-r.applied; f.Config.Server.MaxEndpointsInPick != 2 {
		t.Errorf("applied %+v after Reload", f.Config.Server)
	}
	wait(t, "it is counted", func() bool { return r.Reloads.Load() == 2 && r.OK() })
}

func TestUnchangedFileIsNotAppliedAtTheStart(t *testing.T) {
	r := startReloading(t, "server: {}\n")
	r.write(t, "server: {} # the same, but another text\n")
	<-r.applied
	if n := len(r.applied); n != 0 {
		t.Errorf("%d more files were applied, want only the changed one", n)
	}
}

func TestWatcherFailsInWords(t *testing.T) {
	r := startReloading(t, "server: {}\n")
	if _, err := Load(filepath.Join(filepath.Dir(r.path), "absent.yaml"), environment); err == nil || !strings.Contains(err.Error(), "absent.yaml") {
		t.Errorf("Load of an absent file = %v", err)
	}
}
