package kvevents

import (
	"log/slog"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// at5 is a place in short: rank, publisher, replay socket; a port alone is the endpoint's.
func at5(rank int, publisher, replay string) place {
	with := func(port string) string {
		if port == "" || strings.Contains(port, ":") {
			return port
		}
		return "10.0.0.5:" + port
	}
	return place{rank, with(publisher), with(replay)}
}

func file(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// Where an endpoint's ranks are taken to publish: what its configuration says goes before the engine's word, and that
// before the defaults.
func TestPlaces(t *testing.T) {
	defaults := Config{Port: 5557, Discover: true}
	withReplay := Config{Port: 5557, ReplayPort: 5657, Discover: true}
	vllm := file(t, "vllm_kv_event_sources.json")
	vllm2 := file(t, "vllm_kv_event_sources_dp2.json")
	sglang := file(t, "sglang_server_info.json")
	source := func(fields string) string {
		return `{"0":{"enable_kv_cache_events":true,"publisher":"zmq",` + fields + `}}`
	}
	for name, c := range map[string]struct {
		endpoint scheduling.EndpointSpec
		config   Config
		vllm     string // /kv_event_sources
		info     string // /server_info
		acceptor bool   // engines may connect
		want     []place
	}{
		"nothing told":              {config: defaults, want: []place{at5(0, "5557", "")}},
		"a replay port":             {config: withReplay, want: []place{at5(0, "5557", "5657")}},
		"ranks":                     {config: Config{Port: 5557, ReplayPort: 5657, Ranks: 2}, want: []place{at5(0, "5557", "5657"), at5(1, "5558", "5658")}},
		"a rank with a port of API": {endpoint: scheduling.EndpointSpec{Rank: 3}, config: withReplay, want: []place{at5(3, "5560", "5660")}},
		"captured from vLLM 0.32":   {config: defaults, vllm: vllm, want: []place{at5(0, "5557", "5558")}},
		"captured, two ranks":       {config: defaults, vllm: vllm2, want: []place{at5(0, "5557", "5567"), at5(1, "5558", "5568")}},
		"two ranks, of which one is the endpoint's": {
			endpoint: scheduling.EndpointSpec{Rank: 1, KVEvents: scheduling.KVEvents{Ranks: 1}}, config: defaults, vllm: vllm2,
			want: []place{at5(1, "5558", "5568")},
		},
		"one rank, which the engine calls otherwise": {
			endpoint: scheduling.EndpointSpec{Rank: 1, KVEvents: scheduling.KVEvents{Ranks: 1}}, config: defaults, vllm: vllm,
			want: []place{at5(1, "5557", "5558")},
		},
		"captured, without an engine": {config: defaults, vllm: file(t, "vllm_kv_event_sources_render.json"), want: []place{at5(0, "5557", "")}},
		"vLLM's server_info":          {config: defaults, info: file(t, "vllm_server_info.json"), want: []place{at5(0, "5557", "")}},
		"SGLang":                      {config: defaults, info: sglang, want: []place{at5(0, "6557", "6657"), at5(1, "6558", "6658")}},
		"SGLang without replay": {
			config: withReplay, info: `{"kv_events":{"endpoint_host":"10.0.0.9","endpoint_port_base":6557}}`,
			want: []place{at5(0, "6557", "")},
		},
		"SGLang without events": {config: defaults, info: `{"kv_events":null}`, want: []place{at5(0, "5557", "")}},
		"SGLang without a port": {config: defaults, info: `{"kv_events":{"endpoint_host":"*"}}`, want: []place{at5(0, "5557", "")}},
		"vLLM goes first":       {config: defaults, vllm: vllm, info: sglang, want: []place{at5(0, "5557", "5558")}},
		"the endpoint's own word": {
			endpoint: scheduling.EndpointSpec{KVEvents: scheduling.KVEvents{Port: 7001, ReplayPort: 7101, Ranks: 2}},
			config:   withReplay, vllm: vllm,
			want: []place{at5(0, "7001", "7101"), at5(1, "7002", "7102")},
		},
		"its port only": {
			endpoint: scheduling.EndpointSpec{KVEvents: scheduling.KVEvents{Port: 7001}}, config: withReplay, vllm: vllm,
			want: []place{at5(0, "7001", "5558")},
		},
		"its port is of its own rank": {
			endpoint: scheduling.EndpointSpec{Rank: 4, KVEvents: scheduling.KVEvents{Port: 7004, Ranks: 1}}, config: defaults,
			want: []place{at5(4, "7004", "")},
		},
		"no replay socket": {
			endpoint: scheduling.EndpointSpec{KVEvents: scheduling.KVEvents{ReplayPort: -1}}, config: withReplay, vllm: vllm,
			want: []place{at5(0, "5557", "")},
		},
		"engine without a replay socket": {
			config: withReplay, vllm: source(`"endpoint":"tcp://*:6000","replay_endpoint":null`), want: []place{at5(0, "6000", "")},
		},
		"engine that does not say": {config: withReplay, vllm: source(`"endpoint":""`), want: []place{at5(0, "5557", "")}},
		"all interfaces":           {config: defaults, vllm: source(`"endpoint":"tcp://0.0.0.0:6000"`), want: []place{at5(0, "6000", "")}},
		"all interfaces, IPv6":     {config: defaults, vllm: source(`"endpoint":"tcp://[::]:6000"`), want: []place{at5(0, "6000", "")}},
		"all interfaces, bare":     {config: defaults, vllm: source(`"endpoint":"tcp://:::6000"`), want: []place{at5(0, "6000", "")}},
		"localhost":                {config: defaults, vllm: source(`"endpoint":"tcp://localhost:6000"`), want: []place{at5(0, "6000", "")}},
		"another host":             {config: defaults, vllm: source(`"endpoint":"tcp://10.0.0.9:6000","replay_endpoint":"tcp://redis:6379"`), want: []place{at5(0, "6000", "6379")}},
		"its own host":             {config: defaults, vllm: source(`"endpoint":"tcp://[::ffff:10.0.0.5]:6000","replay_endpoint":"tcp://10.0.0.5:6001"`), want: []place{at5(0, "6000", "6001")}},
		"a port not told": {
			config: withReplay, vllm: source(`"endpoint":"tcp://127.0.0.1:*","replay_endpoint":"tcp://*:*"`),
			want: []place{at5(0, "5557", "5657")},
		},
		"no TCP": {
			config: defaults, vllm: source(`"endpoint":"ipc:///tmp/kv","replay_endpoint":"inproc://replay_dp0"`),
			want: []place{at5(0, "5557", "")},
		},
		"no address":   {config: defaults, vllm: source(`"endpoint":"tcp://5557"`), want: []place{at5(0, "5557", "")}},
		"no such port": {config: defaults, vllm: source(`"endpoint":"tcp://*:99999"`), want: []place{at5(0, "5557", "")}},
		"off":          {config: defaults, vllm: `{"0":{"enable_kv_cache_events":false}}`},
		"off, another publisher": {
			config: defaults, vllm: `{"0":{"enable_kv_cache_events":true,"publisher":"null"},"1":{"publisher":"zmq","endpoint":"tcp://*:6001"}}`,
			want: []place{at5(1, "6001", "")},
		},
		"off, but configured": {
			endpoint: scheduling.EndpointSpec{KVEvents: scheduling.KVEvents{Port: 7001}}, config: defaults,
			vllm: `{"0":{"enable_kv_cache_events":false}}`, want: []place{at5(0, "7001", "")},
		},
		"ranks that are none": {config: defaults, vllm: `{"-1":{},"x":{},"1":null}`, want: []place{at5(0, "5557", "")}},
		"no JSON":             {config: defaults, vllm: "<html>", info: "[]", want: []place{at5(0, "5557", "")}},
		"too long":            {config: defaults, vllm: `{"0":{"endpoint":"tcp://*:6000"},"x":"` + strings.Repeat("x", maxAnswer) + `"}`, want: []place{at5(0, "5557", "")}},
		"more ranks than there may be": {
			config: defaults, info: `{"kv_events":{"endpoint_port_base":6557,"dp_size":1000000}}`,
			want: func() (all []place) {
				for rank := range maxRanks {
					all = append(all, place{rank, net5(6557 + rank), ""})
				}
				return all
			}(),
		},
		"the engine connects, by its own word": {
			endpoint: scheduling.EndpointSpec{}, config: Config{Discover: true, Bind: true}, acceptor: true,
			vllm: source(`"endpoint":"tcp://10.0.0.9:6000","replay_endpoint":"tcp://10.0.0.9:6001"`), want: []place{at5(0, "", "6001")},
		},
		"the engine connects": {
			endpoint: scheduling.EndpointSpec{KVEvents: scheduling.KVEvents{Bind: true}}, config: withReplay, vllm: vllm,
			want: []place{at5(0, "", "5558")},
		},
	} {
		t.Run(name, func(t *testing.T) {
			pages := &pages{bodies: map[string]string{}}
			if c.vllm != "" {
				pages.bodies["/kv_event_sources"] = c.vllm
			}
			if c.info != "" {
				pages.bodies["/server_info"] = c.info
			}
			c.endpoint.Address = "10.0.0.5:8000"
			f := &Feed{
				endpoint: &scheduling.Endpoint{EndpointSpec: c.endpoint}, host: "10.0.0.5", config: c.config, stats: &Stats{},
				options: Options{Client: clientOf(pages)}, ctx: t.Context(), logger: slog.New(slog.DiscardHandler),
			}
			if c.acceptor {
				f.options.Acceptor = newAcceptor(f.logger)
			}
			engine, answered := f.ask()
			if !answered {
				t.Error("not answered")
			}
			if diff := cmp.Diff(c.want, f.places(engine), cmp.AllowUnexported(place{})); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func net5(port int) string {
	f := Feed{host: "10.0.0.5"}
	return f.at("*", port)
}

func TestIPv6Endpoint(t *testing.T) {
	f := Feed{host: "fd00::5", logger: slog.New(slog.DiscardHandler)}
	for _, host := range []string{"*", "::", "::1", "127.0.0.1", ""} {
		if got := f.at(host, 5557); got != "[fd00::5]:5557" {
			t.Errorf("%q: got %s", host, got)
		}
	}
	for address, want := range map[string]string{"tcp://[fd00::5]:6000": "[fd00::5]:6000", "tcp://[fd00::6]:6000": "[fd00::5]:6000"} {
		if host, port, ok := zmqAddress(address); !ok || f.at(host, port) != want {
			t.Errorf("%s: got %s %d %t", address, host, port, ok)
		}
	}
}

func FuzzZMQAddress(f *testing.F) {
	for _, s := range []string{"tcp://*:99999", "tcp://*:-1", "tcp://*:5557", "tcp://127.0.0.1:*", "tcp://[::]:5557", "tcp://:::5557", "ipc:///x", "tcp://", "tcp://h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, address string) {
		host, port, ok := zmqAddress(address)
		if ok && (port < 0 || port > 65535) {
			t.Errorf("%q: port %d", address, port)
		}
		if !strings.HasPrefix(address, "tcp://") && ok {
			t.Errorf("%q is no TCP address: %s", address, host)
		}
	})
}

func FuzzAnswers(f *testing.F) {
	for _, name := range []string{"vllm_kv_event_sources.json", "vllm_kv_event_sources_dp2.json", "sglang_server_info.json"} {
		b, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(b))
	}
	f.Add(`{"0":{"publisher":"zmq","endpoint":"tcp://*:0","replay_endpoint":null}}`)
	f.Add(`{"0":{"endpoint":"tcp://10.0.0.6:5557"}}`)
	f.Fuzz(func(t *testing.T, body string) {
		feed := &Feed{
			endpoint: &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.5:8000"}}, host: "10.0.0.5",
			config: Config{Port: 5557, Discover: true}, stats: &Stats{}, ctx: t.Context(), logger: slog.New(slog.DiscardHandler),
			options: Options{Client: clientOf(&pages{bodies: map[string]string{"/kv_event_sources": body, "/server_info": body}})},
		}
		engine, answered := feed.ask()
		places := feed.places(engine)
		if !answered || len(places) > maxRanks {
			t.Errorf("answered %t, %d places", answered, len(places))
		}
		for _, p := range places {
			for _, at := range []string{p.publisher, p.replay} {
				if at != "" && !strings.HasPrefix(at, "10.0.0.5:") {
					t.Errorf("leads away from the endpoint: %s", at)
				}
			}
		}
	})
}

// askingRig is a rig whose engine is asked.
func askingRig(t *testing.T) *rig {
	r := newRig(t)
	r.config.Discover = true
	r.options.Client = clientOf(r.pages)
	return r
}

// An engine that does not answer yet is expected at the configured ports, and asked again until it does.
func TestAskedUntilItAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := askingRig(t)
		r.config.ReplayPort = 0
		r.pages.refuse = true
		p := r.net.newProcess(1).start()
		p.publish()
		r.follow()
		r.sleep(25 * time.Second)
		if n := r.pages.count(); n != 4 { // at 0, 2, 6, 14 s
			t.Errorf("asked %d times in 25 s", n)
		}
		r.expect("silent")
		r.pages.set(func(p *pages) {
			p.refuse = false
			p.bodies["/kv_event_sources"] = file(t, "vllm_kv_event_sources.json")
			p.bodies["/kv_event_sources"] = strings.ReplaceAll(p.bodies["/kv_event_sources"], ":5558", ":5657")
		})
		r.sleep(30 * time.Second)
		r.expect("replaying 1.0 live") // on the connection that stands
		if n := r.net.dialled("10.0.0.5:5557"); n != 1 {
			t.Errorf("dialled %d times", n)
		}
		n := r.pages.count()
		r.sleep(time.Hour)
		if r.pages.count() != n {
			t.Errorf("asked %d times more though the publisher is connected", r.pages.count()-n)
		}
		if s := r.stats; s.Questions.Load() != int64(n) || s.Unanswered.Load() != 4 {
			t.Errorf("counted %d questions, %d unanswered", s.Questions.Load(), s.Unanswered.Load())
		}
	})
}

// An engine whose HTTP server says that it is not up has not answered.
func TestStatusWhileStarting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := askingRig(t)
		r.pages.status = 503
		r.follow()
		if n := r.pages.count(); n != 1 {
			t.Fatalf("asked %d times", n)
		}
		r.sleep(askFirst)
		if n := r.pages.count(); n != 2 {
			t.Errorf("asked %d times", n)
		}
	})
}

