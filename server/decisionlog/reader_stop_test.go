//go:build unix

package decisionlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// stopped reads until it has been told so many times, ends the context then, and returns what came after.
func stopped(t *testing.T, path string, after int, begun func()) (more int, last error) {
	t.Helper()
	r, err := NewReader(path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if after == 0 {
		stop := time.AfterFunc(10*time.Millisecond, cancel)
		defer stop.Stop()
	}
	if begun != nil {
		begun()
	}
	told := 0
	for _, err := range r.Decisions(ctx) {
		if told++; told == after {
			cancel()
		}
		last = err
	}
	return told - after, last
}

// TestReadingEndsWithItsContext where none of what is read is a row: empty lines, and one that is too long.
func TestReadingEndsWithItsContext(t *testing.T) {
	folder := t.TempDir()
	for name, text := range map[string][]byte{
		"empty.jsonl": bytes.Repeat([]byte("\n"), 4<<20), "long.jsonl": make([]byte, 4<<20), "row.jsonl": append(bytes.Repeat([]byte(" "), 4<<20), '\n'),
	} {
		text = append([]byte("no decision\n"), text...)
		path := filepath.Join(folder, name)
		write(t, path, text)
		var zipped bytes.Buffer
		z := gzip.NewWriter(&zipped)
		if _, err := z.Write(text); err != nil {
			t.Fatal(err)
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		write(t, path+".gz", zipped.Bytes())
		for _, path := range []string{path, path + ".gz"} {
			more, last := stopped(t, path, 1, nil)
			var skip *Skip
			if more != 1 || !errors.Is(last, context.Canceled) || !errors.As(last, &skip) || skip.Reason != SkippedFile {
				t.Errorf("%s: %d more, the last %v", path, more, last)
			}
		}
	}
}

// TestReadingAPipeEndsWithItsContext while nothing comes out of it, and while nobody has opened it to write.
func TestReadingAPipeEndsWithItsContext(t *testing.T) {
	lonely, fifo := filepath.Join(t.TempDir(), "lonely"), filepath.Join(t.TempDir(), "fifo")
	open := func(path string) *os.File {
		f, err := os.OpenFile(path, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	for _, path := range []string{lonely, fifo} { // who waited for a writer of the one may still read what is written to it
		if err := syscall.Mkfifo(path, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	more, last := stopped(t, lonely, 0, nil)
	if more != 1 || !errors.Is(last, context.Canceled) {
		t.Errorf("without a writer: %d more, the last %v", more, last)
	}
	if err := open(lonely).Close(); err != nil { // lets go who waits for a writer
		t.Fatal(err)
	}
	writer := open(fifo)
	more, last = stopped(t, fifo, 1, func() {
		if _, err := writer.WriteString("no decision\n"); err != nil {
			t.Fatal(err)
		}
	})
	if more != 1 || !errors.Is(last, context.Canceled) {
		t.Errorf("with one: %d more, the last %v", more, last)
	}
	if err := writer.Close(); err != nil {
		t.Fatal(err)
	}
}
