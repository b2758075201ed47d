package discovery

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestKVEvents(t *testing.T) {
	t.Parallel()
	for in, want := range map[string][]scheduling.KVEvents{
		"10.0.0.5:8000":                                                              {{}},
		"10.0.0.5:8000,kvEvents.port=5557":                                           {{Port: 5557}},
		"10.0.0.5:8000,kvEvents.port=none":                                           {{Port: -1}},
		"10.0.0.5:8000,kvEvents.replayPort=none,kvEvents.topic=kv@":                  {{ReplayPort: -1, Topic: "kv@"}},
		"10.0.0.5:8000,kvEvents.port=5557,kvEvents.replayPort=5559,kvEvents.ranks=2": {{Port: 5557, ReplayPort: 5559, Ranks: 2}},
		"10.0.0.5:8000,kvEvents.bind=true,kvEvents.discover=false":                   {{Bind: true, NoDiscovery: true}},
		// What is the default may be said.
		"10.0.0.5:8000,kvEvents.bind=false,kvEvents.discover=true": {{}},
	} {
		e, err := ParseEntry(in)
		if err != nil {
			t.Error(err)
			continue
		}
		var got []scheduling.KVEvents
		for _, spec := range specsOf(e) {
			got = append(got, spec.KVEvents)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", in, diff)
		}
	}
}

// Ranks with ports of their own publish at the engine's port + rank, however they are listed; ranks behind one port are
// told by their number.
func TestC23_EventPorts(t *testing.T) {
	t.Parallel()
	const kv = ",kvEvents.port=5557,kvEvents.replayPort=5657"
	for name, entries := range map[string][]string{
		"together":    {"10.0.0.5:8000-8003" + kv},
		"in two":      {"10.0.0.5:8000-8001" + kv, "10.0.0.5:8002-8003,rank=2" + kv},
		"one by one":  {"10.0.0.5:8000" + kv, "10.0.0.5:8001,rank=1" + kv, "10.0.0.5:8002,rank=2" + kv, "10.0.0.5:8003,rank=3" + kv},
		"other ports": {"10.0.0.5:8003,8000,9000,100" + kv},
	} {
		list, err := ParseEntries(entries)
		if err != nil {
			t.Fatal(err)
		}
		var specs []scheduling.EndpointSpec
		for _, e := range list {
			specs = e.appendSpecs(specs, nil)
		}
		if len(specs) != 4 {
			t.Fatalf("%s: %d endpoints, want 4", name, len(specs))
		}
		for rank, spec := range specs {
			want := scheduling.KVEvents{Port: 5557 + rank, ReplayPort: 5657 + rank, Ranks: 1}
			if name == "one by one" && rank == 0 {
				want.Ranks = 0 // a single address: the engine is asked
			}
			if spec.Rank != rank || spec.KVEvents != want {
				t.Errorf("%s: rank %d is rank %d with %+v, want %+v", name, rank, spec.Rank, spec.KVEvents, want)
			}
		}
	}
	// Without a port of its own a rank leaves it to the defaults, and still has one rank.
	e, err := ParseEntry("10.0.0.5:8000-8001,kvEvents.replayPort=none")
	if err != nil {
		t.Fatal(err)
	}
	for _, spec := range specsOf(e) {
		if want := (scheduling.KVEvents{ReplayPort: -1, Ranks: 1}); spec.KVEvents != want {
			t.Errorf("rank %d has %+v, want %+v", spec.Rank, spec.KVEvents, want)
		}
	}
}

