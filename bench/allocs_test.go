package main

import (
	"context"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/bench/record"
	"github.com/sluice-epp/sluice/bench/report"
)

// recordFile holds the results of record.
const recordFile = "record.txt"

// By how much a request may allocate more than the record says; two allocations more for each message are more than this
// allows. Between runs and machines allocations differ by what gRPC has to read and write at once.
const (
	allocTolerance = 1.20
	allocSlack     = 2
)

// A request allocates no more than it did when the record was made. What is counted is the server's, a process that is built
// as releases are, whatever this test is built with. The least of the rounds counts: engines' pages are read meanwhile, and
// the slower a machine, the more of that belongs to a request.
func TestAllocationsOfRecord(t *testing.T) {
	f, err := os.Open(filepath.Join("results", recordFile))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	records, err := record.Read(f)
	if err != nil {
		t.Fatal(err)
	}
	args := append(built(t), "-via", "stream", "-setups", "sluice-approx,sluice-precise", "-bodies", "16KiB", "-rounds", "5", "-requests", "2000") // more than the decisions that are kept: until they are, each is allocated
	o, err := parseOptions(args, io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	b := bench{options: o, folder: t.TempDir(), stdout: io.Discard, progress: io.Discard}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	if err := b.measure(ctx, b.plan()); err != nil {
		t.Fatal(err)
	}
	for _, row := range b.rows {
		r, err := record.Find(records, map[string]string{
			"setup": row.Setup, "via": row.Via, "body": report.Size(row.BodyBytes),
			"endpoints": strconv.Itoa(row.Endpoints), "chunks": strconv.Itoa(row.Chunks),
			"concurrency": strconv.Itoa(row.Concurrency),
		})
		if err != nil {
			t.Fatal(err)
		}
		want, err := r.Number("allocs")
		if err != nil || want <= 0 {
			t.Fatalf("%v: %v", r, err)
		}
		got := math.Inf(1)
		for _, round := range row.Rounds {
			got = min(got, round.Allocations)
		}
		if got > want*allocTolerance+allocSlack || got <= 0 {
			t.Errorf("%s: %.1f allocations a request, %.1f in bench/results/%s: more than %.0f %% and %d above it",
				row.Setup, got, want, recordFile, (allocTolerance-1)*100, allocSlack)
		}
		t.Logf("%s: %.1f allocations a request, %.1f in the record", row.Setup, got, want)
	}
	if len(b.rows) != 2 {
		t.Errorf("%d rows, want 2", len(b.rows))
	}
}
