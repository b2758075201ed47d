package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-epp/sluice/bench/record"
)

// recordFile holds the results of record.
const recordFile = "record.txt"

// By how much a request may allocate more than the record says. Between runs and machines allocations differ by what gRPC
// has to read and write at once; one allocation more for each message is more than this allows.
const (
	allocTolerance = 1.05
	allocSlack     = 2
)

// A request allocates no more than it did when the record was made. What is counted is the server's, a process that is built
// as releases are, whatever this test is built with.
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
	rows, out := tiny(t, "-via", "stream", "-setups", "sluice-approx,sluice-precise", "-bodies", "16KiB", "-endpoints", "64",
		"-chunks", "3", "-rounds", "3", "-requests", "500")
	for _, setup := range []string{setupApprox, setupPrecise} {
		key := map[string]string{"setup": setup, "via": "stream", "body": "16KiB", "endpoints": "64", "chunks": "3"}
		var allocs [2]float64
		for i, from := range [][]record.Row{rows, records} {
			r, err := record.Find(from, key)
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if allocs[i], err = r.Number("allocs"); err != nil || allocs[i] <= 0 {
				t.Fatalf("%v: %v", r, err)
			}
		}
		got, want := allocs[0], allocs[1]
		if got > want*allocTolerance+allocSlack {
			t.Errorf("%s: %.1f allocations a request, %.1f in bench/results/%s: more than %.0f %% and %d above it",
				setup, got, want, recordFile, (allocTolerance-1)*100, allocSlack)
		}
		t.Logf("%s: %.1f allocations a request, %.1f in the record", setup, got, want)
	}
}