func TestKVEventsErrors(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"kvEvents=5557":                               `kvEvents: unknown key, must be one of name, uid`,
		"kvEvents.=1":                                 `kvEvents.: unknown key, must be one of port, replayPort, ranks, topic, bind, discover, got ""`,
		"kvEvents.replay_port=1":                      `kvEvents.replay_port: unknown key, must be one of port, replayPort, ranks, topic, bind, discover, got "replay_port" (did you mean "replayPort"?)`,
		"kvevents.port=1":                             `did you mean "kvEvents.port"?)`,
		"kvEvents.port=":                              "kvEvents.port: has no value",
		"kvEvents.port=0":                             `kvEvents.port: must be 1 to 65535 or none, got "0"`,
		"kvEvents.port=-1":                            `kvEvents.port: must be 1 to 65535 or none, got "-1"`,
		"kvEvents.port=off":                           `or none, got "off"`,
		"kvEvents.replayPort=65536":                   `kvEvents.replayPort: must be 1 to 65535 or none, got "65536"`,
		"kvEvents.ranks=0":                            `kvEvents.ranks: must be 1 to 256, got "0"`,
		"kvEvents.ranks=257":                          `kvEvents.ranks: must be 1 to 256, got "257"`,
		"kvEvents.ranks=two":                          `kvEvents.ranks: must be 1 to 256, got "two"`,
		"kvEvents.topic=a\x01":                        "kvEvents.topic: byte 1 is not printable",
		"kvEvents.topic=" + strings.Repeat("t", 254):  "kvEvents.topic: has 254 bytes, at most 253",
		"kvEvents.bind=True":                          `kvEvents.bind: must be one of true, false, got "True" (did you mean "true"?)`,
		"kvEvents.discover=0":                         `kvEvents.discover: must be one of true, false, got "0"`,
		"kvEvents.port=1,kvEvents.port=2":             "kvEvents.port: is set twice",
		"kvEvents.port=1,kvEvents.bind=true":          "kvEvents.bind and kvEvents.port exclude each other",
		"kvEvents.port=none,kvEvents.bind=true":       "kvEvents.bind and kvEvents.port exclude each other",
		"kvEvents.port=65535,kvEvents.ranks=2":        "kvEvents.port: rank 1 would have a port above 65535",
		"kvEvents.replayPort=65535,rank=1":            "kvEvents.replayPort: rank 1 would have a port above 65535",
		"kvEvents.ranks=2,rank=1":                     "kvEvents.ranks: is for one address",
		"kvEvents.port=5557,kvEvents.replayPort=5557": "kvEvents.replayPort: must be 1 or more away from kvEvents.port 5557, got 5557",
		"kvEvents.port=5557,kvEvents.replayPort=5558,kvEvents.ranks=2": "kvEvents.replayPort: must be 2 or more away from kvEvents.port 5557, got 5558",
		"kvEvents.port=5560,kvEvents.replayPort=5557,kvEvents.ranks=4": "must be 4 or more away",
	} {
		if _, err := ParseEntry("10.0.0.5:8000," + in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", clip(in), err, want)
		}
	}
	for in, want := range map[string]string{
		"10.0.0.5:8000-8001,kvEvents.ranks=2":                            "kvEvents.ranks: is for one address",
		"10.0.0.5:8000-8003,kvEvents.port=5557,kvEvents.replayPort=5560": "must be 4 or more away",
		"10.0.0.5:8000-8001,kvEvents.port=65535":                         "rank 1 would have a port above 65535",
	} {
		if _, err := ParseEntry(in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %q in it", in, err, want)
		}
	}
	if _, err := ParseEntry("10.0.0.5:8000-8001,kvEvents.ranks=1,kvEvents.port=5557,kvEvents.replayPort=5559"); err != nil {
		t.Error(err)
	}
}

func TestKVEventsInAFile(t *testing.T) {
	t.Parallel()
	l, err := ParseFile(readTestdata(t, "bad-kv-events.yaml"))
	if err != nil || len(l.Entries) != 1 {
		t.Fatalf("%d entries, %v; want the last one", len(l.Entries), err)
	}
	want := []string{
		`line 2: endpoints[0].kvEvents: must be a mapping, got a number`,
		`line 4: endpoints[1].kvEvents: prot: unknown key, must be one of port, replayPort, ranks, topic, bind, discover, ` +
			`got "prot" (did you mean "port"?)`,
		`line 6: endpoints[2].kvEvents: port: must be 1 to 65535 or none, got "0"`,
		`line 8: endpoints[3].kvEvents: topic: must be text, got a list`,
		`line 10: endpoints[4].kvEvents: bind: must be one of true, false, got "yes"`,
		`line 12: endpoints[5].kvEvents: port: is set twice`,
		`line 14: endpoints[6]: kvEvents.ranks: is for one address with several ranks behind it; here every port has one rank`,
		`line 16: endpoints[7].kvEvents: discover: has no value`,
	}
	got := make([]string, len(l.Faults))
	for i := range l.Faults {
		got[i] = l.Faults[i].Error()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

// A change of kvEvents alone leaves the instance what it is.
func TestKVEventsBelongToTheInstance(t *testing.T) {
	t.Parallel()
	pool := scheduling.NewPool()
	var generation uint64
	for i, port := range []string{"5557", "5558", "none"} {
		e, err := ParseEntry("10.0.0.5:8000,kvEvents.port=" + port)
		if err != nil {
			t.Fatal(err)
		}
		ep := pool.Update(specsOf(e)).ByAddress("10.0.0.5:8000")
		want := 0
		if _, err := fmt.Sscan(port, &want); err != nil {
			want = -1
		}
		if ep.KVEvents.Port != want || i > 0 && ep.Generation != generation {
			t.Errorf("port %s: endpoint has port %d, generation %d; want %d, %d", port, ep.KVEvents.Port, ep.Generation, want, generation)
		}
		generation = ep.Generation
	}
}
