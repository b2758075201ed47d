package subject

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseHeap(t *testing.T) {
	for _, tt := range []struct {
		name, page string
		want       Heap
		fault      string
	}{
		{"both", "# TYPE go_memstats_mallocs_total counter\ngo_memstats_mallocs_total 123456\ngo_memstats_alloc_bytes_total 1.234567891e+09\n",
			Heap{123456, 1234567891}, ""},
		{"last line without end", "go_memstats_alloc_bytes_total 2\ngo_memstats_mallocs_total 1", Heap{1, 2}, ""},
		{"longer name", "go_memstats_alloc_bytes_total 2\ngo_memstats_mallocs_total_more 1\n", Heap{}, "go_memstats_mallocs_total"},
		{"no number", "go_memstats_alloc_bytes_total x\ngo_memstats_mallocs_total 1\n", Heap{}, "go_memstats_alloc_bytes_total"},
		{"empty", "", Heap{}, "go_memstats_"},
	} {
		got, err := parseHeap([]byte(tt.page))
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%s: %s", tt.name, diff)
		}
		if tt.fault == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), tt.fault) {
			t.Errorf("%s: error %v, want one that names %q", tt.name, err, tt.fault)
		}
	}
}

// The addresses are found however the output is cut into writes, and whatever is around them.
func TestAddressesInTheLog(t *testing.T) {
	const output = "not JSON\n" + `{"msg":"serving"}` + "\n" + `{"time":"x","msg":"serving","grpc":"127.0.0.1:1","admin":"127.0.0.1:2","tls":false}` + "\n" +
		`{"msg":"serving","grpc":"127.0.0.1:3","admin":"127.0.0.1:4"}` + "\n"
	for size := 1; size <= len(output); size++ {
		l := newLog()
		for rest := output; rest != ""; {
			n := min(size, len(rest))
			if _, err := l.Write([]byte(rest[:n])); err != nil {
				t.Fatal(err)
			}
			rest = rest[n:]
		}
		select {
		case got := <-l.serving:
			if want := (addresses{"127.0.0.1:1", "127.0.0.1:2"}); got != want {
				t.Errorf("pieces of %d: %+v, want %+v", size, got, want)
			}
		default:
			t.Errorf("pieces of %d: no addresses found", size)
		}
		if l.tail() != output {
			t.Errorf("pieces of %d: kept %q", size, l.tail())
		}
	}
}

func TestLogIsBounded(t *testing.T) {
	l := newLog()
	for range 100 {
		_, _ = l.Write([]byte(strings.Repeat("x", 1000)))
		if len(l.kept) > tailBytes || len(l.line) > tailBytes+1000 {
			t.Fatalf("keeps %d bytes and a line of %d", len(l.kept), len(l.line))
		}
	}
	_, _ = l.Write([]byte("\nthe end"))
	if !strings.HasSuffix(l.tail(), "x\nthe end") {
		t.Errorf("the tail ends with %q", l.tail()[len(l.tail())-20:])
	}
}

func TestSum(t *testing.T) {
	const page = `# TYPE a_total counter
a_total 5
a_total{x="1",y="2"} 10
a_total{x="1",y="3"} 1e2
a_total{x="11",y="2"} 1000
a_total_more{x="1"} 7
b{text="a b c"} 3
`
	for _, tt := range []struct {
		name   string
		labels []string
		want   float64
	}{
		{"a_total", nil, 1115}, {"a_total", []string{`x="1"`}, 110}, {"a_total", []string{`x="1"`, `y="2"`}, 10},
		{"a_total", []string{`x="2"`}, 0}, {"a", nil, 0}, {"b", []string{`text="a b c"`}, 3}, {"absent", nil, 0},
	} {
		if got := Sum([]byte(page), tt.name, tt.labels...); got != tt.want {
			t.Errorf("%s %q: %g, want %g", tt.name, tt.labels, got, tt.want)
		}
	}
}
