package discovery

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func readTestdata(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// entriesOf gives the canonical spelling of entries.
func entriesOf(l Listing) []string {
	list := make([]string, len(l.Entries))
	for i := range l.Entries {
		list[i] = l.Entries[i].String()
	}
	return list
}

func TestParseFile(t *testing.T) {
	t.Parallel()
	for name, want := range map[string][]string{
		"full.yaml": {
			"10.0.0.1:8000,engine=sglang",
			"10.0.0.2:8000,name=vllm-0,uid=7f3c-0,engine=vllm,state=draining,metricsURL=http://10.0.0.2:9000/metrics," +
				"label.build=007,label.model.version=1.10,label.on=true,label.zone=a",
			"10.0.0.3:8000-8001,metricsPort=9000,kvEvents.port=5557,kvEvents.replayPort=5657,kvEvents.topic=kv@",
			"[2001:db8::5]:8000-8001,rank=2",
			"[2001:db8::6]:8000,state=not_ready,kvEvents.port=none",
			"vllm.internal:8000,family=ipv6,kvEvents.replayPort=none,kvEvents.ranks=4,kvEvents.bind=true,kvEvents.discover=false",
			"srv+_http._tcp.vllm.internal,label.source=srv",
		},
		"anchors.yaml": {
			"10.0.0.1:8000,engine=sglang,label.rack=r1,label.zone=a",
			"10.0.0.2:8000,engine=sglang,label.rack=r1,label.zone=a",
			"10.0.0.3:8000,label.rack=r1,label.zone=b",
			"10.0.0.4:8000",
		},
		"plain.json": {"10.0.0.1:8000,label.zone=a", "10.0.0.2:8000"},
		"separate-port.yaml": {
			"10.0.0.1:8000,name=vllm-0,label.model=llama-3-8b",
			"10.0.0.2:8000,name=inference/vllm-1",
		},
	} {
		l, err := ParseFile(readTestdata(t, name))
		if err != nil || l.Skipped != 0 || len(l.Faults) != 0 {
			t.Errorf("%s: %v, %v", name, l.Faults, err)
		}
		if diff := cmp.Diff(want, entriesOf(l)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", name, diff)
		}
	}
	l, err := ParseFile([]byte("endpoints: []\n"))
	if err != nil || len(l.Entries) != 0 {
		t.Errorf("an empty list is a list, got %v, %v", l, err)
	}
}

// A bad entry costs itself, is named with its line and what would be valid, and the rest serves.
func TestParseFileSkipsBadEntries(t *testing.T) {
	t.Parallel()
	l, err := ParseFile(readTestdata(t, "bad-entries.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"10.0.0.1:8000", "10.0.0.20:8000"}, entriesOf(l)); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	want := []string{
		`line 3: endpoints[1].address: "10.0.0.2": port is missing; write 10.0.0.2:8000`,
		`line 4: endpoints[2].addrss: unknown key, must be one of address, host, port, ports, labels, kvEvents, namespace, name, uid, ` +
			`engine, state, rank, metricsURL, metricsPort, family, got "addrss" (did you mean "address"?)`,
		`line 5: endpoints[3].address: is set twice`,
		`line 7: endpoints[4]: must be a mapping, got nothing`,
		`line 8: endpoints[5]: must be a mapping, got a list`,
		`line 9: endpoints[6].labels: a: must be text, got a list`,
		`line 11: endpoints[7].labels: a b: a label's key holds only letters, digits, '.', '_', '-' and '/'`,
		`line 13: endpoints[8].state: must be one of ready, not_ready, draining, got "gone"`,
		`line 15: endpoints[9].ports: is missing; write ports: [8000]`,
		`line 16: endpoints[10].ports: is missing; write ports: [8000]`,
		`line 18: endpoints[11].ports: port must be 1 to 65535, got "web"`,
		`line 20: endpoints[12].address: with a port key it holds no port: host "10.0.0.13:8000": a DNS name has no ':'`,
		`line 22: endpoints[13]: address and host exclude each other`,
		`line 24: endpoints[14]: address is missing; write address: host:port`,
		`line 25: endpoints[15].address: must be text, got an alias without its anchor`,
		`line 26: endpoints[16].metricsURL: must be text, got nothing`,
		`line 28: endpoints[17].ports: port and ports exclude each other`,
		`line 31: endpoints[18]: "10.0.0.17": port is missing; write 10.0.0.17:8000`,
		`line 32: endpoints[19].metricsPort: port must be 1 to 65535, got "70000"`,
		`line 34: endpoints[20].labels: must be a mapping, got text`,
	}
	got := make([]string, len(l.Faults))
	for i := range l.Faults {
		got[i] = l.Faults[i].Error()
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if l.Skipped != 20 {
		t.Errorf("%d entries skipped, want 20", l.Skipped)
	}
}

func TestParseFileRefuses(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                      `is empty; write "endpoints: []"`,
		"# nothing\n":                           "is empty",
		"endpoints:\n":                          "must be a list, got nothing",
		"endpoints: 10.0.0.1:8000\n":            "line 1: endpoints: must be a list, got text",
		"endpoints: {a: b}\n":                   "must be a list, got a mapping",
		"endpoint: []\n":                        `endpoint: unknown key, must be one of endpoints, got "endpoint" (did you mean "endpoints"?)`,
		"endpoints: []\npool: x\n":              "line 2: pool: unknown key",
		"endpoints: []\nendpoints: []\n":        "endpoints: is set twice",
		"- 10.0.0.1:8000\n":                     "must be a mapping, got a list",
		"{}\n":                                  "endpoints: is missing",
		"endpoints: [\n":                        "line 1, column 12",
		"endpoints:\n\t- x\n":                   "line 2",
		"endpoints: []\n---\nendpoints: []\n":   "2 YAML documents",
		"endpoints: [x, y]\n":                   "no entry is valid: line 1: endpoints[0]",
		"endpoints: &a [&a x]\n":                "anchor &a is defined twice",
		"endpoints: *a\n":                       "must be a list, got an alias without its anchor",
		"endpoints:\n- &a {<<: *a}\n":           "merges itself",
		"endpoints:\n- [::1]:8000\n":            "line 2",
		"endpoints: " + strings.Repeat("[", 99): "nested deeper than 32 levels",
		"\xff\xfe":                              "",
	} {
		l, err := ParseFile([]byte(in))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Count(err.Error(), "\n") > 2 {
			t.Errorf("ParseFile(%q) = %v, %v; want an error with %q", clip(in), entriesOf(l), err, want)
		}
		if len(l.Entries) > 0 {
			t.Errorf("ParseFile(%q): entries beside an error", clip(in))
		}
	}
}

// What is reported of a bad file, and what one costs, is bounded.
func TestParseFileBounds(t *testing.T) {
	t.Parallel()
	l, err := ParseFile([]byte("endpoints:\n- 10.0.0.1:8000\n" + strings.Repeat("- bad\n", 1000)))
	if err != nil || len(l.Faults) != maxFaults+1 || l.Skipped != 1000 {
		t.Fatalf("%d faults, %d skipped, %v; want %d, 1000", len(l.Faults), l.Skipped, err, maxFaults+1)
	}
	if got := l.Faults[maxFaults].Error(); got != "980 more entries are bad" {
		t.Errorf("the last fault is %q", got)
	}
	if _, err := ParseFile([]byte("endpoints:\n" + strings.Repeat("- a:1\n", maxFileEntries+1))); err == nil ||
		!strings.Contains(err.Error(), "at most 65536 entries are allowed, got 65537") {
		t.Errorf("too many entries: %v", err)
	}
	for _, unit := range []string{"[", "{a: ", "- ", "? ", "&a ", "!a ", "a: [", ": ", "[&a "} {
		in := []byte("endpoints:\n" + strings.Repeat(unit, 1<<20/len(unit)))
		start := time.Now()
		if _, err := ParseFile(in); err == nil || !strings.Contains(err.Error(), "nested deeper than 32 levels") {
			t.Errorf("%q over and over: %v", unit, err)
		}
		if took := time.Since(start); took > wait {
			t.Errorf("%q over and over took %s", unit, took)
		}
	}
	// A comment may look like anything.
	if _, err := ParseFile([]byte("# " + strings.Repeat("- ", 99) + "\nendpoints: [] # " + strings.Repeat("[", 99))); err != nil {
		t.Error(err)
	}
}

func TestGuard(t *testing.T) {
	t.Parallel()
	first := func(list []int) int { return list[0] }
	file, err := guard(func() (*ast.File, error) { return nil, fmt.Errorf("%d", first(nil)) })
	if file != nil || err == nil || !strings.Contains(err.Error(), "cannot be parsed as YAML: runtime error: index out of range") {
		t.Errorf("got %v, %v", file, err)
	}
}

func bigFile(n int) []byte {
	var b strings.Builder
	b.WriteString("endpoints:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - address: 10.0.%d.%d:8000\n    name: vllm-%d\n    labels: {zone: a, model: llama}\n", i/256, i%256, i)
	}
	return []byte(b.String())
}

func BenchmarkParseFile(b *testing.B) {
	data := bigFile(1000)
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := ParseFile(data); err != nil {
			b.Fatal(err)
		}
	}
}