// An engine that is out of reach for long is asked where it is now.
func TestEngineMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := askingRig(t)
		page := `{"0":{"publisher":"zmq","endpoint":"tcp://*:6001","replay_endpoint":"tcp://*:6101"}}`
		r.pages.bodies["/kv_event_sources"] = page
		p := r.net.newProcess(1)
		p.pub, p.replay = "10.0.0.5:6001", "10.0.0.5:6101"
		p.start()
		p.publish()
		r.follow()
		r.expect("replaying 1.0 live")
		p.kill()
		q := r.net.newProcess(2)
		q.pub, q.replay = "10.0.0.5:6002", "10.0.0.5:6102"
		q.publish()
		q.start()
		r.sleep(askAgain - time.Second)
		if n := r.pages.count(); n != 1 {
			t.Errorf("asked %d times before it was long", n)
		}
		r.expect("degraded")
		r.sleep(2 * time.Second)
		if n := r.pages.count(); n != 2 {
			t.Errorf("asked %d times", n)
		}
		r.expect("")
		r.pages.set(func(p *pages) {
			p.bodies["/kv_event_sources"] = strings.ReplaceAll(strings.ReplaceAll(page, "6001", "6002"), "6101", "6102")
		})
		r.sleep(time.Minute)
		r.expect("replaying forget(replay_differs) 2.0 live")
		before := r.net.dialled("10.0.0.5:6001")
		r.sleep(time.Minute)
		if n := r.net.dialled("10.0.0.5:6001"); n != before {
			t.Errorf("the old address was dialled %d times more", n-before)
		}
	})
}

