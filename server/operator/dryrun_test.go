package operator_test

import (
	"context"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

const chat = `{"model":"m","messages":[{"role":"user","content":"hello"}]}`

func TestDryRun(t *testing.T) {
	b := newBench(t)
	a, err := b.DryRun(t.Context(), &schedulerv1.DryRunRequest{
		BodyText: chat, Headers: []*schedulerv1.Header{{Name: "X-Request-ID", Value: "mine"}}, MaxCandidates: 3,
	})
	if err != nil {
		t.Fatal(err)
	}
	x := a.GetExplanation()
	d := x.GetDecision()
	if d.GetClientRequestId() != "mine" || d.GetRequest().GetModel() != "m" || d.GetPicks()[0] != 0 || d.GetConfigHash() != "abc" ||
		len(d.GetCandidates()) != 3 || x.GetDecision().GetOutcome() != nil || len(x.GetFlips()) == 0 || x.GetReason() == "" {
		t.Errorf("%v", a)
	}
	if n, _, _ := b.ring.Size(); n != 0 {
		t.Error("what was tried is kept as a decision")
	}
	if a, err = b.DryRun(t.Context(), &schedulerv1.DryRunRequest{Body: []byte(chat), Subset: []string{"10.0.0.5"}}); err != nil {
		t.Fatal(err)
	}
	if got := a.GetExplanation().GetReason(); got != "No endpoint was picked: of 5, 1 not ready, 4 not allowed by the proxy." {
		t.Error(got)
	}
}

func TestDraftsThatAreNone(t *testing.T) {
	b := newBench(t)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	for _, tc := range []struct {
		ctx     context.Context
		request *schedulerv1.DryRunRequest
		want    codes.Code
	}{
		{t.Context(), &schedulerv1.DryRunRequest{BodyText: "no JSON"}, codes.InvalidArgument},
		{t.Context(), &schedulerv1.DryRunRequest{BodyText: chat, Body: []byte(chat)}, codes.InvalidArgument},
		{over, &schedulerv1.DryRunRequest{BodyText: chat}, codes.Canceled},
	} {
		if _, err := b.DryRun(tc.ctx, tc.request); status.Code(err) != tc.want {
			t.Errorf("%v: %v", tc.request, err)
		}
	}
}

func TestLookupPrefix(t *testing.T) {
	b := newBench(t)
	a, err := b.LookupPrefix(t.Context(), &schedulerv1.LookupPrefixRequest{BodyText: chat})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]int64{}
	last := int64(1000)
	for _, h := range a.GetHolders() {
		blocks := h.GetMatch().GetCachedBlockCount()
		if got[h.GetAddress()] = blocks; blocks > last {
			t.Errorf("%s comes too late", h.GetAddress())
		}
		last = blocks
	}
	if diff := cmp.Diff(map[string]int64{"10.0.0.1:8000": 90, "10.0.0.2:8000": 50, "10.0.0.3:8000": 10}, got); diff != "" {
		t.Error(diff)
	}
}
