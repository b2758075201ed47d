//go:build unix

package simulate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// TestReadingALogEndsWithItsContext, of a grid too, while the log has nothing more to read.
func TestReadingALogEndsWithItsContext(t *testing.T) {
	folder := t.TempDir()
	fifo := filepath.Join(folder, "decisions.jsonl")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	writer, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = writer.Close() }()
	grid := filepath.Join(t.TempDir(), "grid.yaml")
	if err := os.WriteFile(grid, []byte("scenarios: [{name: a, trace: "+folder+"}]\ncandidates: [{name: b}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(context.Context) error{
		"trace": func(ctx context.Context) error { _, err := OpenTrace(ctx, folder); return err },
		"grid":  func(ctx context.Context) error { _, err := LoadGrid(ctx, grid); return err },
	} {
		ctx, cancel := context.WithCancel(t.Context())
		stop := time.AfterFunc(20*time.Millisecond, cancel)
		ended := make(chan error, 1)
		go func() { ended <- read(ctx) }()
		select {
		case err := <-ended:
			if !errors.Is(err, context.Canceled) {
				t.Errorf("%s: %v", name, err)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: it goes on reading", name)
		}
		stop.Stop()
		cancel()
	}
}
