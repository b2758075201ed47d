package record

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestWriteAndRead(t *testing.T) {
	m := Machine{
		CPU: "A CPU", Cores: 2, Kernel: "linux 6.1", Go: "go1.26", Load: "0.10", Date: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
	}
	var out bytes.Buffer
	err := Write(&out, m, "bench -rounds 1", []string{"bench setup=a allocs=1.5", "bench setup=b allocs=2"}, func(w io.Writer) error {
		_, err := fmt.Fprint(w, "\nvia stream\n a table\n")
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	const want = `# date: 2026-01-02T03:04:05Z
# cpu: A CPU
# cores: 2
# kernel: linux 6.1
# go: go1.26
# load average: 0.10
# command: bench -rounds 1

bench setup=a allocs=1.5
bench setup=b allocs=2

via stream
 a table
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	rows, err := Read(&out)
	if diff := cmp.Diff([]Row{{"setup": "a", "allocs": "1.5"}, {"setup": "b", "allocs": "2"}}, rows); err != nil || diff != "" {
		t.Errorf("read again: %v %s", err, diff)
	}
}

func TestReadFaults(t *testing.T) {
	for text, want := range map[string]string{
		"\nbench a=1 b\n":               `line 2: "b": must be key=value`,
		"bench a=1 a=2\n":               "line 1: a: given twice",
		"bench =1\n":                    `line 1: "=1"`,
		"bench a=\n":                    `line 1: "a="`,
		strings.Repeat("x", maxLine+10): "after 0 rows: ",
	} {
		if rows, err := Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, %v, want an error that says %q", text, rows, err, want)
		}
	}
}

func TestFind(t *testing.T) {
	rows := []Row{{"setup": "a", "via": "x", "allocs": "1.5"}, {"setup": "a", "via": "y"}, {"setup": "b"}}
	r, err := Find(rows, map[string]string{"setup": "a", "via": "x"})
	if err != nil {
		t.Fatal(err)
	}
	if n, err := r.Number("allocs"); err != nil || n != 1.5 {
		t.Errorf("%g, %v", n, err)
	}
	if _, err := r.Number("absent"); err == nil || !strings.Contains(err.Error(), "absent") {
		t.Errorf("a missing number: %v", err)
	}
	for _, values := range []map[string]string{{"setup": "a"}, {"setup": "c"}} {
		if _, err := Find(rows, values); err == nil || !strings.Contains(err.Error(), "setup="+values["setup"]) {
			t.Errorf("%v: %v", values, err)
		}
	}
}

func TestHere(t *testing.T) {
	m := Here(t.Context(), "")
	if m.CPU == "" || m.Cores < 1 || m.Kernel == "" || !strings.HasPrefix(m.Go, "go") || m.Envoy != "" || time.Since(m.Date) > time.Minute {
		t.Errorf("%+v", m)
	}
	envoy := t.TempDir() + "/envoy"
	if err := os.WriteFile(envoy, []byte("#!/bin/sh\necho; echo 'envoy  version: 0a1b2c/1.40.0/Clean/RELEASE/BoringSSL'\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	if m := Here(t.Context(), envoy); m.Envoy != "1.40.0" {
		t.Errorf("Envoy is %q", m.Envoy)
	}
}

// Rows without the number of requests at once are of 16, beside rows that say theirs.
func TestFindConcurrency(t *testing.T) {
	rows, err := Read(strings.NewReader("bench setup=a allocs=1\nbench setup=a concurrency=150 allocs=2\n" +
		"bench setup=b concurrency=16 allocs=3\nbench setup=b concurrency=1 allocs=4\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		setup, concurrency string
		want               float64
	}{{"a", "16", 1}, {"a", "150", 2}, {"b", "16", 3}, {"b", "1", 4}} {
		r, err := Find(rows, map[string]string{"setup": tt.setup, "concurrency": tt.concurrency})
		if err != nil {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		if n, err := r.Number("allocs"); err != nil || n != tt.want {
			t.Errorf("%+v: %g, %v", tt, n, err)
		}
	}
	for _, tt := range []struct{ setup, concurrency string }{{"a", "1"}, {"b", "150"}, {"a", ""}} {
		if r, err := Find(rows, map[string]string{"setup": tt.setup, "concurrency": tt.concurrency}); err == nil {
			t.Errorf("%+v: %v", tt, r)
		}
	}
}

// Whatever is read is either an error or rows that are found again when they are written.
func FuzzRead(f *testing.F) {
	for _, seed := range []string{"bench a=1 b=2\n", "# x\n\nbench setup=a via=b\r\n", "bench \n", "bench a=b=c", "bench a", "x"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		rows, err := Read(bytes.NewReader(b))
		if err != nil {
			return
		}
		var again strings.Builder
		for _, r := range rows {
			again.WriteString("bench")
			for k, v := range r {
				again.WriteString(" " + k + "=" + v)
			}
			again.WriteString("\n")
		}
		read, err := Read(strings.NewReader(again.String()))
		if err != nil {
			t.Fatalf("written again: %v\n%q", err, again.String())
		}
		// A row without a word is written without the space that makes it one.
		var want []Row
		for _, r := range rows {
			if len(r) > 0 {
				want = append(want, r)
			}
		}
		if diff := cmp.Diff(want, read); diff != "" {
			t.Error(diff)
		}
	})
}
