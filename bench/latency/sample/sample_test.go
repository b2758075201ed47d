package sample

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func row(pick float64) Row {
	return Row{
		PickMs: pick, FirstMs: pick + 50, EndMs: pick + 150, Endpoint: 2, KVCachePercentage: 0.5, NumRequestWaiting: 1, NumRequestRunning: 3,
		PrefillTokensInFlight: 400, InputTokenLength: 1000, PrefixCacheScore: 0.25, UncachedTokens: 750, Decoding: 2, SinceChunkMs: 7,
		ActualTTFTMs: 50, ActualTPOTMs: 10, PredictedTTFTMs: 48, PredictedTTFTP90Ms: 70, PredictedTPOTMs: 11, PredictedTPOTP90Ms: 13, Confidence: 0.9,
	}
}

func TestRowsComeBack(t *testing.T) {
	path := filepath.Join(t.TempDir(), "folder", "rows.ndjson")
	want := []Row{row(0), row(10), row(10), row(20.125)}
	if err := Write(path, want); err != nil {
		t.Fatal(err)
	}
	got, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestNothingHalfIsWritten: what cannot be written leaves the file that was there, and no other.
func TestNothingHalfIsWritten(t *testing.T) {
	folder := t.TempDir()
	path := filepath.Join(folder, "rows.ndjson")
	if err := Write(path, []Row{row(0)}); err != nil {
		t.Fatal(err)
	}
	bad := row(1)
	bad.ActualTTFTMs = 0
	if err := Write(path, []Row{row(0), bad}); err == nil || !strings.Contains(err.Error(), "row 2: actual_ttft_ms: must be > 0, got 0") {
		t.Errorf("a row without a time to its first token: %v", err)
	}
	if err := Write(path, nil); err == nil {
		t.Error("no rows were written")
	}
	if rows, err := Open(path); err != nil || len(rows) != 1 {
		t.Errorf("%d rows, %v", len(rows), err)
	}
	if all, _ := os.ReadDir(folder); len(all) != 1 {
		t.Errorf("%d files", len(all))
	}
}

func TestReadRefuses(t *testing.T) {
	line := `{"pick_ms":1,"first_ms":2,"end_ms":3,"actual_ttft_ms":1}` + "\n"
	for name, c := range map[string]struct{ text, want string }{
		"nothing":       {"", "has no rows"},
		"no JSON":       {"pick_ms,first_ms\n", "row 1: "},
		"a torn line":   {line + line[:20], "row 2: "},
		"another key":   {strings.Replace(line, "end_ms", "end", 1), `row 1: json: unknown field "end"`},
		"end too early": {strings.Replace(line, `"end_ms":3`, `"end_ms":1`, 1), "row 1: pick_ms, first_ms, end_ms"},
		"no TTFT":       {strings.Replace(line, `"actual_ttft_ms":1`, `"actual_ttft_ms":0`, 1), "row 1: actual_ttft_ms: must be > 0, got 0"},
		"order":         {line + `{"pick_ms":0.5,"first_ms":2,"end_ms":3,"actual_ttft_ms":1}`, "row 2: pick_ms: 0.5 comes after 1"},
		"endpoint":      {strings.Replace(line, "{", `{"endpoint":-1,`, 1), "row 1: endpoint: must be >= 0, got -1"},
	} {
		if _, err := Read(strings.NewReader(c.text)); err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	if _, err := Open(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a file that is not there was read")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"pick_ms":1,"first_ms":2,"end_ms":3,"actual_ttft_ms":1}`)
	f.Add(`{"pick_ms":1,"first_ms":2,"end_ms":3,"actual_ttft_ms":1e-300,"confidence":0.5}` + "\n{}")
	f.Fuzz(func(t *testing.T, text string) {
		rows, err := Read(strings.NewReader(text))
		if err != nil {
			return
		}
		path := filepath.Join(t.TempDir(), "rows")
		if err := Write(path, rows); err != nil {
			t.Fatal(err)
		}
		again, err := Open(path)
		if diff := cmp.Diff(rows, again); err != nil || diff != "" {
			t.Errorf("%v %s", err, diff)
		}
	})
}
