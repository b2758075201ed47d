package decisionlog

import (
	"bytes"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/server/filelock"
)

// How a file's name begins, and what follows it while the file is written, and where it cannot be read any more.
const (
	prefix       = "decisions-"
	stamp        = "20060102T150405.000Z" // the time after it
	activeSuffix = ".active"
	brokenSuffix = ".broken"
)

// ours matches the names that this package gives: the time at which the file was begun, in UTC, and what tells processes
// apart that share the folder. Nothing else in the folder is touched. Names sort by age: where the clock went back, a name
// has a time after that of the newest one instead.
var ours = regexp.MustCompile(`^decisions-\d{8}T\d{6}\.\d{3}Z-[0-9a-f]{8}(\.\d+)?\.(jsonl|parquet)(\.active|\.broken)?$`)

// folder is where the files are.
type folder struct {
	path  string
	tag   string    // of this process
	last  time.Time // in the newest name that was seen
	stats *stats
}

// openFolder makes the folder and looks whether it can be written to.
func openFolder(path string, s *stats) (*folder, error) {
	var tag [4]byte
	if _, err := rand.Read(tag[:]); err != nil {
		return nil, fmt.Errorf("a name for files of the decision log: %w", err)
	}
	if err := os.MkdirAll(path, 0o755); err != nil {
		return nil, err
	}
	probe, err := os.CreateTemp(path, ".writable-")
	if err != nil {
		return nil, err
	}
	probe.Close()
	if err := os.Remove(probe.Name()); err != nil {
		return nil, err
	}
	return &folder{path: path, tag: hex.EncodeToString(tag[:]), stats: s}, nil
}

// create makes a new file, locked, that has a name of its own whatever is there.
func (d *folder) create(format Format, at time.Time) (*os.File, error) {
	if err := os.MkdirAll(d.path, 0o755); err != nil {
		return nil, err
	}
	if at = at.UTC(); at.Before(d.last) {
		at = d.last.Add(time.Millisecond)
	}
	for n := range 100 {
		name := prefix + at.Format(stamp) + "-" + d.tag
		if n > 0 {
			name += fmt.Sprintf(".%02d", n)
		}
		path := filepath.Join(d.path, name+"."+string(format))
		if _, err := os.Lstat(path); !errors.Is(err, fs.ErrNotExist) {
			if err != nil {
				return nil, err
			}
			continue
		}
		f, err := os.OpenFile(path+activeSuffix, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := filelock.Lock(f); err != nil {
			f.Close()
			return nil, fmt.Errorf("locking %s: %w", f.Name(), err)
		}
		d.saw(filepath.Base(path))
		return f, nil
	}
	return nil, fmt.Errorf("%s: no free name for a file", d.path)
}

// saw notes the time in a name of ours.
func (d *folder) saw(name string) {
	name = strings.TrimPrefix(name, prefix)
	if at, err := time.Parse(stamp, name[:min(len(name), len(stamp))]); err == nil && at.After(d.last) {
		d.last = at
	}
}

// settle gives a file that is not written any more its last name: JSON lines as far as they are whole, Parquet that lacks
// its end as broken. It reports whether anything of it can be read.
func (d *folder) settle(f *os.File) (readable bool, err error) {
	final := strings.TrimSuffix(f.Name(), activeSuffix)
	if strings.HasSuffix(final, "."+string(Parquet)) {
		return false, os.Rename(f.Name(), final+brokenSuffix)
	}
	size, err := wholeLines(f)
	if err != nil {
		return false, err
	}
	if size == 0 {
		return false, os.Remove(f.Name())
	}
	if err := f.Truncate(size); err != nil {
		return false, err
	}
	return true, os.Rename(f.Name(), final)
}

// wholeLines is the length of a file up to its last end of line.
func wholeLines(f *os.File) (int64, error) {
	end, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return 0, err
	}
	buf := make([]byte, 64<<10)
	for end > 0 {
		part := buf[:min(end, int64(len(buf)))]
		if _, err := f.ReadAt(part, end-int64(len(part))); err != nil {
			return 0, err
		}
		if i := bytes.LastIndexByte(part, '\n'); i >= 0 {
			return end - int64(len(part)) + int64(i) + 1, nil
		}
		end -= int64(len(part))
	}
	return 0, nil
}

// recover settles what processes left that are gone. It returns the names of the files, and of those that are broken.
func (d *folder) recover() (settled, broken []string, err error) {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return nil, nil, err
	}
	var errs []error
	for _, e := range entries {
		if !e.Type().IsRegular() || !ours.MatchString(e.Name()) || !strings.HasSuffix(e.Name(), activeSuffix) {
			continue
		}
		readable, mine, err := d.recoverFile(e.Name())
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("%s: %w", e.Name(), err))
		case mine && readable:
			settled = append(settled, e.Name())
		case mine:
			broken = append(broken, e.Name())
		}
	}
	return settled, broken, errors.Join(errs...)
}

// recoverFile settles one file; mine is false where another process is writing it.
func (d *folder) recoverFile(name string) (readable, mine bool, err error) {
	path := filepath.Join(d.path, name)
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return false, false, nil // its process has just finished it
	}
	if err != nil {
		return false, false, err
	}
	defer f.Close()
	if err := filelock.Lock(f); err != nil {
		return false, false, nil // somebody has it
	}
	opened, err := f.Stat()
	if err != nil {
		return false, false, err
	}
	if there, err := os.Lstat(path); err != nil || !os.SameFile(opened, there) {
		return false, false, nil // finished between the opening and the lock
	}
	d.stats.recovered.Add(1)
	readable, err = d.settle(f)
	return readable, true, err
}

// prune deletes the oldest finished files until at most keep are there.
func (d *folder) prune(keep int) error {
	entries, err := os.ReadDir(d.path)
	if err != nil {
		return err
	}
	var names []string // by age
	for _, e := range entries {
		if !e.Type().IsRegular() || !ours.MatchString(e.Name()) {
			continue
		}
		d.saw(e.Name())
		if !strings.HasSuffix(e.Name(), activeSuffix) {
			names = append(names, e.Name())
		}
	}
	var errs []error
	excess := max(0, len(names)-keep)
	for _, name := range names[:excess] {
		if err := os.Remove(filepath.Join(d.path, name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			errs = append(errs, err)
			continue
		}
		d.stats.deleted.Add(1)
	}
	var size int64
	for _, name := range names[excess:] {
		if info, err := os.Lstat(filepath.Join(d.path, name)); err == nil {
			size += info.Size()
		}
	}
	d.stats.files.Store(int64(len(names) - excess))
	d.stats.fileBytes.Store(size)
	return errors.Join(errs...)
}
