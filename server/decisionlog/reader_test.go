package decisionlog

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"
	"pgregory.net/rapid"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
)

// readAll reads paths: the decisions, and what was passed over as "file:row reason".
func readAll(t fataler, paths ...string) (all []*decisionv1.Decision, skipped []string) {
	t.Helper()
	r, err := NewReader(paths...)
	if err != nil {
		t.Fatal(err)
	}
	for d, err := range r.Decisions(context.Background()) {
		if skip := new(Skip); errors.As(err, &skip) {
			skipped = append(skipped, filepath.Base(skip.File)+" "+skip.Reason)
			if d != nil || skip.Error() == "" {
				t.Fatalf("%v beside %v", d, err)
			}
			continue
		} else if err != nil {
			t.Fatal(err)
		}
		all = append(all, d)
	}
	if read, size := r.Progress(); read != size && len(skipped) == 0 {
		t.Fatalf("%d of %d bytes were read", read, size)
	}
	return all, skipped
}

func write(t fataler, path string, content []byte) {
	t.Helper()
	if err := os.WriteFile(path, content, 0o644); err != nil {
		t.Fatal(err)
	}
}

func inLines(t fataler, all ...*decisionv1.Decision) (b []byte) {
	t.Helper()
	for _, d := range all {
		b = appendLine(b, shapeFor(t), d)
	}
	return b
}

