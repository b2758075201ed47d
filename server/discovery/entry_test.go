package discovery

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// specsOf expands an entry, its name answered with targets.
func specsOf(e Entry, targets ...target) []scheduling.EndpointSpec {
	return e.appendSpecs(nil, targets)
}

func TestParseEntry(t *testing.T) {
	t.Parallel()
	type spec = scheduling.EndpointSpec
	at := netip.MustParseAddr
	alone := scheduling.KVEvents{Ranks: 1}
	for _, c := range []struct {
		in      string
		targets []target
		back    string // the canonical spelling, where it differs
		want    []spec
	}{
		{
			in:   "10.0.0.5:8000",
			want: []spec{{Address: "10.0.0.5:8000", Name: "10.0.0.5:8000"}},
		},
		{
			in:   " [2001:DB8::5]:8000 ",
			back: "[2001:db8::5]:8000",
			want: []spec{{Address: "[2001:db8::5]:8000", Name: "[2001:db8::5]:8000"}},
		},
		{
			in:   "[::ffff:10.0.0.5]:8000",
			back: "10.0.0.5:8000",
			want: []spec{{Address: "10.0.0.5:8000", Name: "10.0.0.5:8000"}},
		},
		{
			in:   "10.0.0.5:8000, engine=sglang, label.zone=a, label.example.com/gpu=h100",
			back: "10.0.0.5:8000,engine=sglang,label.example.com/gpu=h100,label.zone=a",
			want: []spec{{
				Address: "10.0.0.5:8000", Name: "10.0.0.5:8000", Engine: "sglang",
				Labels: map[string]string{"zone": "a", "example.com/gpu": "h100"},
			}},
		},
		{
			in:   "10.0.0.5:8000,state=draining,uid=u1,label.empty=",
			back: "10.0.0.5:8000,uid=u1,state=draining,label.empty=",
			want: []spec{{
				Address: "10.0.0.5:8000", Name: "10.0.0.5:8000", UID: "u1", State: scheduling.EndpointDraining,
				Labels: map[string]string{"empty": ""},
			}},
		},
		{
			in: "10.0.0.5:8000,label.engine=trtllm",
			want: []spec{{
				Address: "10.0.0.5:8000", Name: "10.0.0.5:8000", Engine: "trtllm", Labels: map[string]string{"engine": "trtllm"},
			}},
		},
		{
			in: "10.0.0.5:8000,label.engine=ours",
			want: []spec{{
				Address: "10.0.0.5:8000", Name: "10.0.0.5:8000", Labels: map[string]string{"engine": "ours"},
			}},
		},
		{
			in: "10.0.0.5:8000,metricsURL=https://10.0.0.5:9000/metrics?x=1",
			want: []spec{{
				Address: "10.0.0.5:8000", Name: "10.0.0.5:8000", MetricsURL: "https://10.0.0.5:9000/metrics?x=1",
			}},
		},
		{
			in: "[2001:db8::5]:8000-8001,metricsURL=http://{ip}:9{rank}00/m/{port}?a={address}",
			want: []spec{
				{
					Address: "[2001:db8::5]:8000", Name: "[2001:db8::5]:8000",
					MetricsURL: "http://[2001:db8::5]:9000/m/8000?a=[2001:db8::5]:8000", KVEvents: alone,
				},
				{
					Address: "[2001:db8::5]:8001", Name: "[2001:db8::5]:8001", Rank: 1,
					MetricsURL: "http://[2001:db8::5]:9100/m/8001?a=[2001:db8::5]:8001", KVEvents: alone,
				},
			},
		},
		{
			in:      "Vllm-0.internal:8000",
			back:    "vllm-0.internal:8000",
			targets: []target{{addr: at("10.0.0.5")}},
			want:    []spec{{Address: "10.0.0.5:8000", Name: "vllm-0.internal:8000"}},
		},
		{
			in:      "dns+vllm:8000",
			back:    "vllm:8000",
			targets: []target{{addr: at("10.0.0.5")}, {addr: at("10.0.0.6")}},
			want: []spec{
				{Address: "10.0.0.5:8000", Name: "vllm:8000/10.0.0.5"},
				{Address: "10.0.0.6:8000", Name: "vllm:8000/10.0.0.6"},
			},
		},
		{
			in:      "vllm:8000-8001,name=chat,rank=4,metricsPort=9000",
			targets: []target{{addr: at("10.0.0.5")}, {addr: at("2001:db8::6")}},
			want: []spec{
				{
					Address: "10.0.0.5:8000", Name: "chat-rank-4/10.0.0.5", Rank: 4, MetricsURL: "http://10.0.0.5:9000/metrics",
					KVEvents: alone,
				},
				{
					Address: "10.0.0.5:8001", Name: "chat-rank-5/10.0.0.5", Rank: 5, MetricsURL: "http://10.0.0.5:9001/metrics",
					KVEvents: alone,
				},
				{
					Address: "[2001:db8::6]:8000", Name: "chat-rank-4/2001:db8::6", Rank: 4, MetricsURL: "http://[2001:db8::6]:9000/metrics",
					KVEvents: alone,
				},
				{
					Address: "[2001:db8::6]:8001", Name: "chat-rank-5/2001:db8::6", Rank: 5, MetricsURL: "http://[2001:db8::6]:9001/metrics",
					KVEvents: alone,
				},
			},
		},
		{in: "nowhere.internal:8000,family=any", want: nil},
		{
			in: "srv+_http._tcp.vllm.internal,metricsPort=9000",
			targets: []target{
				{host: "a.internal", addr: at("10.0.0.5"), port: 31000},
				{host: "a.internal", addr: at("10.0.0.6"), port: 31000},
				{host: "b.internal", addr: at("10.0.0.7"), port: 31001},
			},
			want: []spec{
				{Address: "10.0.0.5:31000", Name: "a.internal:31000/10.0.0.5", MetricsURL: "http://10.0.0.5:9000/metrics"},
				{Address: "10.0.0.6:31000", Name: "a.internal:31000/10.0.0.6", MetricsURL: "http://10.0.0.6:9000/metrics"},
				{Address: "10.0.0.7:31001", Name: "b.internal:31001", MetricsURL: "http://10.0.0.7:9000/metrics"},
			},
		},
	} {
		e, err := ParseEntry(c.in)
		if err != nil {
			t.Errorf("%s", err)
			continue
		}
		if diff := cmp.Diff(c.want, specsOf(e, c.targets...)); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.in, diff)
		}
		back := c.back
		if back == "" {
			back = strings.TrimPrefix(strings.TrimSpace(c.in), "dns+")
		}
		if e.String() != back {
			t.Errorf("%s: is %s, want %s", c.in, e, back)
		}
	}
}

