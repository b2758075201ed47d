package ledger

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func contains(err error, s string) bool { return strings.Contains(err.Error(), s) }

// TestC01_EveryEndReleasesOnce: however a stream ends, and wherever it was, the endpoint is back at nothing.
func TestC01_EveryEndReleasesOnce(t *testing.T) {
	b := newBench(t, "default", "addEstimatedOutputTokens: true")
	b.update(spec('a', ""), spec('b', ""))
	b.input(1000)
	reasons := []scheduling.EndReason{scheduling.EndComplete, scheduling.EndDisconnect, scheduling.EndError, scheduling.EndUnseen}
	ways := map[string]func(f *scheduling.Flight){
		"at the pick":           func(*scheduling.Flight) {},
		"after the first token": func(f *scheduling.Flight) { f.FirstToken(1) },
		"a first token twice":   func(f *scheduling.Flight) { f.FirstToken(1); f.FirstToken(2) },
		"moved":                 func(f *scheduling.Flight) { f.Served(b.pool.Snapshot().Endpoints[1], f.PickedAt) },
		"moved, then decoding":  func(f *scheduling.Flight) { f.Served(b.pool.Snapshot().Endpoints[1], f.PickedAt); f.FirstToken(1) },
		"decoding, then moved":  func(f *scheduling.Flight) { f.FirstToken(1); f.Served(b.pool.Snapshot().Endpoints[1], f.PickedAt) },
	}
	for name, way := range ways {
		for _, reason := range reasons {
			before := b.ledger.Released(reason)
			f := b.send('a')
			b.expect(name+": charged", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 2500})
			way(f)
			f.Done(scheduling.Outcome{Reason: reason}, time.Second)
			for ordinal := range 2 {
				b.expect(name+", "+reason.String(), ordinal, scheduling.InFlightLoad{})
			}
			if got := b.ledger.Released(reason) - before; got != 1 {
				t.Errorf("%s, %v: %d releases counted, want 1", name, reason, got)
			}
		}
	}
}

// TestC05_CounterBelongsToAnInstance: E leaves and returns under the same name while R1 runs.
func TestC05_CounterBelongsToAnInstance(t *testing.T) {
	one, two := scheduling.InFlightLoad{Requests: 1, Tokens: 1000}, scheduling.InFlightLoad{Requests: 2, Tokens: 2000}
	start := func(t *testing.T) *bench {
		b := newBench(t, "default", "")
		b.update(spec('a', "U1"))
		b.input(1000)
		return b
	}

	t.Run("delete and add under another uid", func(t *testing.T) {
		b := start(t)
		r1 := b.send('a')
		b.update()
		b.update(spec('a', "U2"))
		b.expect("new instance", 0, scheduling.InFlightLoad{})
		r2 := b.send('a')
		b.expect("R2 charged", 0, one)
		complete(r1)
		b.expect("R1 ended", 0, one)
		complete(r2)
		b.expect("R2 ended", 0, scheduling.InFlightLoad{})
	})
	t.Run("replaced in one update", func(t *testing.T) {
		b := start(t)
		r1 := b.send('a')
		b.update(spec('a', "U2"))
		r2 := b.send('a')
		complete(r1)
		b.expect("R1 ended", 0, one)
		complete(r2)
		b.expect("R2 ended", 0, scheduling.InFlightLoad{})
	})
	t.Run("another endpoint gets the ordinal", func(t *testing.T) {
		b := start(t)
		r1 := b.send('a')
		b.update(spec('b', ""))
		b.expect("the newcomer", 0, scheduling.InFlightLoad{})
		complete(r1)
		b.expect("R1 ended", 0, scheduling.InFlightLoad{})
	})
	t.Run("readiness flap", func(t *testing.T) {
		b := start(t)
		r1 := b.send('a')
		down := spec('a', "U1")
		down.State = scheduling.EndpointNotReady
		b.update(down)
		b.expect("not ready", 0, one)
		b.update(spec('a', "U1"))
		b.expect("ready again", 0, one)
		r2 := b.send('a')
		b.expect("R2 charged", 0, two)
		complete(r1)
		b.expect("R1 ended", 0, one)
		complete(r2)
		b.expect("R2 ended", 0, scheduling.InFlightLoad{})
	})
	t.Run("a health probe cycle touches nothing", func(t *testing.T) {
		b := start(t)
		r1 := b.send('a')
		for range 3 {
			b.scheduler.SnapshotChanged(b.pool.Snapshot())
		}
		b.expect("probed", 0, one)
		complete(r1)
		b.expect("R1 ended", 0, scheduling.InFlightLoad{})
	})
	t.Run("nothing expires while R1 runs", func(t *testing.T) {
		b := start(t)
		r1 := b.send('a')
		r1.FirstToken(2 * time.Second)
		b.expect("after 2 s", 0, scheduling.InFlightLoad{Requests: 1, Decoding: 1})
		r1.Done(scheduling.Outcome{Status: 200}, 5*time.Hour)
		b.expect("after 5 h", 0, scheduling.InFlightLoad{})
	})
	t.Run("a pick on an older snapshot", func(t *testing.T) {
		b := start(t)
		c := b.begin('a', scheduling.Request{})
		b.update(spec('a', "U2"))
		stale, err := b.scheduler.Commit(c)
		if err != nil {
			t.Fatal(err)
		}
		b.scheduler.End(c)
		b.expect("the charge is the old instance's", 0, scheduling.InFlightLoad{})
		r2 := b.send('a')
		complete(stale)
		b.expect("the stale one ended", 0, one)
		complete(r2)
		b.expect("R2 ended", 0, scheduling.InFlightLoad{})
	})
}