// An engine that was started anew and publishes elsewhere since is asked for it at the first sign of that, once.
func TestEngineMovesWithARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := askingRig(t)
		page := `{"0":{"publisher":"zmq","endpoint":"tcp://*:6001","replay_endpoint":"tcp://*:6101"}}`
		r.pages.bodies["/kv_event_sources"] = page
		p := r.net.newProcess(1)
		p.pub, p.replay = "10.0.0.5:6001", "10.0.0.5:6101"
		p.start()
		p.publish()
		r.follow()
		r.expect("replaying 1.0 live")
		r.feed.Restarted()
		r.sleep(time.Second)
		if n := r.pages.count(); n != 1 {
			t.Errorf("asked %d times while its publisher is connected, want once", n)
		}
		r.expect("forget(restart) replaying 1.0 live")
		p.kill()
		r.sleep(time.Second)
		r.expect("degraded")
		q := r.net.newProcess(2)
		q.pub, q.replay = "10.0.0.5:6002", "10.0.0.5:6102"
		q.publish()
		q.start()
		r.pages.set(func(p *pages) {
			p.bodies["/kv_event_sources"] = strings.ReplaceAll(strings.ReplaceAll(page, "6001", "6002"), "6101", "6102")
		})
		r.feed.Restarted()
		r.sleep(time.Second)
		if n := r.pages.count(); n != 2 {
			t.Errorf("asked %d times, want twice", n)
		}
		r.expect("forget(restart) initial replaying 2.0 live")
	})
}

