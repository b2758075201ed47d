//go:build linux

package main

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func says(text string) func(io.Writer) error {
	return func(w io.Writer) error {
		_, err := io.WriteString(w, text)
		return err
	}
}

// TestWriteTo: regular files are replaced, all else is written into.
func TestWriteTo(t *testing.T) {
	folder := t.TempDir()
	in := func(name string) string { return filepath.Join(folder, name) }
	if err := errors.Join(os.WriteFile(in("private"), []byte("before"), 0o600), os.Symlink("private", in("link")), os.Symlink("later", in("dangling"))); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		path, file string
		mode       fs.FileMode
	}{{"new", "new", 0o644}, {"private", "private", 0o600}, {"link", "private", 0o600}, {"dangling", "later", 0o644}} {
		if err := writeTo(in(tc.path), says("by "+tc.path)); err != nil {
			t.Errorf("%s: %v", tc.path, err)
		}
		info, err := os.Lstat(in(tc.file))
		if err != nil || info.Mode()&^0o022 != tc.mode&^0o022 {
			t.Errorf("%s: %v, %v", tc.path, info, err)
		}
		if got, err := os.ReadFile(in(tc.file)); err != nil || string(got) != "by "+tc.path {
			t.Errorf("%s: %q, %v", tc.path, got, err)
		}
	}
	for _, link := range []string{"link", "dangling"} {
		if info, err := os.Lstat(in(link)); err != nil || info.Mode()&fs.ModeSymlink == 0 {
			t.Errorf("%s is a link no more: %v, %v", link, info, err)
		}
	}
	half := func(w io.Writer) error { return errors.Join(says("half")(w), errors.New("torn")) }
	if err := writeTo(in("new"), half); err == nil || err.Error() != "torn" {
		t.Errorf("%v", err)
	}
	if got, err := os.ReadFile(in("new")); err != nil || string(got) != "by new" {
		t.Errorf("after half of a file: %q, %v", got, err)
	}
	if all, err := os.ReadDir(folder); err != nil || len(all) != 5 {
		t.Errorf("%v, %v", all, err)
	}
	if err := writeTo(folder, says("x")); err == nil || writeTo(filepath.Join(folder, "new", "x"), says("x")) == nil || writeTo(in("no/x"), says("x")) == nil {
		t.Errorf("a folder, and below a file: %v", err)
	}
}

// TestWriteToAPipe: a FIFO stays one, and a link to it too.
func TestWriteToAPipe(t *testing.T) {
	fifo, link := filepath.Join(t.TempDir(), "fifo"), filepath.Join(t.TempDir(), "link")
	if err := errors.Join(syscall.Mkfifo(fifo, 0o600), os.Symlink(fifo, link)); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{fifo, link} {
		r, err := os.OpenFile(fifo, os.O_RDWR, 0) // so that no writer waits for it
		if err != nil {
			t.Fatal(err)
		}
		if err := writeTo(path, says("hello")); err != nil {
			t.Fatal(err)
		}
		got := make([]byte, 5)
		if err := r.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.ReadFull(r, got); err != nil || string(got) != "hello" {
			t.Errorf("%s: %q, %v", path, got, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
		if info, err := os.Lstat(fifo); err != nil || info.Mode()&fs.ModeNamedPipe == 0 {
			t.Errorf("%s: a FIFO no more: %v, %v", path, info, err)
		}
	}
}

// TestWriteToStandardOutput by one of its names keeps what is printed beside it.
func TestWriteToStandardOutput(t *testing.T) {
	const args = "simulate --trace b2b --b2b-requests 40 --endpoints 2 --html "
	page := filepath.Join(t.TempDir(), "page")
	if code, stdout, stderr := captured(t, strings.Fields(args+page)...); code != 0 || !strings.Contains(stdout, "candidate") {
		t.Errorf("exit %d, %s", code, stderr)
	}
	code, stdout, stderr := captured(t, strings.Fields(args+"-")...)
	if code != 0 || !strings.HasPrefix(stdout, "<!DOCTYPE html>") || strings.Contains(stdout, "b2b\ncandidate") {
		t.Errorf("exit %d, %s, printed %.200s", code, stderr, stdout)
	}
	if code, stdout, stderr = captured(t, strings.Fields(args+page+" --json -")...); code != 0 || !strings.HasPrefix(stdout, "[") {
		t.Errorf("exit %d, %s, printed %.200s", code, stderr, stdout)
	}
	link := filepath.Join(t.TempDir(), "stdout")
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	if err := os.Symlink(f.Name(), link); err != nil {
		t.Fatal(err)
	}
	before := os.Stdout
	os.Stdout = f
	err = errors.Join(writeTo(link, says("one ")), says("two")(os.Stdout))
	os.Stdout = before
	if got, readErr := os.ReadFile(f.Name()); err != nil || readErr != nil || string(got) != "one two" {
		t.Errorf("%q, %v, %v", got, err, readErr)
	}
}
