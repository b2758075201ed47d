package extproc

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func metadataOf(namespace, key string, v *structpb.Value) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: v}}}}
}

// hintOf puts texts into one of the shapes that metadata can have.
func hintOf(shape uint8, texts []string) *structpb.Value {
	all := structpb.NewStringValue(strings.Join(texts, ","))
	list := make([]*structpb.Value, 0, 2*len(texts))
	for _, text := range texts {
		list = append(list, structpb.NewStringValue(text))
		if shape%4 == 2 { // and other things in the list
			list = append(list, structpb.NewNumberValue(8000), structpb.NewListValue(&structpb.ListValue{Values: list[:1]}))
		}
	}
	switch shape % 4 {
	case 0:
		return all
	case 3: // which nobody sends
		return structpb.NewStructValue(&structpb.Struct{Fields: map[string]*structpb.Value{"addresses": all}})
	}
	return structpb.NewListValue(&structpb.ListValue{Values: list})
}

// FuzzSubset lets a proxy hint at anything: the candidates are the endpoints that an entry names, and no others.
func FuzzSubset(f *testing.F) {
	for _, text := range []string{
		"10.0.0.1:8000", " 10.0.0.1:8000 ,\t10.0.0.2 ", "10.0.0.1:8000|fd00::3", "[FD00:0::0003]:8000|[fd00::3]", "[::ffff:10.0.0.2]:8001",
		"::ffff:10.0.0.2", "10.0.0.2:", ":8000", "10.0.0.2:08000", "10.0.0.2:99999", "fd00::3%eth0", "[fd00::3%eth0]:8000", "name:8000", ",,|, ,", "",
	} {
		for shape := range uint8(4) {
			f.Add(shape, text)
		}
	}
	pool := scheduling.NewPool()
	var endpoints []netip.AddrPort
	var specs []scheduling.EndpointSpec
	for _, address := range []string{"10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.2:8001", "[fd00::3]:8000", "[fd00::3]:1"} {
		endpoints = append(endpoints, netip.MustParseAddrPort(address))
		specs = append(specs, scheduling.EndpointSpec{Address: address})
	}
	pool.Update(specs)
	named := func(text string, e netip.AddrPort) bool {
		if ap, err := netip.ParseAddrPort(text); err == nil {
			return ap.Port() == e.Port() && ap.Addr().Unmap() == e.Addr()
		}
		addr, err := netip.ParseAddr(strings.Trim(text, "[]"))
		return err == nil && addr.Unmap() == e.Addr()
	}
	f.Fuzz(func(t *testing.T, shape uint8, text string) {
		texts := strings.Split(text, "|")
		st := &stream{}
		st.readMetadata(metadataOf(SubsetNamespace, SubsetKey, hintOf(shape, texts)))
		got := &st.request.subset
		if !got.present {
			t.Fatal("no hint was found")
		}
		var want []string
		if shape%4 != 3 {
			for _, e := range strings.FieldsFunc(strings.Join(texts, ","), func(r rune) bool { return r == ',' }) {
				if e = strings.TrimSpace(e); e != "" {
					want = append(want, e)
				}
			}
		}
		if !slices.Equal(got.entries, want) {
			t.Fatalf("entries %q, want %q", got.entries, want)
		}
		allowed := got.resolve(pool.Snapshot())
		for i, e := range endpoints {
			if is := slices.ContainsFunc(want, func(text string) bool { return named(text, e) }); allowed.Has(i) != is {
				t.Fatalf("%s is a candidate: %t, by the hint %q: %t", e, allowed.Has(i), want, is)
			}
		}
		// After the pick it is too late.
		later := &stream{}
		later.request.replied = true
		later.readMetadata(metadataOf(SubsetNamespace, SubsetKey, hintOf(shape, texts)))
		if later.request.subset.present {
			t.Fatal("a hint was taken after the pick")
		}
	})
}

// account is a plugin that knows where each charge is.
type account struct{ at map[*scheduling.Endpoint]int }

func (a *account) Charge(_ *scheduling.Cycle, f *scheduling.Flight) { a.at[f.Endpoint]++ }
func (a *account) Moved(f *scheduling.Flight, from *scheduling.Endpoint, _ time.Duration) {
	a.at[from]--
	a.at[f.Endpoint]++
}
func (a *account) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (a *account) FirstToken(*scheduling.Flight, time.Duration)    {}
func (a *account) Done(f *scheduling.Flight, _ time.Duration)      { a.at[f.Endpoint]-- }
func (a *account) only(e *scheduling.Endpoint, n int) (others bool) {
	for at, have := range a.at {
		if at != e && have != 0 {
			return false
		}
	}
	return a.at[e] == n
}

// both picks the first two candidates.
type both struct{}