// TestC06_TwoProfilesOneRequest: a request's prefill and decode are two flights with two charges, on one endpoint or on
// two. Prefill is charged input only and goes at the first token; decode goes at the end.
func TestC06_TwoProfilesOneRequest(t *testing.T) {
	for name, decodeOn := range map[string]byte{"one endpoint": 'a', "two endpoints": 'b'} {
		t.Run(name, func(t *testing.T) {
			const parameters = "addEstimatedOutputTokens: true\nmaxEstimatedOutputTokens: 256"
			b := newBench(t, PrefillProfile, parameters)
			b.update(spec('a', ""), spec('b', ""))
			b.input(1024)
			b.matched(0, 40, 64) // 640 of 1,024 tokens cached
			b.matched(1, 64, 64) // decode's endpoint will have got the blocks
			total := func(when string, want scheduling.InFlightLoad) {
				t.Helper()
				var sum scheduling.InFlightLoad
				for l := range b.ledger.Loads() {
					if l.Requests < 0 || l.Tokens < 0 || l.Decoding < 0 {
						t.Errorf("%s: %s has %+v", when, l.Address, l.InFlightLoad)
					}
					sum.Requests += l.Requests
					sum.Tokens += l.Tokens
					sum.Decoding += l.Decoding
				}
				if sum != want {
					t.Errorf("%s: %+v in all, want %+v", when, sum, want)
				}
			}
			prefill := b.send('a')
			total("prefill charged", scheduling.InFlightLoad{Requests: 1, Tokens: 384})
			b.configure("decode", parameters) // the same ledger, taken over
			decode := b.send(decodeOn)
			decodeTokens := int64(256)
			if decodeOn == 'a' {
				decodeTokens += 384
			}
			total("decode charged", scheduling.InFlightLoad{Requests: 2, Tokens: 384 + decodeTokens})

			b.matched(0, 0, 64) // the blocks are removed: a fresh look-up would say 0 cached
			prefill.FirstToken(1)
			decode.FirstToken(1)
			total("first token", scheduling.InFlightLoad{Requests: 1, Tokens: 256, Decoding: 1})
			if decodeOn == 'b' {
				b.expect("the prefill endpoint after the first chunk", 0, scheduling.InFlightLoad{})
			}
			usage := scheduling.Usage{PromptTokens: 1024, CompletionTokens: 7}
			prefill.Done(scheduling.Outcome{Status: 200}, 2)
			decode.Done(scheduling.Outcome{Status: 200, Usage: usage}, 2)
			total("the end", scheduling.InFlightLoad{})
		})
	}
}

