package discovery

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/net/dns/dnsmessage"

	"github.com/sluice-epp/sluice/scheduling"
)

// lab is a set of entries whose names are looked up at a real name server, round by round, with a clock set by hand.
type lab struct {
	dns     *dnsServer
	o       *Options
	known   *answers
	entries []Entry
	now     time.Time
}

func newLab(t *testing.T, entries ...string) *lab {
	t.Helper()
	l := &lab{dns: startDNS(t), entries: mustEntries(t, entries...), now: time.Unix(1e9, 0)}
	l.o = Options{
		Resolver: l.dns.resolver(), ResolveTimeout: 2 * time.Second, EmptyGrace: 30 * time.Second,
		now: func() time.Time { return l.now },
	}.withDefaults()
	l.known = newAnswers(l.o)
	return l
}

func (l *lab) specs() []scheduling.EndpointSpec {
	return newList(nil, l.o, "lab").expand(l.entries, l.known)
}

// round looks up and checks the addresses that come of it.
func (l *lab) round(t *testing.T, wantChanged bool, want ...string) {
	t.Helper()
	if changed := l.known.refresh(t.Context(), l.entries, false); changed != wantChanged {
		t.Errorf("changed = %v, want %v", changed, wantChanged)
	}
	if diff := cmp.Diff(append([]string{}, want...), addresses(l.specs())); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
}

func TestDNSEveryAddressIsAnEndpoint(t *testing.T) {
	t.Parallel()
	l := newLab(t, "Engines.test.:8000-8001,label.zone=a")
	l.dns.setA("engines.test.", "10.0.0.6", "10.0.0.5")
	l.round(t, true, "10.0.0.5:8000", "10.0.0.5:8001", "10.0.0.6:8000", "10.0.0.6:8001")
	// The order in the answer means nothing.
	l.dns.setA("engines.test.", "10.0.0.5", "10.0.0.6", "10.0.0.5")
	l.round(t, false, "10.0.0.5:8000", "10.0.0.5:8001", "10.0.0.6:8000", "10.0.0.6:8001")
	l.dns.setA("engines.test.", "10.0.0.6", "10.0.0.7")
	l.round(t, true, "10.0.0.6:8000", "10.0.0.6:8001", "10.0.0.7:8000", "10.0.0.7:8001")
	if got := l.specs()[0]; got.Name != "engines.test.:8000/10.0.0.6" || got.Labels["zone"] != "a" {
		t.Errorf("%+v", got)
	}
	if lookups := l.o.Stats.Lookups.Load(); lookups != 3 {
		t.Errorf("%d look-ups, want 3", lookups)
	}
}

// One engine on a dual-stack host is one endpoint.
func TestDNSFamilies(t *testing.T) {
	t.Parallel()
	for family, want := range map[string][]string{
		"auto": {"10.0.0.5:8000", "[2001:db8::6]:8000"},
		"ipv4": {"10.0.0.5:8000"},
		"ipv6": {"[2001:db8::5]:8000", "[2001:db8::6]:8000"},
		"any":  {"10.0.0.5:8000", "[2001:db8::5]:8000", "[2001:db8::6]:8000"},
	} {
		l := newLab(t, "both.test.:8000,family="+family, "six.test.:8000,family="+family)
		l.dns.setA("both.test.", "10.0.0.5")
		l.dns.set("both.test.", "AAAA", netip.MustParseAddr("2001:db8::5"))
		l.dns.set("six.test.", "A")
		l.dns.set("six.test.", "AAAA", netip.MustParseAddr("2001:db8::6"))
		l.round(t, true, want...)
	}
	// When IPv4 fails for a time, IPv6 does not take its place.
	l := newLab(t, "both.test.:8000")
	l.dns.setA("both.test.", "10.0.0.5")
	l.dns.set("both.test.", "AAAA", netip.MustParseAddr("2001:db8::5"))
	l.round(t, true, "10.0.0.5:8000")
	l.dns.set("both.test.", "A", dnsmessage.RCodeServerFailure)
	l.round(t, false, "10.0.0.5:8000")
}

