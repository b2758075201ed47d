package decisionlog

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
	"github.com/parquet-go/parquet-go/compress"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// errFull says that a row belongs into the next file.
var errFull = errors.New("the file is full")

// file is a file being written. What it is to hold is first put together in memory, so that an error of the disk can be
// waited out.
type file struct {
	to      output
	name    string
	opened  time.Time
	rows    int64
	tail    tail
	written int64 // bytes, on disk
	encoder encoder
}

// output is what a file needs of the disk; *os.File has it.
type output interface {
	io.Writer
	Sync() error
	Close() error
}

// encoder makes the bytes of a file out of rows. It writes to memory alone.
type encoder interface {
	// add adds a row, or says errFull and has not.
	add(d *decisionv1.Decision) error
	// end adds what makes the file complete.
	end() error
	// lost is how many rows are lost with the bytes that are not on disk.
	lost() int64
}

// tail is what is not on disk yet.
type tail struct{ buf, rest []byte }

// Write implements io.Writer.
func (t *tail) Write(b []byte) (int, error) {
	if len(t.rest) == 0 {
		t.buf = t.buf[:0]
	} else if len(t.rest) < len(t.buf) {
		t.buf = t.buf[:copy(t.buf, t.rest)]
	}
	t.buf = append(t.buf, b...)
	t.rest = t.buf
	return len(b), nil
}

// flush brings what there is to the disk. After an error it goes on where it stopped.
func (f *file) flush() (int, error) {
	all := 0
	for len(f.tail.rest) > 0 {
		n, err := f.to.Write(f.tail.rest)
		f.tail.rest = f.tail.rest[n:]
		f.written += int64(n)
		all += n
		if err != nil {
			return all, err
		}
	}
	return all, nil
}

func (f *file) size() int64 { return f.written + int64(len(f.tail.rest)) }

// finish gives a complete file its last name.
func (f *file) finish() error {
	errs := []error{f.to.Sync(), os.Rename(f.name, strings.TrimSuffix(f.name, activeSuffix)), f.to.Close()}
	return errors.Join(errs...)
}

// lines encodes JSON lines.
type lines struct {
	file  *file
	shape *message
	limit int64
	row   []byte
	tails int64 // rows in the tail, or some that were
}

func (l *lines) add(d *decisionv1.Decision) error {
	l.row = appendLine(l.row[:0], l.shape, d)
	if l.file.rows > 0 && l.file.size()+int64(len(l.row)) > l.limit {
		return errFull
	}
	if len(l.file.tail.rest) == 0 {
		l.tails = 0
	}
	l.tails++
	_, err := l.file.tail.Write(l.row)
	return err
}

func (*lines) end() error { return nil }

func (l *lines) lost() int64 {
	if len(l.file.tail.rest) == 0 {
		return 0
	}
	return l.tails
}

// The largest row group, and what a group adds to the footer at most, in bytes.
const (
	maxGroupBytes = 8 << 20
	groupFooter   = 48 << 10
)

// rows encodes Parquet. A row group stays in memory until it is large enough.
type rows struct {
	file   *file
	shape  *message
	rower  rower
	writer *parquet.GenericWriter[any]
	limit  int64 // of the file
	group  int64 // limit of a group
	groups int64
	begun  int64 // size before the group
	empty  bool  // the group
}

func newRows(f *file, shape *message, schema *parquet.Schema, codec compress.Codec, limit int64) *rows {
	r := &rows{file: f, shape: shape, writer: newParquet(&f.tail, schema, codec), limit: limit, group: min(limit/4, maxGroupBytes), empty: true}
	r.rower.columns = make([][]parquet.Value, len(schema.Columns()))
	return r
}

func (r *rows) add(d *decisionv1.Decision) error {
	if r.empty && r.groups > 0 && r.file.size()+r.group+(r.groups+1)*groupFooter > r.limit {
		return errFull
	}
	if _, err := r.writer.WriteRows([]parquet.Row{r.rower.rowOf(r.shape, d)}); err != nil {
		return fmt.Errorf("a row of Parquet: %w", err)
	}
	r.empty = false
	if r.writer.Size()-r.begun < r.group {
		return nil
	}
	if err := r.writer.Flush(); err != nil {
		return fmt.Errorf("a row group of Parquet: %w", err)
	}
	r.groups++
	r.begun, r.empty = r.writer.Size(), true
	return nil
}

func (r *rows) end() error {
	if err := r.writer.Close(); err != nil {
		return fmt.Errorf("the end of Parquet: %w", err)
	}
	return nil
}

// lost is all: without its end nobody reads the file.
func (r *rows) lost() int64 { return r.file.rows }
