package decisionlog

import (
	"bytes"
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"pgregory.net/rapid"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

func gathered(t *testing.T, registry *prometheus.Registry) []*dto.MetricFamily {
	t.Helper()
	all, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// TestFilesAreFullOrOld: a file is finished at its size and at its age, with a name that says when it was begun, and the
// oldest are deleted.
func TestFilesAreFullOrOld(t *testing.T) {
	for _, format := range []Format{JSONLines, Parquet} {
		t.Run(string(format), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 4)
				o := b.options(t, func(o *Options) { o.Format, o.RotateInterval, o.MaxFiles = format, time.Minute, 3 })
				foreign := filepath.Join(o.Folder, "decisions.jsonl")
				if err := os.WriteFile(foreign, []byte("mine\n"), 0o600); err != nil {
					t.Fatal(err)
				}
				l := open(t, o)
				b.decide(t, l, "").end(l)
				synctest.Wait()
				if got := names(t, o.Folder); len(got) != 2 || !strings.HasSuffix(got[0], "Z-"+tagOf(got[0])+"."+string(format)+activeSuffix) ||
					!strings.HasPrefix(got[0], "decisions-20000101T000000.000Z-") {
					t.Fatalf("while it is written: %q", got)
				}
				time.Sleep(59 * time.Second)
				synctest.Wait()
				if got := names(t, o.Folder); !strings.HasSuffix(got[0], activeSuffix) {
					t.Fatalf("finished early: %q", got)
				}
				time.Sleep(time.Second)
				synctest.Wait()
				if got := names(t, o.Folder); strings.HasSuffix(got[0], activeSuffix) {
					t.Fatalf("not finished: %q", got)
				}
				time.Sleep(time.Hour)
				synctest.Wait()
				if got := names(t, o.Folder); len(got) != 2 {
					t.Fatalf("files without rows: %q", got)
				}
				for range 6 {
					b.decide(t, l, "").end(l)
					synctest.Wait()
					time.Sleep(time.Minute)
					synctest.Wait()
				}
				got := names(t, o.Folder)
				if len(got) != 4 || got[0] != "decisions-20000101T010400.000Z-"+tagOf(got[0])+"."+string(format) || !slices.Contains(got, "decisions.jsonl") {
					t.Errorf("%q", got)
				}
				if s := l.stats; s.finished.Load() != 7 || s.deleted.Load() != 4 || s.files.Load() != 3 || s.fileBytes.Load() == 0 {
					t.Errorf("%d finished, %d deleted, %d files", s.finished.Load(), s.deleted.Load(), s.files.Load())
				}
				l.Close()
			})
		})
	}
}

func btoi(b bool) int { return map[bool]int{true: 1}[b] }

func tagOf(name string) string {
	m := regexp.MustCompile(`Z-([0-9a-f]{8})[.]`).FindStringSubmatch(name)
	if m == nil {
		return "no tag"
	}
	return m[1]
}

// TestFilesHaveABound: no file is larger than it may be, but one of a single row; nothing is lost between two.
func TestFilesHaveABound(t *testing.T) {
	for _, tc := range []struct {
		format    Format
		endpoints int
		limit     int64
		rows      int
	}{{JSONLines, 10, 64 << 10, 200}, {JSONLines, 100, 1000, 5}, {Parquet, 30, 64 << 10, 80}} {
		b := newBench(t, tc.endpoints)
		o := b.options(t, func(o *Options) {
			o.Format, o.MaxFileBytes, o.MaxFiles, o.MaxPendingBytes = tc.format, tc.limit, 100, 1<<30
		})
		l := open(t, o)
		var want []*decisionv1.Decision
		for range tc.rows {
			want = append(want, b.decide(t, l, "").end(l))
		}
		l.Close()
		same(t, want, found(t, o.Folder))
		all := names(t, o.Folder)
		if len(all) < 2 {
			t.Errorf("%s: only %q", tc.format, all)
		}
		for _, name := range all {
			info, err := os.Stat(filepath.Join(o.Folder, name))
			if err != nil {
				t.Fatal(err)
			}
			if info.Size() > tc.limit && (len(all) != tc.rows || tc.format != JSONLines) {
				t.Errorf("%s has %d bytes, with a limit of %d", name, info.Size(), tc.limit)
			}
		}
	}
}

// TestNoFileIsOverwritten: one that is there, finished or not, is left.
func TestNoFileIsOverwritten(t *testing.T) {
	d, err := openFolder(t.TempDir(), newStats())
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 1, 2, 3, 4, 5, 678_000_000, time.FixedZone("east", 7200))
	seen := map[string]bool{}
	for i := range 10 {
		f, err := d.create(JSONLines, at)
		if err != nil {
			t.Fatal(err)
		}
		if seen[f.Name()] || !strings.HasPrefix(filepath.Base(f.Name()), "decisions-20260102T010405.678Z-") {
			t.Errorf("%s", f.Name())
		}
		seen[f.Name()] = true
		if i%2 == 0 {
			if _, err := f.WriteString("{}\n"); err != nil {
				t.Fatal(err)
			}
			if _, err := d.settle(f); err != nil {
				t.Fatal(err)
			}
		}
		t.Cleanup(func() { f.Close() })
	}
	if got := names(t, d.path); len(got) != 10 || !slices.IsSorted(got) {
		t.Errorf("%q", got)
	}
}

