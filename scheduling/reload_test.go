package scheduling_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// keeper is a plugin that takes over what the one before it had.
type keeper struct {
	idleProducer
	table *[]int
}

func keeperTypes(previous map[string]any) []scheduling.PluginType {
	build := func(b *scheduling.Builder) (any, error) {
		previous[b.Name] = b.Previous
		k := &keeper{table: new([]int)}
		if old, ok := b.Previous.(*keeper); ok {
			k.table = old.table
		}
		return k, nil
	}
	return []scheduling.PluginType{{Type: "keeper", New: build}, {Type: "miser", New: build}, schedtest.First}
}

func TestPreviousIsHandedOver(t *testing.T) {
	previous := map[string]any{}
	types := keeperTypes(previous)
	first := mustBuild(t, types, schedtest.Config(plugins("a=keeper", "b=keeper", "c=keeper"), "first-picker"))
	for name, p := range previous {
		if p != nil {
			t.Errorf("%s of the first configuration has a predecessor: %v", name, p)
		}
	}
	second, err := scheduling.Build(types, schedtest.Config(plugins("b=keeper", "c=miser", "d=keeper"), "first-picker"), first)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]any{"b": first.Plugin("b"), "c": nil, "d": nil} // c is of another type, d is new
	for name, w := range want {
		if previous[name] != w {
			t.Errorf("predecessor of %s: got %v, want %v", name, previous[name], w)
		}
	}
	oldB, _ := first.Plugin("b").(*keeper)
	newB, _ := second.Plugin("b").(*keeper)
	if oldB == nil || newB == nil || oldB == newB || oldB.table != newB.table {
		t.Error("b's table did not survive")
	}
	if first.Plugin("nobody") != nil {
		t.Error("a plugin that does not exist was found")
	}
}

// TestCloseInReverse: what depends on others ends before them, and one failure does not keep the rest open.
func TestCloseInReverse(t *testing.T) {
	var closed []string
	types := []scheduling.PluginType{
		closingType("a", &closed, nil), closingType("b", &closed, errFake), closingType("c", &closed, nil), schedtest.First,
	}
	s := mustBuild(t, types, schedtest.Config(plugins("a", "b", "c"), "first-picker"))
	if err := s.Close(); !errors.Is(err, errFake) {
		t.Errorf("got %v, want %v", err, errFake)
	}
	if diff := cmp.Diff([]string{"c", "b", "a"}, closed); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
}

// TestHalfBuiltIsClosed: a configuration that is refused leaves no goroutine of a plugin that was already built.
func TestHalfBuiltIsClosed(t *testing.T) {
	var closed []string
	types := []scheduling.PluginType{closingType("a", &closed, errFake), closingType("b", &closed, nil), schedtest.First}
	_, err := scheduling.Build(types, schedtest.Config(plugins("a", "b", "x=unknown"), "first-picker"), nil)
	if err == nil {
		t.Fatal("built")
	}
	if diff := cmp.Diff([]string{"b", "a"}, closed); diff != "" {
		t.Errorf("closed (-want +got):\n%s", diff)
	}
	const want = `plugins[2].type: unknown plugin type "unknown" (and closing: out of order)`
	if err.Error() != want {
		t.Errorf("got %q, want %q", err, want)
	}
}
