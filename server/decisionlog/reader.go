package decisionlog

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// maxLine bounds a line of JSON, in bytes: many times a decision about all endpoints that there can be.
const maxLine = 64 << 20

// Why something of a log could not be read.
const (
	// SkippedRow is a row that is no decision.
	SkippedRow = "not a decision"
	// SkippedNumber is a row with a number that no decision has: NaN, an infinite one, or one beyond 1e18.
	SkippedNumber = "an impossible number"
	// SkippedLong is a line longer than 64 MiB.
	SkippedLong = "too long"
	// SkippedTail is a last line without its end, as a file that is being written has.
	SkippedTail = "cut off"
	// SkippedFile is a file, or the rest of one, that cannot be read.
	SkippedFile = "unreadable"
	// SkippedUnfinished is Parquet that is being written, or lacks its end.
	SkippedUnfinished = "unfinished"
)

// A Skip is the error for what a Reader passes over: a row, or all that is left of a file.
type Skip struct {
	// File is the file's path.
	File string
	// Row counts the rows of the file from 1; 0 where the whole file is meant.
	Row int64
	// Reason is one of the Skipped constants.
	Reason string
	// Err is what went wrong; nil where the reason says all.
	Err error
}

// Error names the file and the row.
func (s *Skip) Error() string {
	at := s.File
	if s.Row > 0 {
		at = fmt.Sprintf("%s: row %d", s.File, s.Row)
	}
	if s.Err == nil {
		return at + ": " + s.Reason
	}
	return fmt.Sprintf("%s: %s: %v", at, s.Reason, s.Err)
}

// Unwrap returns what went wrong.
func (s *Skip) Unwrap() error { return s.Err }

// Reader reads the decisions of log files, one at a time: JSON lines, gzipped or not, and Parquet. What a file is, its first
// bytes say.
type Reader struct {
	files []string
	skips []*Skip // files that are there and cannot be read
	size  int64
	read  atomic.Int64
}

// NewReader finds the files of the paths: each a file, a folder, of which it takes the files of decision logs in the order
// of their names, or [Stdin]. A path that is not there is an error, and so is a folder without a file to read.
func NewReader(paths ...string) (*Reader, error) {
	r := &Reader{}
	var errs []error
	for _, path := range paths {
		errs = append(errs, r.add(path))
	}
	if len(paths) == 0 {
		errs = append(errs, errors.New("no file or folder of a decision log is given"))
	}
	return r, errors.Join(errs...)
}