// TestCutAnywhere: whatever a crash leaves of JSON lines, the next process makes whole lines of it.
func TestCutAnywhere(t *testing.T) {
	b := newBench(t, 2)
	o := b.options(t, nil)
	l := open(t, o)
	for range 3 {
		b.decide(t, l, "").end(l)
	}
	l.Close()
	content, err := os.ReadFile(filepath.Join(o.Folder, names(t, o.Folder)[0]))
	if err != nil {
		t.Fatal(err)
	}
	parent := t.TempDir()
	n := 0
	rapid.Check(t, func(rt *rapid.T) {
		n++
		cut := content[:rapid.IntRange(0, len(content)).Draw(rt, "cut")]
		whole := cut[:bytes.LastIndexByte(cut, '\n')+1]
		folder := filepath.Join(parent, strconv.Itoa(n))
		if err := os.Mkdir(folder, 0o700); err != nil {
			rt.Fatal(err)
		}
		const name = "decisions-20260102T010405.678Z-0badcafe.jsonl"
		if err := os.WriteFile(filepath.Join(folder, name+activeSuffix), cut, 0o600); err != nil {
			rt.Fatal(err)
		}
		d, err := openFolder(folder, newStats())
		if err != nil {
			rt.Fatal(err)
		}
		if _, broken, err := d.recover(); err != nil || len(broken) != btoi(len(whole) == 0) {
			rt.Fatalf("broken %v, %v", broken, err)
		}
		got, err := os.ReadFile(filepath.Join(folder, name))
		if !bytes.Equal(got, whole) || (err != nil) != (len(whole) == 0) {
			rt.Fatalf("%d bytes cut to %d, want %d (%v)", len(cut), len(got), len(whole), err)
		}
		if left := names(t, folder); len(left) != 1-btoi(len(whole) == 0) {
			rt.Fatalf("left %q", left)
		}
	})
}