// Failures keep the last answer for ever; an authoritative nothing is believed after the grace period.
func TestDNSFailuresAndEmptyAnswers(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		answer []any
		gone   bool // whether the endpoints go in the end
	}{
		"server failure": {[]any{dnsmessage.RCodeServerFailure}, false},
		"refused":        {[]any{dnsmessage.RCodeRefused}, false},
		"no such name":   {[]any{dnsmessage.RCodeNameError}, true},
		"no records":     {nil, true},
		"blocked":        {[]any{netip.MustParseAddr("0.0.0.0")}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, "engines.test.:8000", "10.0.0.1:8000")
			l.dns.setA("engines.test.", "10.0.0.5")
			l.dns.set("engines.test.", "AAAA")
			l.round(t, true, "10.0.0.5:8000", "10.0.0.1:8000")
			l.dns.set("engines.test.", "A", c.answer...)
			l.round(t, false, "10.0.0.5:8000", "10.0.0.1:8000")
			if n := l.o.Stats.NamesFailing.Load(); n != 1 {
				t.Errorf("%d names failing, want 1", n)
			}
			l.now = l.now.Add(29 * time.Second)
			l.round(t, false, "10.0.0.5:8000", "10.0.0.1:8000")
			l.now = l.now.Add(time.Second)
			if c.gone {
				l.round(t, true, "10.0.0.1:8000")
			} else {
				l.round(t, false, "10.0.0.5:8000", "10.0.0.1:8000")
			}
			failures, empty := l.o.Stats.LookupFailures.Load(), l.o.Stats.LookupsEmpty.Load()
			if c.gone && (failures != 0 || empty != 3) || !c.gone && (failures != 3 || empty != 0) {
				t.Errorf("%d failures, %d empty", failures, empty)
			}
			l.dns.setA("engines.test.", "10.0.0.6")
			l.round(t, true, "10.0.0.6:8000", "10.0.0.1:8000")
			if n := l.o.Stats.NamesFailing.Load(); n != 0 {
				t.Errorf("%d names failing, want 0", n)
			}
		})
	}
}

// The grace period begins anew when the name had an answer in between.
func TestDNSGraceBeginsAnew(t *testing.T) {
	t.Parallel()
	l := newLab(t, "engines.test.:8000")
	for range 3 {
		l.dns.setA("engines.test.", "10.0.0.5")
		l.known.refresh(t.Context(), l.entries, false)
		l.dns.setA("engines.test.")
		l.round(t, false, "10.0.0.5:8000")
		l.now = l.now.Add(20 * time.Second)
		l.round(t, false, "10.0.0.5:8000")
	}
}

func TestDNSWithoutGrace(t *testing.T) {
	t.Parallel()
	l := newLab(t, "engines.test.:8000")
	l.o.EmptyGrace = 0
	l.dns.setA("engines.test.", "10.0.0.5")
	l.round(t, true, "10.0.0.5:8000")
	l.dns.set("engines.test.", "A", dnsmessage.RCodeServerFailure)
	l.round(t, false, "10.0.0.5:8000")
	l.dns.setA("engines.test.")
	l.round(t, true)
}

// A server that never answers costs one round its time limit, and no other name its endpoints.
func TestDNSSilentServer(t *testing.T) {
	t.Parallel()
	l := newLab(t, "mute.test.:8000", "engines.test.:8000")
	l.o.ResolveTimeout = 300 * time.Millisecond
	l.dns.set("mute.test.", "A", mute{})
	l.dns.setA("engines.test.", "10.0.0.5")
	start := time.Now()
	l.round(t, true, "10.0.0.5:8000")
	if took := time.Since(start); took < 300*time.Millisecond || took > wait {
		t.Errorf("took %s, the limit is 300ms", took)
	}
	if n := l.o.Stats.LookupFailures.Load(); n != 1 {
		t.Errorf("%d failures, want 1", n)
	}
}

// A source that ends does not wait for a name server that never answers, and leaves nothing behind.
func TestDNSEndsWhileAsking(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"A", "SRV"} {
		entry := map[string]string{"A": "mute.test.:8000", "SRV": "srv+mute.test."}[kind]
		l := newLab(t, entry)
		l.o.ResolveTimeout = time.Hour
		l.dns.set("mute.test.", kind, mute{})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := newList(l.entries, l.o, "lab").Run(ctx, func([]scheduling.EndpointSpec) { t.Error("published") }); err != nil {
				t.Error(err)
			}
		}()
		eventually(t, "the question arrives", func() bool { return l.dns.count("mute.test. "+kind) > 0 })
		start := time.Now()
		cancel()
		<-done
		if took := time.Since(start); took > 2*time.Second {
			t.Errorf("%s: ended after %s", kind, took)
		}
		if n := l.o.Stats.LookupFailures.Load(); n != 0 {
			t.Errorf("%s: the end counts as %d failures", kind, n)
		}
	}
}