// Ranks that share a host are endpoints of their own, with names of their own.
func TestC23_DataParallelRanks(t *testing.T) {
	t.Parallel()
	for _, in := range []string{
		"10.0.0.5:8000-8003,name=vllm-0,uid=u",
		"10.0.0.5:8000,8001,8002,8003,name=vllm-0,uid=u",
		"10.0.0.5:8000-8001,8002-8003,name=vllm-0,uid=u",
	} {
		e, err := ParseEntry(in)
		if err != nil {
			t.Fatal(err)
		}
		pool := scheduling.NewPool()
		snapshot := pool.Update(specsOf(e))
		if snapshot.Len() != 4 {
			t.Fatalf("%s: %d endpoints, want 4", in, snapshot.Len())
		}
		for rank := range 4 {
			ep := snapshot.ByAddress(fmt.Sprintf("10.0.0.5:%d", 8000+rank))
			if ep == nil || ep.Rank != rank || ep.UID != "u" || ep.Name != fmt.Sprintf("vllm-0-rank-%d", rank) {
				t.Errorf("%s: rank %d is %+v", in, rank, ep)
			}
		}
		// One rank leaves: the others stay the instances they are.
		rest := pool.Update(specsOf(e)[1:])
		for rank := 1; rank < 4; rank++ {
			address := fmt.Sprintf("10.0.0.5:%d", 8000+rank)
			if rest.ByAddress(address).Generation != snapshot.ByAddress(address).Generation {
				t.Errorf("%s: rank %d became another instance", in, rank)
			}
		}
	}
}

