package classes

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

func endpoint(engine, version string) *scheduling.Endpoint {
	return &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Engine: engine, Labels: map[string]string{"version": version}}}
}

func TestAlike(t *testing.T) {
	s := New("version", func() *int { return new(int) })
	a := s.Of(endpoint("vllm", "1"))
	if s.Of(endpoint("vllm", "1")) != a || s.Of(endpoint("vllm", "2")) == a || s.Of(endpoint("sglang", "1")) == a || s.Len() != 3 {
		t.Errorf("%d classes, want one for each engine and version", s.Len())
	}
	any := New("", func() *int { return new(int) })
	if any.Of(endpoint("vllm", "1")) != any.Of(endpoint("vllm", "2")) || any.Len() != 1 {
		t.Errorf("%d classes without a label, want one", any.Len())
	}
}

// TestTheRestStaysTogether for as long as there is no room: a snapshot that changes nothing of that takes nothing away from it.
func TestTheRestStaysTogether(t *testing.T) {
	s := New("version", func() *int { return new(int) })
	var snapshot scheduling.Snapshot
	for i := range Max + 4 {
		snapshot.Endpoints = append(snapshot.Endpoints, endpoint("vllm", fmt.Sprint(i)))
		s.Of(snapshot.Endpoints[i])
	}
	rest := s.Of(snapshot.Endpoints[Max])
	if s.Of(snapshot.Endpoints[Max+3]) != rest || s.Len() != Max+1 || !s.Full() {
		t.Fatalf("%d classes, want %d and one for the rest", s.Len(), Max)
	}
	s.Follow(&snapshot)
	if s.Of(snapshot.Endpoints[Max+3]) != rest {
		t.Error("what was learnt of the rest is gone")
	}
	snapshot.Endpoints = snapshot.Endpoints[4:]
	s.Follow(&snapshot)
	for i, e := range snapshot.Endpoints {
		if c := s.Of(e); c == rest {
			t.Errorf("endpoint %d is learnt together with others, and there is room", i)
		}
	}
	if s.Len() != Max || s.Full() || s.Count(func(*int) bool { return true }) != Max {
		t.Errorf("%d classes, want %d", s.Len(), Max)
	}
}

// TestLookingUpDoesNotAllocate: decisions do it.
func TestLookingUpDoesNotAllocate(t *testing.T) {
	s := New("version", func() *int { return new(int) })
	e := endpoint("vllm", "a version whose name does not fit into a small buffer")
	s.Of(e)
	if n := testing.AllocsPerRun(100, func() { s.Of(e) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
