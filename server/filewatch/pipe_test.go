//go:build unix

package filewatch

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

func TestReadOfAPipe(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pipe")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	// Nobody writes: a process whose file was replaced by a pipe must go on, and be able to end.
	if data, err := Read(path, 100); err != nil || len(data) != 0 {
		t.Errorf("Read of a pipe without a writer = %q, %v", data, err)
	}
	writer, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer writer.Close()
	if _, err := writer.WriteString("endpoints: []"); err != nil {
		t.Fatal(err)
	}
	if _, err := Read(path, 5); err == nil {
		t.Error("a pipe with more than the bound was read")
	}
}