func TestParseEntryErrors(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"":                                     "write host:port",
		"10.0.0.5":                             "port is missing; write 10.0.0.5:8000",
		"vllm":                                 "port is missing",
		":8000":                                "host is missing",
		"10.0.0.5:":                            `port must be 1 to 65535, got ""`,
		"10.0.0.5:0":                           "port must be 1 to 65535",
		"10.0.0.5:65536":                       "port must be 1 to 65535",
		"10.0.0.5:-1":                          `port must be 1 to 65535, got "-1"`,
		"10.0.0.5:http":                        `got "http"`,
		"10.0.0.5:8003-8000":                   "the first is above the last",
		"10.0.0.5:1-":                          `got ""`,
		"10.0.0.5:8000,8000":                   "port 8000 is listed twice",
		"10.0.0.5:8000-8001,8001":              "port 8001 is listed twice",
		"10.0.0.5:1-60000":                     "at most 256 ports, got 60000",
		"10.0.0.256:8000":                      "not an IP address",
		"10.0.0.05:8000":                       "not an IP address",
		"0.0.0.0:8000":                         "not the address of one host",
		"[::]:8000":                            "not the address of one host",
		"224.0.0.1:8000":                       "not the address of one host",
		"255.255.255.255:8000":                 "not the address of one host",
		"[fe80::1%eth0]:8000":                  "zone",
		"2001:db8::5":                          "write [2001:db8::5]:8000",
		"2001:db8::5:80000":                    "in brackets",
		"[2001:db8::5]":                        "must be [ipv6]:port",
		"[2001:db8::5]8000":                    "must be [ipv6]:port",
		"[2001:db8::5:8000":                    "must be [ipv6]:port",
		"[10.0.0.5]:8000":                      "must be [ipv6]:port",
		"[::g]:8000":                           "a DNS name has no ':'",
		"http://10.0.0.5:8000":                 "without a scheme",
		"10.0.0.5:8000;engine=sglang":          "after a comma",
		"10.0.0.5 8000":                        "without spaces",
		"-x.internal:80":                       "hyphen",
		"a..b:80":                              "empty label",
		"ü.internal:80":                        "a DNS name has no",
		strings.Repeat("a", 64) + ":80":        "at most 63 bytes",
		strings.Repeat("a.", 127) + "a:80":     "at most 253 bytes",
		strings.Repeat("a", 5000):              "has 5000 bytes",
		"dns+10.0.0.5:80":                      "dns+ takes a DNS name",
		"srv+10.0.0.5":                         "srv+ takes a DNS name",
		"srv+vllm:80":                          "ports of srv+ come from DNS",
		"srv+vllm,80":                          "ports of srv+ come from DNS",
		"srv+vllm,name=x":                      "name: the endpoints of srv+ are named by the hosts",
		"srv+vllm,rank=1":                      "rank: srv+",
		"srv+":                                 "host is missing",
		"10.0.0.5:8000,engin=vllm":             `did you mean "engine"?)`,
		"10.0.0.5:8000,zone=a":                 "a label is label.zone",
		"10.0.0.5:8000,engine=vlm":             `engine: must be one of vllm, sglang, trtllm, triton, got "vlm" (did you mean "vllm"?)`,
		"10.0.0.5:8000,engine=":                "engine: has no value",
		"10.0.0.5:8000,state=Ready":            `did you mean "ready"?)`,
		"10.0.0.5:8000,engine=vllm,8001":       "ports come before the first setting",
		"10.0.0.5:8000,name=a,name=b":          "name: is set twice",
		"10.0.0.5:8000,label.a=1,label.a=2":    "label.a: is set twice",
		"10.0.0.5:8000,label.=1":               "a label's key has 1 to 317 bytes",
		"10.0.0.5:8000,label.a b=1":            "a label's key holds only",
		"10.0.0.5:8000,label.a=x\x00y":         "byte 1 is not printable",
		"10.0.0.5:8000,name=\xff":              "not printable",
		"10.0.0.5:8000,rank=-1":                "rank: must be 0 to 65535",
		"10.0.0.5:8000,rank=1e3":               "rank: must be 0 to 65535",
		"10.0.0.5:8000-8001,rank=65535":        "a rank above 65535",
		"10.0.0.5:8000,metricsPort=0":          "metricsPort: port must be",
		"10.0.0.5:8000-8001,metricsPort=65535": "a metrics port above 65535",
		"10.0.0.5:8000,family=ipv4":            "family: applies to names",
		"vllm:8000,family=ipv":                 `did you mean "ipv4"?)`,
		"10.0.0.5:8000,metricsURL=10.0.0.5:9000/metrics":           "must be http://",
		"10.0.0.5:8000,metricsURL=file:///etc/passwd":              "must be http://",
		"10.0.0.5:8000,metricsURL=http://":                         "must be http://",
		"10.0.0.5:8000,metricsURL=http://u:p@h/":                   "must not hold a user or password",
		"10.0.0.5:8000,metricsURL=http://{host}/":                  "the placeholders are {address}, {ip}, {port}, {rank}",
		"10.0.0.5:8000,metricsPort=1,metricsURL=http://h/":         "exclude each other",
		"10.0.0.5:8000-8001,metricsURL=http://10.0.0.5:9/metrics":  "the same page for several endpoints",
		"srv+vllm,metricsURL=http://10.0.0.5:9/metrics":            "the same page for several endpoints",
		"10.0.0.5:8000,name=" + strings.Repeat("n", 254):           "at most 253",
		"10.0.0.5:8000,label." + strings.Repeat("n", 318) + "=":    "got 318",
		"10.0.0.5:8000,label.a=" + strings.Repeat("n", 254):        "at most 253",
		"10.0.0.5:8000" + strings.Join(manyLabels(65), ""):         "at most 64 labels",
		"10.0.0.5:8000,metricsURL=" + strings.Repeat("http", 1000): "at most 2048",
	} {
		e, err := ParseEntry(in)
		switch {
		case err == nil:
			t.Errorf("ParseEntry(%q) = %s, want an error with %q", clip(in), e, want)
		case !strings.Contains(err.Error(), want):
			t.Errorf("ParseEntry(%q): %v; want %q in it", clip(in), err, want)
		case !strings.HasPrefix(err.Error(), fmt.Sprintf("endpoint %q", clip(in))) || len(err.Error()) > 600:
			t.Errorf("ParseEntry(%q): %v; must name the entry, and be short", clip(in), err)
		}
	}
}

