package gatereport_test

import (
	"io"
	"testing"

	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/gatereport"
)

// FuzzRecords: no record makes a report fail, whatever is in it.
func FuzzRecords(f *testing.F) {
	for i, d := range fixtureLog(f) {
		if b, err := proto.Marshal(d); err != nil {
			f.Fatal(err)
		} else if i < 4 {
			f.Add(b)
		}
	}
	f.Fuzz(fuzzRecord)
}

func fuzzRecord(t *testing.T, b []byte) {
	d := &decisionv1.Decision{}
	if proto.Unmarshal(b, d) != nil {
		t.Skip()
	}
	r, err := gatereport.Run(t.Context(), sequence([]*decisionv1.Decision{d, d}), options())
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range r.Gates {
		if g.Released+g.Pinned > g.Compared {
			t.Fatalf("%+v", g.Share)
		}
	}
	if err := r.WriteText(io.Discard, gatereport.Paper{Cells: 80}); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteHTML(io.Discard); err != nil {
		t.Fatal(err)
	}
	if err := r.WriteJSON(io.Discard); err != nil {
		t.Fatal(err)
	}
}
