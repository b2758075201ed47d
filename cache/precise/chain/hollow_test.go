package chain

import "testing"

// A place that nobody holds stays as long as one that is held follows it, in its chain or in another, and is counted.
func TestHollow(t *testing.T) {
	s := New()
	h, other := s.Register(0, 1000), s.Register(1, 1000)
	hashes := make([]uint64, maxLength+10)
	for i := range hashes {
		hashes[i] = uint64(i+1) << 50
	}
	refs := make([]Ref, len(hashes))
	if n := s.Insert(h, nil, NoRef, 0, 16, hashes, refs); n != len(hashes) {
		t.Fatalf("%d blocks taken", n)
	}
	if s.Insert(other, nil, NoRef, 0, 16, hashes[:2], make([]Ref, 2)) != 2 {
		t.Fatal("not taken")
	}
	want := 0
	for i, ref := range refs[:len(refs)-1] {
		hollow := i >= 2 // the other holder keeps the first two
		if hollow {
			want++
		}
		if got := s.Unset(ref, h); got != hollow {
			t.Fatalf("block %d: hollow %t", i, got)
		}
	}
	if got := s.Hollow(); got != want {
		t.Errorf("%d places of nobody, want %d", got, want)
	}
	if s.Unset(refs[len(refs)-1], h) {
		t.Error("the last place stays")
	}
	if got := s.Hollow(); got != 0 || s.Sizes().Positions != 2 {
		t.Errorf("%d places of nobody, %+v", got, s.Sizes())
	}
	if err := s.Check(); err != nil {
		t.Error(err)
	}
}