func (r *Reader) add(path string) error {
	if path == Stdin {
		r.files = append(r.files, path)
		return nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !info.IsDir() {
		r.files, r.size = append(r.files, path), r.size+info.Size()
		return nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	before := len(r.files) + len(r.skips)
	for _, e := range entries {
		file := filepath.Join(path, e.Name())
		switch {
		case e.IsDir():
		case unfinished(e.Name()):
			r.skips = append(r.skips, &Skip{File: file, Reason: SkippedUnfinished})
		case isLog(e.Name()):
			r.files = append(r.files, file)
			if info, err := e.Info(); err == nil {
				r.size += info.Size()
			}
		}
	}
	if len(r.files)+len(r.skips) == before {
		return fmt.Errorf("%s: holds no file of a decision log: none ends in .jsonl, .jsonl.gz, .jsonl.active or .parquet", path)
	}
	return nil
}

func unfinished(name string) bool {
	return strings.HasSuffix(name, brokenSuffix) || strings.HasSuffix(name, "."+string(Parquet)+activeSuffix)
}

func isLog(name string) bool {
	name = strings.TrimSuffix(strings.TrimSuffix(name, activeSuffix), ".gz")
	return strings.HasSuffix(name, "."+string(JSONLines)) || strings.HasSuffix(name, "."+string(Parquet))
}

// Files are the files that will be read, in order.
func (r *Reader) Files() []string { return slices.Clone(r.files) }

// Progress is how much of the files has been read, and their size, in bytes on disk. It may be asked while another
// goroutine reads. Standard input has no size.
func (r *Reader) Progress() (read, size int64) { return min(r.read.Load(), r.size), r.size }

// Decisions yields the decisions, file by file and row by row. An error is a *[Skip], beside a nil decision, after which
// reading goes on. It holds one row of JSON lines, or one row group of Parquet, in memory. Each decision is the caller's.
//
// Once ctx is over, what is left of each file is a Skip with ctx's error, also where a pipe has nothing to read.
func (r *Reader) Decisions(ctx context.Context) iter.Seq2[*decisionv1.Decision, error] {
	return func(yield func(*decisionv1.Decision, error) bool) {
		r.read.Store(0)
		for _, s := range r.skips {
			if !yield(nil, s) {
				return
			}
		}
		for _, path := range r.files {
			if !r.file(ctx, path, yield) {
				return
			}
		}
	}
}

// file yields what is in a file. It reports whether to go on with the next.
func (r *Reader) file(ctx context.Context, path string, yield func(*decisionv1.Decision, error) bool) bool {
	if !regular(path) {
		from := pumped(ctx, path)
		defer func() { _ = from.Close() }()
		return r.stream(ctx, path, from, nil, yield)
	}
	f, err := os.Open(path)
	if err != nil {
		return yield(nil, &Skip{File: path, Reason: SkippedFile, Err: err})
	}
	defer func() { _ = f.Close() }()
	return r.stream(ctx, path, f, f, yield)
}

// stream yields what comes out of a file; f is the file where it is a regular one.
func (r *Reader) stream(ctx context.Context, path string, in io.Reader, f *os.File, yield func(*decisionv1.Decision, error) bool) bool {
	from := bufio.NewReaderSize(&counted{in, &r.read}, 256<<10)
	head, _ := from.Peek(4)
	switch {
	case bytes.Equal(head, []byte("PAR1")):
		if f == nil {
			return yield(nil, &Skip{File: path, Reason: SkippedFile, Err: errors.New("parquet is read from files only: its end comes first")})
		}
		return r.parquet(f, yield)
	case bytes.HasPrefix(head, []byte{0x1f, 0x8b}):
		unzipped, err := gzip.NewReader(from)
		if err != nil {
			return yield(nil, &Skip{File: path, Reason: SkippedFile, Err: err})
		}
		from = bufio.NewReaderSize(unzipped, 256<<10)
	}
	// What is unzipped, and lines of which none is yielded, are long however little is read of the disk.
	return readLines(path, bufio.NewReaderSize(&until{ctx, from}, 64<<10), yield)
}

// regular reports whether a path leads to a regular file, or to none.
func regular(path string) bool {
	if path == Stdin {
		return false
	}
	info, err := os.Stat(path)
	return err != nil || info.Mode().IsRegular()
}

// pumped reads what may have nothing to read for long, such as a pipe, until ctx is over. It is opened beside too: that may wait for
// a writer. Where somebody waits for it still when reading is over, that ends with the process.
func pumped(ctx context.Context, path string) io.ReadCloser {
	out, in := io.Pipe()
	stop := context.AfterFunc(ctx, func() { _ = in.CloseWithError(context.Cause(ctx)) })
	go func() {
		defer stop()
		f := os.Stdin
		if path != Stdin {
			var err error
			if f, err = os.Open(path); err != nil {
				_ = in.CloseWithError(err)
				return
			}
			defer func() { _ = f.Close() }()
		}
		_, err := io.Copy(in, f)
		_ = in.CloseWithError(err)
	}()
	return out
}

// until reads until ctx is over.
type until struct {
	ctx context.Context //nolint:containedctx // of one iteration
	io.Reader
}

// Read implements io.Reader.
func (u *until) Read(b []byte) (int, error) {
	if u.ctx.Err() != nil {
		return 0, context.Cause(u.ctx)
	}
	return u.Reader.Read(b)
}

// counted counts the bytes that are read.
type counted struct {
	io.Reader
	n *atomic.Int64
}

// Read implements io.Reader.
func (c *counted) Read(b []byte) (int, error) {
	n, err := c.Reader.Read(b)
	c.n.Add(int64(n))
	return n, err
}

// readLines yields the decisions of JSON lines.
func readLines(path string, from *bufio.Reader, yield func(*decisionv1.Decision, error) bool) bool {
	var line []byte
	for row := int64(1); ; row++ {
		var long bool
		var err error
		line, long, err = readLine(from, line[:0])
		text := bytes.TrimSpace(line)
		skip := &Skip{File: path, Row: row}
		switch {
		case err != nil && !errors.Is(err, io.EOF):
			skip.Reason, skip.Err = SkippedFile, err
			return yield(nil, skip)
		case long:
			skip.Reason = SkippedLong
			if !yield(nil, skip) {
				return false
			}
		case len(text) > 0:
			d := &decisionv1.Decision{}
			bad := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(text, d)
			if bad == nil && proto.Size(d) == 0 {
				bad = errNothing
			}
			if bad != nil {
				skip.Reason, skip.Err = SkippedRow, bad
				if err != nil {
					skip.Reason = SkippedTail
				}
				if !yield(nil, skip) {
					return false
				}
			} else if !yieldRow(d, skip, yield) {
				return false
			}
		}
		if err != nil {
			return true
		}
	}
}

// yieldRow yields a decision, or that it cannot be one. It reports whether to go on.
func yieldRow(d *decisionv1.Decision, at *Skip, yield func(*decisionv1.Decision, error) bool) bool {
	if at.Err = impossible(d); at.Err != nil {
		at.Reason = SkippedNumber
		return yield(nil, at)
	}
	return yield(d, nil)
}

// errNothing is said of JSON that has none of a decision's fields.
var errNothing = errors.New("it has no field of a decision")

// readLine appends the next line to b. Of one that is too long it reads on to the end and keeps nothing more.
func readLine(from *bufio.Reader, b []byte) (line []byte, long bool, err error) {
	for {
		part, err := from.ReadSlice('\n')
		if long = long || len(b)+len(part) > maxLine; !long {
			b = append(b, part...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return b, long, err
		}
	}
}