// An answer too large for UDP comes by TCP and is whole.
func TestDNSLargeAnswer(t *testing.T) {
	t.Parallel()
	l := newLab(t, "engines.test.:8000")
	var addrs, want []string
	for i := range 300 {
		addrs = append(addrs, fmt.Sprintf("10.0.%d.%d", i/100, i%100+1))
		want = append(want, addrs[i]+":8000")
	}
	l.dns.setA("engines.test.", addrs...)
	l.round(t, true, want...)
	if l.dns.overTCP == 0 {
		t.Error("nothing came by TCP")
	}
}

func TestDNSSRV(t *testing.T) {
	t.Parallel()
	const name = "_http._tcp.vllm.test."
	l := newLab(t, "srv+"+name+",engine=sglang")
	l.dns.set(name, "SRV", srv("b.test.", 31001), srv("A.test.", 31000))
	l.dns.setA("a.test.", "10.0.0.5")
	l.dns.setA("b.test.", "10.0.0.6")
	l.round(t, true, "10.0.0.5:31000", "10.0.0.6:31001")
	if got := l.specs()[0]; got.Name != "a.test:31000" || got.Engine != "sglang" {
		t.Errorf("%+v", got)
	}
	// A replica more, and one whose name has trouble: it keeps its address, the others are followed.
	l.dns.setA("a.test.", "10.0.0.50")
	l.dns.set("b.test.", "A", dnsmessage.RCodeServerFailure)
	l.dns.setA("c.test.", "10.0.0.7")
	l.dns.set(name, "SRV", srv("a.test.", 31000), srv("b.test.", 31001), srv("c.test.", 31002), srv("d.test.", 31003))
	l.round(t, true, "10.0.0.6:31001", "10.0.0.7:31002", "10.0.0.50:31000")
	if n := l.o.Stats.NamesFailing.Load(); n != 2 { // b and d
		t.Errorf("%d names failing, want 2", n)
	}
	// A replica less: it is gone at once, and forgotten.
	l.dns.set(name, "SRV", srv("a.test.", 31000))
	l.round(t, true, "10.0.0.50:31000")
	if len(l.known.byQ) != 2 {
		t.Errorf("%d answers are held, want 2", len(l.known.byQ))
	}
	// Two names of one address are one endpoint; "." says that there is no service.
	l.dns.setA("c.test.", "10.0.0.50")
	l.dns.set(name, "SRV", srv("a.test.", 31000), srv("c.test.", 31000))
	l.round(t, true, "10.0.0.50:31000")
	l.dns.set(name, "SRV", srv(".", 0))
	l.round(t, false, "10.0.0.50:31000")
	l.now = l.now.Add(time.Minute)
	l.round(t, true)
	// While SRV itself fails the last records stand.
	l.dns.set(name, "SRV", srv("a.test.", 31000))
	l.round(t, true, "10.0.0.50:31000")
	l.dns.set(name, "SRV", dnsmessage.RCodeServerFailure)
	l.now = l.now.Add(time.Hour)
	l.round(t, false, "10.0.0.50:31000")
}

// Names are asked once, however many entries hold them, and forgotten with the last of them.
func TestDNSAsksOnce(t *testing.T) {
	t.Parallel()
	l := newLab(t, "engines.test.:8000", "engines.test.:9000,engine=sglang", "dns+ENGINES.test.:7000")
	l.dns.setA("engines.test.", "10.0.0.5")
	l.round(t, true, "10.0.0.5:8000", "10.0.0.5:9000", "10.0.0.5:7000")
	if n := l.dns.count("engines.test. A"); n != 1 {
		t.Errorf("asked %d times", n)
	}
	l.entries = l.entries[:1]
	if l.known.refresh(t.Context(), l.entries, true); l.dns.count("engines.test. A") != 1 {
		t.Error("a known name was asked for again")
	}
	l.entries = nil
	l.round(t, true)
	if len(l.known.byQ) != 0 || l.o.Stats.NamesFailing.Load() != 0 {
		t.Errorf("%d answers are held", len(l.known.byQ))
	}
}

func TestDefaultResolver(t *testing.T) {
	t.Parallel()
	o := Options{}.withDefaults()
	a := newAnswers(o)
	// localhost is in the hosts file, or answered as RFC 6761 wants it, without a name server.
	got, err := a.askHost(t.Context(), "localhost", familyAuto)
	if err != nil || len(got) == 0 || !got[0].addr.IsLoopback() {
		t.Errorf("localhost is %v, %v", got, err)
	}
	// A hosts file that has the name in one family says nothing of the other, and that is no failure.
	if got, err := a.askHost(t.Context(), "localhost", familyIPv6); err != nil {
		t.Errorf("localhost is %v, %v", got, err)
	}
}