func manyLabels(n int) []string {
	list := make([]string, n)
	for i := range list {
		list[i] = fmt.Sprintf(",label.k%d=v", i)
	}
	return list
}

func TestParseEntriesReportsAll(t *testing.T) {
	t.Parallel()
	_, err := ParseEntries([]string{"10.0.0.5:8000", "x", "10.0.0.6:8000", "y:0"})
	if err == nil || !strings.Contains(err.Error(), `endpoints[1]: endpoint "x"`) ||
		!strings.Contains(err.Error(), `endpoints[3]: endpoint "y:0"`) {
		t.Errorf("want both faults, got %v", err)
	}
	if entries, err := ParseEntries(nil); err != nil || len(entries) != 0 {
		t.Errorf("ParseEntries(nil) = %v, %v", entries, err)
	}
}

func FuzzParseEntry(f *testing.F) {
	for _, s := range []string{
		"10.0.0.5:8000", "[2001:db8::5]:8000,engine=sglang,label.zone=a", "10.0.0.5:8000-8003,name=vllm-0",
		"vllm.internal:8000,8002,family=any", "srv+_http._tcp.vllm.internal,state=draining,metricsURL=http://{ip}:1/",
		"[::ffff:1.2.3.4]:1,metricsPort=65535", "a:1,uid=u,rank=7", "dns+x:1",
		"10.0.0.5:8000-8001,kvEvents.port=5557,kvEvents.replayPort=5567,kvEvents.topic=kv@",
		"a:1,kvEvents.port=none,kvEvents.ranks=2", "a:1,kvEvents.bind=true,kvEvents.discover=false,kvEvents.replayPort=none",
		"1.2.3.4:1;x=y", "x:1-65535",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		e, err := ParseEntry(s)
		if err != nil {
			if len(err.Error()) > 1000 {
				t.Errorf("error of %d bytes", len(err.Error()))
			}
			return
		}
		again, err := ParseEntry(e.String())
		if err != nil {
			t.Fatalf("%q is %q, which is an error: %v", s, e, err)
		}
		if diff := cmp.Diff(e, again, cmp.AllowUnexported(Entry{}), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%q is %q, which reads differently: %s", s, e, diff)
		}
		checkSpecs(t, &e)
	})
}

// checkSpecs looks at what every entry must come to.
func checkSpecs(t *testing.T, e *Entry) {
	t.Helper()
	answer := []target{
		{host: "a", addr: netip.MustParseAddr("192.0.2.1"), port: 1},
		{host: "b", addr: netip.MustParseAddr("2001:db8::1"), port: 65535},
	}
	specs := e.appendSpecs(nil, answer)
	if len(specs) == 0 || len(specs) > 2*maxPorts {
		t.Errorf("%s: %d endpoints", e, len(specs))
	}
	seen := make(map[string]bool)
	for _, s := range specs {
		if n, err := NormalizeAddress(s.Address); err != nil || n != s.Address || seen[s.Address] {
			t.Errorf("%s: address %q is no normalised address of its own: %v", e, s.Address, err)
		}
		seen[s.Address] = true
		if s.Name == "" || s.Rank < 0 || s.Rank > maxRank {
			t.Errorf("%s: endpoint %+v", e, s)
		}
	}
}