// TestC08_ClientIdsDoNotMatter: a ledger that keyed its charges by what clients send would mix these up.
func TestC08_ClientIdsDoNotMatter(t *testing.T) {
	b := newBench(t, "default", "")
	b.update(spec('a', ""), spec('b', ""))
	send := func(to byte, tokens int, id string) *scheduling.Flight {
		b.input(tokens)
		var headers []scheduling.Header
		if id != "none" {
			headers = []scheduling.Header{{Name: "x-request-id", Value: []byte(id)}}
		}
		return b.request(to, scheduling.Request{Headers: headers})
	}
	long, short := send('a', 1000, "dup-1"), send('b', 50, "dup-1")
	complete(short)
	b.expect("the short one ended", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 1000})
	b.expect("the short one ended", 1, scheduling.InFlightLoad{})
	third := send('b', 70, "dup-1")
	none, empty, huge := send('b', 1, "none"), send('b', 2, ""), send('b', 4, strings.Repeat("x", 64<<10))
	b.expect("five left", 1, scheduling.InFlightLoad{Requests: 4, Tokens: 77})
	complete(long)
	b.expect("the long one ended", 0, scheduling.InFlightLoad{})
	b.expect("the long one ended", 1, scheduling.InFlightLoad{Requests: 4, Tokens: 77})
	for _, f := range []*scheduling.Flight{huge, third, none, empty} {
		complete(f)
	}
	b.expect("all ended", 1, scheduling.InFlightLoad{})
}

// TestC22_Wiring: the ledger finds the one match producer there is, whatever its name, asks which where there are
// several, and says how often it had no match info.
func TestC22_Wiring(t *testing.T) {
	var table schedtest.Table
	matchOnly := func(name string) scheduling.PluginType {
		return scheduling.PluginType{Type: name, New: func(b *scheduling.Builder) (any, error) {
			scheduling.ProduceColumn[scheduling.PrefixCacheMatchInfo](b)
			return silent{}, nil
		}}
	}
	types := append(table.Types()[:1:1], Type(), pinPicker, matchOnly("index-one"), matchOnly("index-two"))
	tests := map[string]struct {
		plugins []scheduling.Spec
		want    string // error
		from    string // the producer that the ledger consumes
	}{
		"only one index":     {[]scheduling.Spec{{Name: "precise", Type: "index-one"}, {Name: "ledger", Type: TypeName}}, "", "precise"},
		"none: made":         {[]scheduling.Spec{{Name: "ledger", Type: TypeName}}, "", schedtest.EarlyType},
		"two: which?":        {[]scheduling.Spec{{Name: "x", Type: "index-one"}, {Name: "y", Type: "index-two"}, {Name: "ledger", Type: TypeName}}, "prefixMatchInfoProducerName: several plugins produce PrefixCacheMatchInfo: name one of x, y", ""},
		"two, one named":     {[]scheduling.Spec{{Name: "x", Type: "index-one"}, {Name: "y", Type: "index-two"}, {Name: "ledger", Type: TypeName, Decode: schedtest.YAML("prefixMatchInfoProducerName: y")}}, "", "y"},
		"one that is absent": {[]scheduling.Spec{{Name: "precise", Type: "index-one"}, {Name: "ledger", Type: TypeName, Decode: schedtest.YAML("prefixMatchInfoProducerName: presice")}}, `unknown producer "presice" (did you mean "precise"?)`, ""},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s, err := scheduling.Build(types, schedtest.Config(test.plugins, pinPicker.Type), nil)
			if test.want != "" {
				if err == nil || !contains(err, test.want) {
					t.Errorf("error %v, want one that says %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := s.Plugin("ledger").(*Plugin).match.Producer(); got != test.from {
				t.Errorf("match info from %q, want %q", got, test.from)
			}
		})
	}

	t.Run("charged without match info", func(t *testing.T) {
		b := newBench(t, "default", "")
		b.update(spec('a', ""), spec('b', ""), spec('c', ""))
		b.input(1000)
		b.matched(0, 0, 62) // known to hold nothing
		b.table.Endpoints[1].Match = &scheduling.PrefixCacheMatchInfo{MatchBlocks: 62, CachedBlockCount: 62, TotalBlocks: 62}
		for _, to := range []byte("aabbbc") {
			complete(b.send(to))
		}
		b.table.Prompt = nil
		complete(b.send('c')) // a request without a prompt has nothing to match
		if got := b.ledger.ChargedWithoutMatchInfo(); got != 4 {
			t.Errorf("charged without match info: %d, want 4", got)
		}
	})
	t.Run("no tokens: charged by bytes, and said", func(t *testing.T) {
		b := newBench(t, "default", "")
		b.update(spec('a', ""))
		f := b.request('a', scheduling.Request{PromptBytes: 4000})
		b.expect("charged", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 1000})
		if got := b.ledger.ChargedWithoutTokens(); got != 1 {
			t.Errorf("charged without tokens: %d, want 1", got)
		}
		complete(f)
	})
	t.Run("beyond the index's reach the tail counts, not the head", func(t *testing.T) {
		b := newBench(t, "default", "")
		b.update(spec('a', ""))
		b.input(200_000)
		b.matched(0, 8192, 8192) // 131,072 tokens looked up, all cached
		f := b.send('a')
		b.expect("charged", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 200_000 - 131_072})
		complete(f)
	})
}

