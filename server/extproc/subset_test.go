package extproc

import (
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestC44_Subset(t *testing.T) {
	all := []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001", "[fd00::3]:8000"}
	for _, test := range []struct {
		name string
		hint any
		want []string // allowed picks; none: 503
	}{
		{"list", []any{"10.0.0.2:8000"}, all[1:2]},
		{"one string with commas and spaces", " 10.0.0.1:8000 , 10.0.0.2:8001", []string{all[0], all[2]}},
		{"commas inside an element", []any{"10.0.0.1:8000,10.0.0.2:8001"}, []string{all[0], all[2]}},
		{"bare IP is every port", []any{"10.0.0.2"}, all[1:3]},
		{"IPv6", []any{"[fd00::3]:8000"}, all[3:]},
		{"IPv6 written otherwise", []any{"[FD00:0::0003]:8000"}, all[3:]},
		{"bare IPv6", []any{"fd00::3"}, all[3:]},
		{"IPv4 mapped", []any{"[::ffff:10.0.0.1]:8000"}, all[:1]},
		{"one known, one unknown", []any{"10.9.9.9:1", "10.0.0.1:8000"}, all[:1]},
		{"empty list", []any{}, nil},
		{"empty string", "", nil},
		{"unknown only", []any{"10.9.9.9:1"}, nil},
		{"unreadable", []any{"nonsense"}, nil},
		{"a number", 5.0, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			b := newBench(t, options{addresses: all})
			seen := map[string]bool{}
			for range 8 {
				c := b.call(t, modeFullDuplex, modeNone)
				c.metadata(SubsetNamespace, SubsetKey, test.hint)
				c.requestHeaders(true, ":method", "GET", ":path", "/v1/models")
				m := c.recv()
				if test.want == nil {
					if status, reason, _ := c.refused(m); status != 503 || reason != ReasonNoSubset {
						t.Fatalf("got %d %s", status, reason)
					}
					return
				}
				seen[c.pickOf(m)] = true
				c.cancel()
			}
			if len(seen) != len(test.want) {
				t.Errorf("picked %v, want all of %v", seen, test.want)
			}
			for _, a := range test.want {
				if !seen[a] {
					t.Errorf("never picked %s, but %v", a, seen)
				}
			}
		})
	}
}

func TestC44_ListServedAndForgedHeader(t *testing.T) {
	b := newBench(t, options{maxPicks: 2})
	c := b.call(t, modeFullDuplex, modeFullDuplex)
	c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions", DestinationHeader, "6.6.6.6:22")
	c.requestBody(chat(4000), true)
	pick := c.pickOf(c.recv()) // overwrites: Envoy replaces a header of the same name
	c.echoed(false)
	first, second, ok := strings.Cut(pick, ",")
	if !ok || first == second {
		t.Fatalf("pick %q, want two endpoints", pick)
	}
	chargedOn := func(address string) int64 { return b.chargedOn(b.pool.Snapshot().ByAddress(address)) }
	if chargedOn(first) != 1 || chargedOn(second) != 0 {
		t.Error("the first entry does not carry the charge")
	}
	c.metadata(MetadataNamespace, ServedKey, second)
	c.responseHeaders(false, ":status", "200")
	c.recv()
	if chargedOn(first) != 0 || chargedOn(second) != 1 {
		t.Error("the charge did not move to the endpoint that served")
	}
	c.metadata(MetadataNamespace, ServedKey, "10.9.9.9:1")
	c.echo("{}", true)
	b.settles(t, 0, 0)
	if b.notes.count(NoteServedElsewhere) != 1 || b.notes.count(NoteServedUnknown) != 1 {
		t.Errorf("notes %v", b.notes.kinds)
	}
}

// TestC44_ServedByAPickThatLeftThePool: the charge moves to the instance that was picked, not to nobody, nor to another
// one that has its address by now.
func TestC44_ServedByAPickThatLeftThePool(t *testing.T) {
	for name, returns := range map[string]bool{"gone": false, "returned as another": true} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, options{maxPicks: 2})
			c, pick := b.picked(t, modeFullDuplex, 4000)
			head, fallback, ok := strings.Cut(pick, ",")
			if !ok {
				t.Fatalf("pick %q, want two endpoints", pick)
			}
			old := b.pool.Snapshot().ByAddress(fallback)
			b.setEndpoints(head)
			if returns {
				b.pool.Update([]scheduling.EndpointSpec{{Address: head, UID: head}, {Address: fallback, UID: "another"}})
			}
			c.metadata(MetadataNamespace, ServedKey, fallback)
			c.responseHeaders(false, ":status", "200")
			c.recv()
			if n := b.chargedOn(b.pool.Snapshot().ByAddress(head)); n != 0 {
				t.Errorf("the head carries %d requests, want 0", n)
			}
			if n := b.notes.count(NoteServedElsewhere); n != 1 || b.notes.count(NoteServedUnknown) != 0 {
				t.Errorf("notes %v", b.notes.kinds)
			}
			if now := b.pool.Snapshot().ByAddress(fallback); now != nil && (now == old || b.chargedOn(now) != 0) {
				t.Errorf("the new instance carries %d requests, want 0", b.chargedOn(now))
			}
			c.echo("{}", true)
			b.settles(t, 0, 0)
			if got := b.notes.servers(); len(got) != 1 || got[0] != old {
				t.Errorf("the request ended on %v, want on the instance that was picked", got)
			}
		})
	}
}

// chargedOn is how many requests the ledger has on an endpoint.
func (b *bench) chargedOn(e *scheduling.Endpoint) int64 {
	l, _ := b.ledger.Load(e.Ordinal, e.Generation)
	return l.Requests
}
