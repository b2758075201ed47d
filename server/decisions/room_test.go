package decisions

import (
	"fmt"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// keep makes a decision about a request for a model.
func (b *bench) keep(t *testing.T, model, requestID string) {
	t.Helper()
	b.id++
	r := &scheduling.Request{ID: b.id, Model: model, Choices: 1, Headers: []scheduling.Header{{Name: requestIDHeader, Value: []byte(requestID)}}}
	c := b.scheduler.Begin(b.pool.Snapshot(), r, 0)
	b.scheduler.Preview(c)
	b.ring.Picked(c, nil, 0)
	b.scheduler.End(c)
}

// TestClientsDoNotFillTheRoom: the names that clients choose take no more than was reckoned with.
func TestClientsDoNotFillTheRoom(t *testing.T) {
	t.Parallel()
	const room = 1 << 20
	b := newBench(t, 5, room)
	b.keep(t, "m", "")
	for range 2000 {
		b.keep(t, strings.Repeat("m", 1<<16), strings.Repeat("r", 1<<10))
	}
	if n, all, bytes := b.ring.Size(); n != all || n <= minDecisions || bytes > room {
		t.Errorf("%d decisions of %d take %d bytes of %d", n, all, bytes, room)
	}
	e, ok := b.ring.Get(b.id)
	if got := e.Decision.GetRequest().GetModel(); !ok || got != strings.Repeat("m", 256) {
		t.Errorf("the model has %d bytes in the record", len(got))
	}
}

// TestRoomAfterEndpointsWent: once there are few endpoints as many decisions are kept as if there had never been more.
func TestRoomAfterEndpointsWent(t *testing.T) {
	t.Parallel()
	const room = 4 << 20
	fresh := newBench(t, 2, room)
	fresh.keep(t, "m", "")
	_, want, _ := fresh.ring.Size()

	b := newBench(t, 500, room)
	for range 200 {
		b.keep(t, "m", "")
	}
	b.table.Endpoints = b.table.Endpoints[:2]
	b.pool.Update([]scheduling.EndpointSpec{{Address: "10.0.0.1:8000"}, {Address: "10.0.0.2:8000"}})
	for range MaxDecisions + 100 {
		b.keep(t, "m", "")
	}
	if n, got, bytes := b.ring.Size(); got != want || n != got || bytes > room {
		t.Errorf("%d decisions of %d take %d bytes, want room for %d", n, got, bytes, want)
	}
}

// TestRoomAfterAReload: a configuration with more scorers makes larger decisions, of which fewer are kept.
func TestRoomAfterAReload(t *testing.T) {
	t.Parallel()
	const room = 4 << 20
	b := newBench(t, 100, room)
	for range 2000 {
		b.keep(t, "m", "")
	}
	_, before, _ := b.ring.Size()
	var specs []scheduling.Spec
	var profile []string
	for i := range 20 {
		name := fmt.Sprint("scorer-", i)
		specs, profile = append(specs, scheduling.Spec{Name: name, Type: "token-load-scorer"}), append(profile, name)
	}
	b.scheduler = b.table.Build(t, append(scorer.Types(), picker.Types()...), specs, append(profile, "max-score-picker")...)
	for range 2000 {
		b.keep(t, "m", "")
	}
	if n, after, bytes := b.ring.Size(); n != after || after >= before || bytes > room {
		t.Errorf("%d decisions of %d take %d bytes of %d; there was room for %d", n, after, bytes, room, before)
	}
}