// silent is a producer that never has anything to say.
type silent struct{}

func (silent) Produce(context.Context, *scheduling.Cycle) error { return nil }

// TestReload: what is in flight, and the counts, survive a new configuration; flights of the old one release through
// the same counters.
func TestReload(t *testing.T) {
	b := newBench(t, "default", "")
	b.update(spec('a', ""))
	b.input(1000)
	old := b.send('a')
	b.configure("default", "addEstimatedOutputTokens: true\nmaxEstimatedOutputTokens: 10")
	b.expect("reloaded", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 1000})
	if got := b.ledger.ChargedWithoutMatchInfo(); got != 1 {
		t.Errorf("charged without match info: %d after the reload, want 1", got)
	}
	recent := b.send('a')
	b.expect("both", 0, scheduling.InFlightLoad{Requests: 2, Tokens: 2010})
	old.FirstToken(1)
	complete(old)
	b.expect("the old one ended", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 1010})
	complete(recent)
	b.expect("both ended", 0, scheduling.InFlightLoad{})
}

func TestMovedCarriesWhatIsLeft(t *testing.T) {
	b := newBench(t, "default", "addEstimatedOutputTokens: true\nmaxEstimatedOutputTokens: 256")
	b.update(spec('a', ""), spec('b', ""))
	b.input(1000)
	b.matched(0, 31, 62) // 496 cached on the picked one; the other is charged the same amounts
	f := b.send('a')
	b.expect("charged", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 504 + 256})
	f.Served(b.pool.Snapshot().Endpoints[1], f.PickedAt)
	b.expect("moved from", 0, scheduling.InFlightLoad{})
	b.expect("moved to", 1, scheduling.InFlightLoad{Requests: 1, Tokens: 504 + 256})
	f.FirstToken(1)
	b.expect("first token", 1, scheduling.InFlightLoad{Requests: 1, Tokens: 256, Decoding: 1})
	f.Served(b.pool.Snapshot().Endpoints[0], f.PickedAt)
	b.expect("moved back", 0, scheduling.InFlightLoad{Requests: 1, Tokens: 256, Decoding: 1})
	b.expect("moved back", 1, scheduling.InFlightLoad{})
	complete(f)
	b.expect("ended", 0, scheduling.InFlightLoad{})
}