// The questions to an engine that stays out of reach become rare.
func TestQuestionsBecomeRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := askingRig(t)
		r.follow()
		var at []time.Duration
		begun := time.Now()
		for n := r.pages.count(); time.Since(begun) < 20*time.Minute; r.sleep(time.Second) {
			if now := r.pages.count(); now != n {
				n = now
				at = append(at, time.Since(begun).Round(10*time.Second))
			}
		}
		want := []time.Duration{30 * time.Second, 90 * time.Second, 210 * time.Second, 450 * time.Second, 750 * time.Second, 1050 * time.Second}
		if !slices.Equal(at, want) {
			t.Errorf("asked at %v, want %v", at, want)
		}
	})
}

// A rank that is switched off goes, and one that comes is followed.
func TestRanksComeAndGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := askingRig(t)
		r.pages.refuse = true
		p := r.net.newProcess(1)
		p.rank, p.pub, p.replay = 3, "10.0.0.5:6003", "10.0.0.5:6103"
		p.publish()
		p.start()
		r.follow()
		if !slices.Equal(r.opens, []int{0}) {
			t.Errorf("opened %v", r.opens)
		}
		r.pages.set(func(p *pages) {
			p.refuse = false
			p.bodies["/kv_event_sources"] = `{"3":{"publisher":"zmq","endpoint":"tcp://*:6003","replay_endpoint":"tcp://*:6103"}}`
		})
		r.sleep(askFirst)
		// Nothing was ever heard of rank 0, so what was opened for it is rank 3's.
		r.expect("replaying 1.0 live")
		if !slices.Equal(r.opens, []int{0}) || r.feed.Sources()[0].Rank != 3 {
			t.Errorf("opened %v, %+v", r.opens, r.feed.Sources())
		}
	})
}