func (both) Pick(_ *scheduling.Cycle, _ scheduling.Set, _ []float64, picks []int) []int {
	return append(picks, 0, 1)
}

// counted counts what is noted.
type counted struct {
	nobody
	kinds map[string]int
}

func (c *counted) Noted(kind string) { c.kinds[kind]++ }

// FuzzServed lets a proxy report anything for the endpoint that served: the charge is at one endpoint at any time, which is
// the reported one where that was picked or is in the pool, and else stays.
func FuzzServed(f *testing.F) {
	for _, text := range []string{
		"10.0.0.1:8000", "10.0.0.2:8000", " 10.0.0.3:8000\n", "[::ffff:10.0.0.3]:8000", "[FD00:0::0004]:8000", "fd00::4", "10.0.0.3", "10.0.0.9:8000",
		"10.0.0.1:8000,10.0.0.2:8000", "name:8000", "[fd00::4%eth0]:8000", "", " ",
	} {
		f.Add(text, false)
	}
	f.Add("10.0.0.3:8000", true)
	const first, left = "10.0.0.1:8000", "10.0.0.2:8000"
	pool := scheduling.NewPool()
	pool.Update([]scheduling.EndpointSpec{{Address: first}, {Address: left}})
	then := pool.Snapshot()
	pool.Update([]scheduling.EndpointSpec{{Address: first}, {Address: "10.0.0.3:8000"}, {Address: "[fd00::4]:8000"}})
	charges := &account{at: map[*scheduling.Endpoint]int{}}
	cfg := schedtest.Config([]scheduling.Spec{{Name: "account", Type: "account"}}, "both")
	cfg.MaxPicks = 2
	scheduler, err := scheduling.Build([]scheduling.PluginType{
		{Type: "both", New: func(*scheduling.Builder) (any, error) { return both{}, nil }},
		{Type: "account", New: func(*scheduling.Builder) (any, error) { return charges, nil }},
	}, cfg, nil)
	if err != nil {
		f.Fatal(err)
	}
	notes := &counted{}
	server := New(Config{
		Pool: pool, Scheduler: func() *scheduling.Scheduler { return scheduler }, Now: func() time.Duration { return 0 }, Observer: notes,
	})
	f.Cleanup(server.Close)
	f.Fuzz(func(t *testing.T, text string, number bool) {
		notes.kinds = map[string]int{}
		c := scheduler.Begin(then, &scheduling.Request{ID: 1}, 0)
		scheduler.Produce(t.Context(), c)
		flight, err := scheduler.Commit(c)
		scheduler.End(c)
		if err != nil {
			t.Fatal(err)
		}
		picked := flight.Endpoint
		if picked.Address != first || len(flight.Picks) != 2 || !charges.only(picked, 1) {
			t.Fatalf("picked %v", flight.Picks)
		}
		st := &stream{server: server, flight: flight}
		v := structpb.NewStringValue(text)
		if number {
			v = structpb.NewNumberValue(8000)
		}
		st.readMetadata(metadataOf(MetadataNamespace, ServedKey, v)) // of the request: nobody has served it yet
		if !charges.only(picked, 1) || len(notes.kinds) != 0 {
			t.Fatalf("moved before the pick was answered, %v", notes.kinds)
		}
		st.request.replied = true
		st.readMetadata(metadataOf(MetadataNamespace, ServedKey, v))

		want, kind := picked, ""
		if !number && text != "" {
			want, kind = served(text, flight.Picks, pool.Snapshot())
		}
		if want == nil {
			want = picked
		}
		if flight.Endpoint != want || !charges.only(want, 1) {
			t.Fatalf("%q: charged to %s, want %s", text, flight.Endpoint.Address, want.Address)
		}
		for _, k := range []string{NoteServedElsewhere, NoteServedUnknown} {
			if (notes.kinds[k] == 1) != (k == kind) {
				t.Fatalf("%q: noted %v, want %q", text, notes.kinds, kind)
			}
		}
		flight.Done(scheduling.Outcome{}, 0)
		if !charges.only(want, 0) {
			t.Fatal("a charge is left")
		}
		clear(charges.at)
	})
}

// served is the endpoint that a report means, and what is to be noted of it.
func served(text string, picks []*scheduling.Endpoint, now *scheduling.Snapshot) (e *scheduling.Endpoint, kind string) {
	for i, known := range slices.Concat(picks, now.Endpoints) {
		is := known.Address == text
		if ap, err := netip.ParseAddrPort(strings.TrimSpace(text)); err == nil {
			is = netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()) == netip.MustParseAddrPort(known.Address)
		}
		switch {
		case is && i == 0:
			return known, ""
		case is:
			return known, NoteServedElsewhere
		}
	}
	return nil, NoteServedUnknown
}