// TestWhatAnotherProcessLeft: its unfinished files are settled unless it still lives, and nothing else is touched.
func TestWhatAnotherProcessLeft(t *testing.T) {
	b := newBench(t, 2)
	o := b.options(t, func(o *Options) { o.MaxFiles = 3 })
	put := func(name, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(o.Folder, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	put("decisions-20260102T010405.001Z-0badcafe.jsonl", "{}\n")
	put("decisions-20260102T010405.002Z-0badcafe.jsonl", "{}\n")
	put("decisions-20260102T010405.003Z-0badcafe.parquet.active", "PAR1 and some")
	put("decisions-20260102T010405.004Z-0badcafe.jsonl.active", "{}\n{\"id\":")
	put("else.active", "mine")
	put("decisions-20260102T010405.000Z-0badcafe.jsonl.bak", "mine")
	living, err := openFolder(o.Folder, newStats())
	if err != nil {
		t.Fatal(err)
	}
	f, err := living.create(JSONLines, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := f.WriteString("{}\n{"); err != nil {
		t.Fatal(err)
	}
	var said lockedBuffer
	o.Logger = slog.New(slog.NewTextHandler(&said, nil))
	l := open(t, o)
	want := []string{
		"decisions-20260102T010405.000Z-0badcafe.jsonl.bak", "decisions-20260102T010405.002Z-0badcafe.jsonl",
		"decisions-20260102T010405.003Z-0badcafe.parquet.broken", "decisions-20260102T010405.004Z-0badcafe.jsonl", filepath.Base(f.Name()), "else.active",
	}
	if diff := cmp.Diff(want, names(t, o.Folder)); diff != "" {
		t.Error(diff)
	}
	if l.stats.recovered.Load() != 2 || l.stats.deleted.Load() != 1 || !strings.Contains(said.String(), "003Z-0badcafe.parquet.active") {
		t.Errorf("%d recovered, %d deleted: %s", l.stats.recovered.Load(), l.stats.deleted.Load(), said.String())
	}
}

// disk is an output that fails as it is told.
type disk struct {
	bytes.Buffer
	fails []error // for the tries to come; nil is a success
	half  bool    // a failing try writes half
	tries int
	sync  error
}

func (d *disk) Write(b []byte) (int, error) {
	d.tries++
	if len(d.fails) > 0 {
		err := d.fails[0]
		d.fails = d.fails[1:]
		if err != nil {
			n := 0
			if d.half {
				n = len(b) / 2
				d.Buffer.Write(b[:n])
			}
			return n, err
		}
	}
	return d.Buffer.Write(b)
}

func (d *disk) Sync() error { return d.sync }
func (*disk) Close() error  { return nil }

// TestFullDisk: while there is no room decisions wait, it is said once a minute, and then the file is whole.
func TestFullDisk(t *testing.T) {
	for _, format := range []Format{JSONLines, Parquet} {
		t.Run(string(format), func(t *testing.T) {
			d := &disk{half: true}
			var want []*decisionv1.Decision
			synctest.Test(t, func(t *testing.T) {
				b := newBench(t, 4)
				var said lockedBuffer
				l, w, err := prepare(b.options(t, func(o *Options) { o.Format, o.Logger = format, slog.New(slog.NewTextHandler(&said, nil)) }))
				if err != nil {
					t.Fatal(err)
				}
				for range 12 { // 1, 2, 4, 8, 16 s, then 30 s each: four minutes
					d.fails = append(d.fails, &fs.PathError{Op: "write", Err: syscall.ENOSPC})
				}
				name := filepath.Join(l.options.Folder, "decisions-20260102T010405.678Z-0badcafe."+string(format)+activeSuffix)
				if err := os.WriteFile(name, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				w.create = func(time.Time) (output, string, error) { return d, name, nil }
				go w.run()
				for range 30 {
					want = append(want, b.decide(t, l, "").end(l))
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if format == JSONLines { // Parquet has nothing for the disk yet
					if l.stats.errors.Load() != 12 || strings.Count(said.String(), "cannot be written") > 5 || !strings.Contains(said.String(), "no space left") ||
						strings.Count(said.String(), "written again") != 1 {
						t.Errorf("%d errors:\n%s", l.stats.errors.Load(), said.String())
					}
				} else {
					time.Sleep(time.Hour) // the file's age finishes it
					synctest.Wait()
				}
				l.Close()
				if l.stats.dropped[droppedWrite].Load() != 0 || l.stats.rows.Load() != 30 || l.stats.errors.Load() < 12 {
					t.Errorf("%d lost, %d rows, %d errors", l.stats.dropped[droppedWrite].Load(), l.stats.rows.Load(), l.stats.errors.Load())
				}
			})
			all := fromParquetOrLines(t, format, d.Bytes())
			for _, got := range all {
				got.TimeUnixNano = 0
			}
			same(t, want, all)
		})
	}
}

func fromParquetOrLines(t *testing.T, format Format, content []byte) (all []*decisionv1.Decision) {
	t.Helper()
	if format == Parquet {
		return fromParquet(t, content)
	}
	for line := range bytes.Lines(content) {
		all = append(all, fromLine(t, line))
	}
	return all
}

// TestBadFile: a file that fails for another reason is given up after three tries, its rows are counted, and the next
// file takes those that follow.
func TestBadFile(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		var said lockedBuffer
		l, w, err := prepare(b.options(t, func(o *Options) { o.Logger = slog.New(slog.NewTextHandler(&said, nil)) }))
		if err != nil {
			t.Fatal(err)
		}
		broken := []error{syscall.EIO, syscall.EIO, syscall.EIO, syscall.EIO, syscall.EIO}
		disks := []*disk{{fails: broken}, {}}
		w.create = func(time.Time) (output, string, error) {
			d := disks[0]
			if len(disks) > 1 {
				disks = disks[1:]
			}
			return d, filepath.Join(l.options.Folder, "gone"+activeSuffix), nil
		}
		first := disks[0]
		go w.run()
		b.decide(t, l, "").end(l)
		time.Sleep(time.Minute)
		synctest.Wait()
		if first.tries != triesPerFile || l.stats.dropped[droppedWrite].Load() != 1 || !strings.Contains(said.String(), "given up") {
			t.Errorf("%d tries, %d lost:\n%s", first.tries, l.stats.dropped[droppedWrite].Load(), said.String())
		}
		b.decide(t, l, "").end(l)
		l.Close()
		if got := fromParquetOrLines(t, JSONLines, disks[0].Bytes()); len(got) != 1 || got[0].GetId() != 2 {
			t.Errorf("in the second file: %v", got)
		}
	})
}

// TestNoFile: where none can be made, decisions wait until one can; Close does not wait for it.
func TestNoFile(t *testing.T) {
	for _, comesBack := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 4)
			o := b.options(t, nil)
			l := open(t, o)
			if err := os.Remove(o.Folder); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(o.Folder, nil, 0o600); err != nil { // in the folder's place
				t.Fatal(err)
			}
			for range 5 {
				b.decide(t, l, "").end(l)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if l.queued.Load() != 5 || l.stats.errors.Load() < 5 {
				t.Errorf("%d queued, %d errors", l.queued.Load(), l.stats.errors.Load())
			}
			if err := os.Remove(o.Folder); err != nil {
				t.Fatal(err)
			}
			if !comesBack {
				if err := os.WriteFile(o.Folder, nil, 0o600); err != nil {
					t.Fatal(err)
				}
				l.Close()
				if l.stats.dropped[droppedWrite].Load() != 5 || l.held.Load() != 0 {
					t.Errorf("%d lost, %d bytes held", l.stats.dropped[droppedWrite].Load(), l.held.Load())
				}
				return
			}
			time.Sleep(time.Minute)
			l.Close()
			if got := found(t, o.Folder); len(got) != 5 {
				t.Errorf("%d rows", len(got))
			}
		})
	}
}

func TestFolderThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := Open(Options{Folder: filepath.Join(file, "log")})
	if err == nil || !errors.Is(err, syscall.ENOTDIR) || !strings.Contains(err.Error(), file) {
		t.Errorf("%v", err)
	}
}
