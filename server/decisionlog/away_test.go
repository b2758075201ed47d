package decisionlog

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// TestClockThatWentBack: the files that are deleted are those that were written first, whatever their clock said.
func TestClockThatWentBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t, 4)
		o := b.options(t, func(o *Options) { o.MaxFiles = 3 })
		var early []string
		for _, second := range []string{"00", "01", "02"} {
			name := "decisions-20000101T0100" + second + ".000Z-00000001.jsonl" // an hour ahead
			early = append(early, name)
			if err := os.WriteFile(filepath.Join(o.Folder, name), []byte("{}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			l := open(t, o)
			b.decide(t, l, "").end(l)
			l.Close()
		}
		got := names(t, o.Folder)
		if len(got) != 3 || got[0] != early[2] || !strings.HasPrefix(got[1], "decisions-20000101T010002.001Z-") || !strings.HasPrefix(got[2], "decisions-20000101T010002.002Z-") {
			t.Errorf("%q", got)
		}
	})
}

// TestFolderThatIsEmptied: what comes after is written to a new file, and what was in the old one is counted as lost.
func TestFolderThatIsEmptied(t *testing.T) {
	for _, format := range []Format{JSONLines, Parquet} {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t, 4)
			o := b.options(t, func(o *Options) { o.Folder, o.Format = filepath.Join(o.Folder, "log"), format })
			l := open(t, o)
			remove := func() {
				t.Helper()
				if err := os.RemoveAll(o.Folder); err != nil {
					t.Fatal(err)
				}
			}
			b.decide(t, l, "").end(l)
			synctest.Wait()
			remove()
			time.Sleep(lookEvery)
			for range 3 {
				b.decide(t, l, "").end(l)
			}
			synctest.Wait()
			if got := names(t, o.Folder); len(got) != 1 {
				t.Fatalf("%s: there is %q", format, got)
			}
			if got := l.stats.dropped[droppedWrite].Load(); got != 1 {
				t.Errorf("%s: %d rows are lost, want 1", format, got)
			}
			remove()
			l.Close() // before it looks again
			if got := l.stats.dropped[droppedWrite].Load(); got != 4 {
				t.Errorf("%s: %d rows are lost, want 4", format, got)
			}
		})
	}
}