func zipped(t fataler, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	if _, err := w.Write(content); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// What the log writes, the reader reads: all formats, all fields. It takes rows apart more than once.
func TestReaderReadsWhatIsWritten(t *testing.T) {
	folder, most := t.TempDir(), rowsAtATime+4
	if os.Getenv("SLUICE_LONG") != "" {
		most = 5 * rowsAtATime
	}
	formats := map[string]func(t fataler, all []*decisionv1.Decision) []byte{
		"a.jsonl":    func(t fataler, all []*decisionv1.Decision) []byte { return inLines(t, all...) },
		"a.jsonl.gz": func(t fataler, all []*decisionv1.Decision) []byte { return zipped(t, inLines(t, all...)) },
		"a.parquet":  inParquet,
	}
	rapid.Check(t, func(t *rapid.T) {
		distinct := make([]*decisionv1.Decision, rapid.IntRange(1, 4).Draw(t, "distinct"))
		for i := range distinct {
			distinct[i] = drawn(t)
			possible(distinct[i].ProtoReflect())
		}
		want := make([]*decisionv1.Decision, rapid.IntRange(1, most).Draw(t, "rows"))
		for i := range want {
			want[i] = proto.CloneOf(distinct[i%len(distinct)])
			want[i].Id = uint64(i) + 1<<40
		}
		name := rapid.SampledFrom(slices.Sorted(maps.Keys(formats))).Draw(t, "format")
		path := filepath.Join(folder, name)
		write(t, path, formats[name](t, want))
		got, skipped := readAll(t, path)
		if !slices.EqualFunc(want, got, func(a, b *decisionv1.Decision) bool { return proto.Equal(a, b) }) || skipped != nil {
			t.Fatalf("%s: skipped %v, (-want +got):\n%s", name, skipped, cmp.Diff(want, got, protocmp.Transform()))
		}
	})
}

// A folder is read in the order of its names; what cannot be read is said, and costs nothing else.
func TestReaderOfAFolder(t *testing.T) {
	folder := t.TempDir()
	d := func(id uint64) *decisionv1.Decision { return &decisionv1.Decision{Id: id} }
	name := func(n, end string) string {
		return filepath.Join(folder, "decisions-2026113"+n+"T161200.123Z-3fa9c17e."+end)
	}
	write(t, name("1", "jsonl"), append(append(inLines(t, d(1)), "{\"other\":1}\nnot json\n\n"...), inLines(t, d(2))...))
	write(t, name("2", "parquet"), inParquet(t, []*decisionv1.Decision{d(3), d(4), d(5)}))
	write(t, name("3", "parquet"), inParquet(t, []*decisionv1.Decision{d(99)})[:200])
	write(t, name("4", "jsonl.active"), append(inLines(t, d(6)), `{"id": 7, "ti`...))
	write(t, name("5", "parquet.active"), []byte("PAR1"))
	write(t, name("5", "parquet.broken"), []byte("PAR1"))
	write(t, name("6", "jsonl.gz"), zipped(t, inLines(t, d(8), d(8)))[:30])
	write(t, filepath.Join(folder, "notes.txt"), []byte("none of ours"))
	all, skipped := readAll(t, folder)
	var ids []uint64
	for _, d := range all {
		ids = append(ids, d.GetId())
	}
	if diff := cmp.Diff([]uint64{1, 2, 3, 4, 5, 6}, ids); diff != "" {
		t.Errorf("decisions (-want +got):\n%s", diff)
	}
	for i, s := range skipped {
		file, reason, _ := strings.Cut(s, " ")
		skipped[i] = file[len("decisions-2026113"):len("decisions-20261131")] + " " + reason
	}
	want := []string{"5 unfinished", "5 unfinished", "1 not a decision", "1 not a decision", "3 unreadable", "4 cut off", "6 unreadable"}
	if diff := cmp.Diff(want, skipped); diff != "" {
		t.Errorf("skipped (-want +got):\n%s", diff)
	}
}

func TestReaderWithoutAnythingToRead(t *testing.T) {
	empty := t.TempDir()
	for _, paths := range [][]string{nil, {empty}, {filepath.Join(empty, "gone.jsonl")}} {
		if _, err := NewReader(paths...); err == nil {
			t.Errorf("%q is no error", paths)
		}
	}
}

// A line beyond the bound is passed over, and the next one read.
func TestReaderBoundsLines(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.jsonl")
	long := append(bytes.Repeat([]byte{' '}, maxLine+1), '\n')
	write(t, path, append(long, inLines(t, &decisionv1.Decision{Id: 1})...))
	all, skipped := readAll(t, path)
	if len(all) != 1 || all[0].GetId() != 1 || len(skipped) != 1 || skipped[0] != "a.jsonl too long" {
		t.Errorf("read %v, skipped %v", all, skipped)
	}
}

// A caller may stop anywhere.
func TestReaderStops(t *testing.T) {
	folder := t.TempDir()
	all := []*decisionv1.Decision{{Id: 1}, {Id: 2}, {Id: 3}}
	write(t, filepath.Join(folder, "a.jsonl"), append([]byte("bad\n"), inLines(t, all...)...))
	write(t, filepath.Join(folder, "b.parquet"), inParquet(t, all))
	r, err := NewReader(folder)
	if err != nil {
		t.Fatal(err)
	}
	for stop := 1; stop <= 7; stop++ {
		n := 0
		for d, err := range r.Decisions(t.Context()) {
			if (d == nil) == (err == nil) {
				t.Fatalf("%v beside %v", d, err)
			}
			if n++; n == stop {
				break
			}
		}
		if n != stop {
			t.Errorf("stopped after %d, want %d", n, stop)
		}
	}
}

// FuzzReader: no file makes the reader fail, and what it reads it can write.
func FuzzReader(f *testing.F) {
	some := []*decisionv1.Decision{{Id: 1, Candidates: []*decisionv1.Candidate{{Labels: map[string]string{"a": "b"}}, {}}}, {Picks: []uint32{1}, RunnerUpMargin: proto.Float64(2)}}
	parquetSome := inParquet(f, some)
	f.Add(inLines(f, some...))
	f.Add(zipped(f, inLines(f, some...)))
	f.Add(parquetSome)
	f.Add(parquetSome[:len(parquetSome)-9])
	f.Add([]byte("PAR1\x00\x00\x00\x00PAR1"))
	f.Add([]byte(`{"id":"1","candidates":[null,{"scores":["NaN"]}]}`))
	f.Fuzz(func(t *testing.T, content []byte) {
		path := filepath.Join(t.TempDir(), "a")
		write(t, path, content)
		all, _ := readAll(t, path)
		for _, d := range all {
			if got := fromLine(t, inLines(t, d)); !proto.Equal(got, d) {
				t.Fatalf("written and read again:\n%v\nwas\n%v", got, d)
			}
		}
	})
}