func FuzzParseFile(f *testing.F) {
	paths, err := filepath.Glob("testdata/*.*")
	if err != nil || len(paths) == 0 {
		f.Fatalf("no seeds: %v", err)
	}
	for _, path := range paths {
		f.Add(readTestdata(f, filepath.Base(path)))
	}
	f.Add([]byte("endpoints:\n- &a {<<: [*a, *b], address: |-\n    x:1}\n- ? b\n  : *a\n"))
	f.Add([]byte("endpoints: [!!map {port: 0x50, host: \"\\u0061\"}, 1.5, ~, .inf]\n...\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		l, err := ParseFile(data)
		if err != nil {
			if len(l.Entries) > 0 {
				t.Error("entries beside an error")
			}
			return
		}
		if (l.Skipped > 0) != (len(l.Faults) > 0) || len(l.Faults) > maxFaults+1 {
			t.Errorf("%d skipped, %d faults", l.Skipped, len(l.Faults))
		}
		var specs []scheduling.EndpointSpec
		for i := range l.Entries {
			checkSpecs(t, &l.Entries[i])
			specs = l.Entries[i].appendSpecs(specs, nil)
		}
		held := scheduling.NewPool().Snapshot()
		if merged, sum := merge([][]scheduling.EndpointSpec{specs}, held, 64, false); len(merged) > 64 || sum.invalid > 0 {
			t.Errorf("merged into %d endpoints: %+v", len(merged), sum)
		}
	})
}
