package display_test

import (
	"math"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

func TestFigures(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{display.Count(0), "0"},
		{display.Count(999), "999"},
		{display.Count(999.6), "1.0k"},
		{display.Count(12_345), "12.3k"},
		{display.Count(99_960), "100k"},
		{display.Count(999_499), "999k"},
		{display.Count(999_500), "1.0M"},
		{display.Count(-1_500), "-1.5k"},
		{display.Count(4.26), "4.3"},
		{display.Count(0.03), "0.03"},
		{display.Count(5e15), "5000T"},
		{display.Count(math.NaN()), "-"},
		{display.Score(0.74213), "0.742"},
		{display.Score(2936.1), "2.9k"},
		{display.Score(1), "1"},
		{display.Millis(0), "0 ms"},
		{display.Millis(0.44), "0.4 ms"},
		{display.Millis(63), "63 ms"},
		{display.Millis(1500), "1.5 s"},
		{display.Millis(2000), "2 s"},
		{display.Millis(18_000), "18 s"},
		{display.Millis(150_000), "2 min"},
		{display.Millis(10_800_000), "3 h"},
		{display.Millis(864_000_000), "10 d"},
		{display.Millis(math.Inf(1)), "-"},
		{display.Since(90 * time.Second), "90 s"},
		{display.Since(1234 * time.Microsecond), "1 ms"},
		{display.Percent(0.835), "83 %"},
		{display.Percent(0.999), "99 %"},
		{display.Percent(0.29), "29 %"},
		{display.Percent(1), "100 %"},
		{display.Percent(math.NaN()), "-"},
		{display.Things(1, "token"), "1 token"},
		{display.Things(1600, "token"), "1.6k tokens"},
		{display.Bar(0, 4, false), "····"},
		{display.Bar(1, 4, false), "████"},
		{display.Bar(0.5, 3, false), "█▌·"},
		{display.Bar(7, 2, false), "██"},
		{display.Bar(0.5, 4, true), "##.."},
		{display.Bar(math.NaN(), 2, true), ".."},
	} {
		if tc.got != tc.want {
			t.Errorf("%q, want %q", tc.got, tc.want)
		}
	}
}

func TestClip(t *testing.T) {
	for _, tc := range []struct {
		text  string
		cells int
		want  string
	}{
		{"10.0.0.1:8000", 13, "10.0.0.1:8000"},
		{"vllm-llama3-8b-instruct-6f7d9c5b8-x2x4z", 16, "vllm-…5b8-x2x4z"[:5] + "…" + "c5b8-x2x4z"},
		{"abc", 1, "…"},
		{"abc", 0, ""},
		{"äöüß", 3, "…üß"},
	} {
		if got := display.Clip(tc.text, tc.cells); got != tc.want || display.Width(got) > tc.cells {
			t.Errorf("%q in %d cells: %q, want %q", tc.text, tc.cells, got, tc.want)
		}
	}
	if got := display.ClipEnd("one two three", 8); got != "one two…" {
		t.Errorf("%q", got)
	}
	if got := display.ClipEnd("one", 0); got != "" {
		t.Errorf("%q", got)
	}
}

func TestWrap(t *testing.T) {
	want := []string{"  one two", "  three", "  four-and-a-half", "  five"}
	if diff := cmp.Diff(want, display.Wrap("one two  three four-and-a-half five", "  ", 10)); diff != "" {
		t.Error(diff)
	}
	if got := display.Wrap("", "  ", 10); got != nil {
		t.Errorf("%q", got)
	}
}

func TestTable(t *testing.T) {
	columns := []display.Column{{Head: "endpoint", Max: 10}, {Head: "tokens", Right: true}, {Head: ""}}
	rows := []display.Row{{Cells: []string{"10.0.0.1:8000", "12.3k", "*"}, Style: display.Bold}, {Cells: []string{"b", "0", ""}}}
	want := []string{"endpoint    tokens", "10.…1:8000   12.3k  *", "b                0"}
	if diff := cmp.Diff(want, display.Table(columns, rows, 80, false)); diff != "" {
		t.Error(diff)
	}
	if styled := display.Table(columns, rows, 80, true); styled[1] != "\x1b[1m10.…1:8000   12.3k  *\x1b[0m" {
		t.Errorf("%q", styled[1])
	}
	if got := display.Table([]display.Column{{Head: "read", Right: true, Min: 6}, {Head: "x"}}, []display.Row{{Cells: []string{"9 ms", "y"}}}, 80, false); got[0] != "  read  x" || got[1] != "  9 ms  y" {
		t.Errorf("a column that has a least width: %q", got)
	}
	columns[0] = display.Column{Head: "endpoint", Flexible: true}
	for cells, want := range map[int]string{
		80: "10.0.0.1:8000   12.3k  *", 24: "10.0.0.1:8000   12.3k  *", 22: "10.…", 5: "10…",
	} {
		got := display.Table(columns, rows, cells, false)[1]
		if want != "" && !strings.HasPrefix(got, want) || display.Width(got) > max(cells, 19) {
			t.Errorf("in %d cells: %q", cells, got)
		}
	}
}

// What a client named must not reach the terminal as a command.
func FuzzPlain(f *testing.F) {
	for _, s := range []string{"abc", "\x1b[2Jgone", "a\nb\tc", "\u202egnp", "模型", "e\u0301", "\xff\xfe", "\u009b31m"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := display.Plain(s)
		for _, r := range got {
			if unicode.IsControl(r) || r > 0x2fff || r == unicode.ReplacementChar {
				t.Fatalf("%q from %q", got, s)
			}
		}
		if again := display.Plain(got); again != got {
			t.Errorf("%q, then %q", got, again)
		}
	})
}

func TestPlain(t *testing.T) {
	for text, want := range map[string]string{
		"llama-3.1:8b": "llama-3.1:8b", "\x1b[2J": "?[2J", "Ärger…": "Ärger…", "a\nb": "a?b", "\xff": "?",
	} {
		if got := display.Plain(text); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if strings.Contains(display.Styles(false).In(display.Red, "x"), "\x1b") {
		t.Error("a style was written where there are none")
	}
}

func TestGrouped(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 15928: "15,928", 1234567: "1,234,567", -999: "-999", -1000: "-1,000"} {
		if got := display.Grouped(n); got != want {
			t.Errorf("%d is %q, want %q", n, got, want)
		}
	}
}
