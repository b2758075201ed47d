package discovery

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// table is a resolver that answers from a map and can be made to hang or fail; it works in virtual time.
type table struct {
	mu    sync.Mutex
	addrs map[string]string // by name; "" is an error, "hang" waits for the context's end
	asked map[string]int
}

func newTable() *table { return &table{addrs: make(map[string]string), asked: make(map[string]int)} }

func (r *table) set(name, addr string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.addrs[name] = addr
}

func (r *table) count(name string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.asked[name]
}

func (r *table) LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error) {
	r.mu.Lock()
	r.asked[host]++
	addr, known := r.addrs[host]
	r.mu.Unlock()
	switch {
	case !known || network != "ip4":
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	case addr == "":
		return nil, &net.DNSError{Err: "server misbehaving", Name: host, IsTemporary: true}
	case addr == "hang":
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return []netip.Addr{netip.MustParseAddr(addr)}, nil
}

func (r *table) LookupSRV(context.Context, string, string, string) (string, []*net.SRV, error) {
	return "", nil, errors.New("not in this table")
}

func TestListOfAddressesPublishesOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		out := start(t, NewList(mustEntries(t, "10.0.0.5:8000", "[2001:db8::5]:8000"), Options{}))
		synctest.Wait()
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.5:8000", "[2001:db8::5]:8000"}) {
			t.Errorf("published %v", got)
		}
		time.Sleep(time.Hour)
		out.silent(t)
	})
}

// Names are looked up at the interval, give or take a tenth, and only a change is published.
func TestListLooksUpAgain(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		names := newTable()
		names.set("vllm", "10.0.0.5")
		l := NewList(mustEntries(t, "vllm:8000"), Options{Resolver: names})
		out := start(t, l)
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.5:8000"}) {
			t.Errorf("published %v", got)
		}
		time.Sleep(5*100*time.Second/5 + time.Second)
		if n := names.count("vllm"); n < 18 || n > 24 {
			t.Errorf("asked %d times in 101 s, want one in 5 s", n)
		}
		out.silent(t)
		names.set("vllm", "10.0.0.6")
		before := time.Now()
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.6:8000"}) {
			t.Errorf("published %v", got)
		}
		if took := time.Since(before); took > 5500*time.Millisecond {
			t.Errorf("seen after %s", took)
		}
		// On demand there is no waiting.
		names.set("vllm", "10.0.0.7")
		before = time.Now()
		l.Refresh()
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.7:8000"}) || time.Since(before) != 0 {
			t.Errorf("published %v after %s", got, time.Since(before))
		}
	})
}

// A name that hangs delays the first set by no more than the time limit of a round, and later changes not at all.
func TestListWithHangingName(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		names := newTable()
		names.set("hang", "hang")
		names.set("vllm", "10.0.0.6")
		var log logBuffer
		l := NewList(mustEntries(t, "10.0.0.5:8000", "hang:8000"), Options{Resolver: names, Logger: log.logger(), ResolveInterval: time.Hour})
		before := time.Now()
		out := start(t, l)
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.5:8000"}) || time.Since(before) != 5*time.Second {
			t.Errorf("published %v after %s", got, time.Since(before))
		}
		before = time.Now()
		l.Replace(mustEntries(t, "10.0.0.5:8000", "hang:8000", "vllm:8000"))
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.5:8000", "10.0.0.6:8000"}) || time.Since(before) != 0 {
			t.Errorf("published %v after %s", got, time.Since(before))
		}
		if !strings.Contains(log.String(), `msg="name does not resolve" name=hang`) {
			t.Errorf("the log says nothing: %s", log.String())
		}
	})
}

// Replacing the list keeps what is known of names, and names that come first with a replacement are looked up again too.
func TestListReplace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		names := newTable()
		names.set("vllm", "10.0.0.6")
		stats := new(Stats)
		l := NewList(nil, Options{Resolver: names, Stats: stats})
		out := start(t, l)
		if got := out.next(t); len(got) != 0 {
			t.Errorf("published %v", got)
		}
		l.Replace(mustEntries(t, "vllm:8000"))
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.6:8000"}) {
			t.Errorf("published %v", got)
		}
		names.set("vllm", "") // fails from now on
		for range 100 {       // replaced more often than looked up
			time.Sleep(time.Second)
			l.Replace(mustEntries(t, "vllm:8000,state=draining"))
			if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.6:8000"}) {
				t.Errorf("published %v", got)
			}
		}
		if n := names.count("vllm"); n < 15 {
			t.Errorf("asked %d times in 100 s", n)
		}
		if stats.LookupFailures.Load() == 0 || stats.NamesFailing.Load() != 1 {
			t.Errorf("%d failures, %d names failing", stats.LookupFailures.Load(), stats.NamesFailing.Load())
		}
		l.Replace(mustEntries(t, "10.0.0.9:8000"))
		if got := out.next(t); !cmp.Equal(got, []string{"10.0.0.9:8000"}) || stats.NamesFailing.Load() != 0 {
			t.Errorf("published %v, %d names failing", got, stats.NamesFailing.Load())
		}
		asked := names.count("vllm")
		time.Sleep(time.Minute)
		if names.count("vllm") != asked {
			t.Error("a name no entry holds was asked for")
		}
	})
}

// A name that keeps failing is logged now and then, not every time.
func TestListLogsFailuresRarely(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		names := newTable()
		names.set("vllm", "")
		var log logBuffer
		start(t, NewList(mustEntries(t, "vllm:8000"), Options{Resolver: names, Logger: log.logger()}))
		time.Sleep(10 * time.Minute)
		synctest.Wait()
		if n := strings.Count(log.String(), "does not resolve"); n < 9 || n > 11 {
			t.Errorf("logged %d times in 10 minutes", n)
		}
		names.set("vllm", "10.0.0.5")
		time.Sleep(10 * time.Minute)
		if n := strings.Count(log.String(), "resolves again"); n != 1 {
			t.Errorf("the recovery was logged %d times", n)
		}
	})
}

func TestListEndsWithoutFailingNames(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		names := newTable()
		names.set("vllm", "")
		stats := new(Stats)
		ctx, cancel := context.WithCancel(t.Context())
		var done sync.WaitGroup
		l := NewList(mustEntries(t, "vllm:8000"), Options{Resolver: names, Stats: stats})
		done.Go(func() {
			if err := l.Run(ctx, newFeed().publish); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		synctest.Wait()
		if n := stats.NamesFailing.Load(); n != 1 {
			t.Errorf("%d names failing, want 1", n)
		}
		cancel()
		done.Wait()
		if n := stats.NamesFailing.Load(); n != 0 {
			t.Errorf("%d names failing after the end, want 0", n)
		}
	})
}

// What a list can be expanded to is bounded, far above what the merged set may hold.
func TestListExpansionIsBounded(t *testing.T) {
	t.Parallel()
	o := Options{MaxEndpoints: 4}.withDefaults()
	l := newList(nil, o, "list")
	entries := make([]Entry, 0, 100)
	for range 100 {
		entries = append(entries, mustEntries(t, "10.0.0.5:8000-8009")...)
	}
	if n := len(l.expand(entries, newAnswers(o))); n <= 4 || n > 16*4+10 {
		t.Errorf("expanded to %d endpoints", n)
	}
}
