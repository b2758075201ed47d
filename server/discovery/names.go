package discovery

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

const (
	parallelLookups = 64
	relogInterval   = time.Minute // between log lines about one name that keeps failing
)

// answers holds the last answer to every query of one source. It is used by one goroutine.
type answers struct {
	o    *Options
	byQ  map[query]*answer
	fail int64 // of the names now failing, as counted in the stats
}

// answer is what a query last came to.
type answer struct {
	targets    []target  // in order
	failing    bool      // the last question failed or found nothing
	emptySince time.Time // when the answer began to be empty while targets still stand; else zero
	nextLog    time.Time
}

func newAnswers(o *Options) *answers { return &answers{o: o, byQ: make(map[query]*answer)} }

// targets are the addresses that an entry's name stands for now, in order; nil for a literal address and for a name
// without an answer.
func (a *answers) targets(e *Entry) []target {
	q, ok := e.query()
	if !ok || a.byQ[q] == nil {
		return nil
	}
	records := a.byQ[q].targets
	if !q.srv {
		return records
	}
	var targets []target
	for _, r := range records {
		host := a.byQ[q.of(r)]
		if host == nil {
			continue
		}
		for _, t := range host.targets {
			targets = append(targets, target{host: r.host, addr: t.addr, port: r.port})
		}
	}
	// Two records may lead to one address.
	return sorted(targets, func(x, y target) bool { return x.addr == y.addr && x.port == y.port })
}

// of is the question for the host of an SRV record; the record holds a whole name, so no search list applies.
func (q query) of(record target) query { return query{name: record.host + ".", family: q.family} }

func sorted(targets []target, same func(x, y target) bool) []target {
	slices.SortFunc(targets, func(x, y target) int {
		return cmp.Or(x.addr.Compare(y.addr), cmp.Compare(x.port, y.port), cmp.Compare(x.host, y.host))
	})
	return slices.CompactFunc(targets, same)
}

// close takes what the answers count out of the stats.
func (a *answers) close() { a.count(0) }

func (a *answers) count(failing int64) {
	a.o.Stats.NamesFailing.Add(failing - a.fail)
	a.fail = failing
}

// refresh asks for the names of entries, then for the hosts that SRV records name, many at once and all within one time
// limit, and reports whether any answer changed. Answers that no entry needs are forgotten. With onlyNew, what was asked
// before is not asked again.
func (a *answers) refresh(ctx context.Context, entries []Entry, onlyNew bool) (changed bool) {
	ctx, cancel := context.WithTimeout(ctx, a.o.ResolveTimeout)
	defer cancel()
	names := make(map[query]bool)
	for i := range entries {
		if q, ok := entries[i].query(); ok {
			names[q] = true
		}
	}
	changed = a.round(ctx, names, onlyNew)
	hosts := make(map[query]bool)
	for q := range names {
		if !q.srv || a.byQ[q] == nil {
			continue
		}
		for _, record := range a.byQ[q].targets {
			if host := q.of(record); !names[host] {
				hosts[host] = true
			}
		}
	}
	changed = a.round(ctx, hosts, onlyNew) || changed
	failing := int64(0)
	for q, answer := range a.byQ {
		switch {
		case !names[q] && !hosts[q]:
			delete(a.byQ, q)
			changed = true
		case answer.failing:
			failing++
		}
	}
	a.count(failing)
	return changed
}

// round asks a set of questions and settles the replies.
func (a *answers) round(ctx context.Context, questions map[query]bool, onlyNew bool) (changed bool) {
	ask := make([]query, 0, len(questions))
	for q := range questions {
		if a.byQ[q] == nil || !onlyNew {
			ask = append(ask, q)
		}
	}
	for q, r := range a.askAll(ctx, ask) {
		if errors.Is(ctx.Err(), context.Canceled) {
			return changed // the source is ending; the failures are its own
		}
		if a.byQ[q] == nil {
			a.byQ[q] = &answer{}
		}
		changed = a.settle(q, a.byQ[q], r) || changed
	}
	return changed
}

// reply is what one question came to: targets, nothing at all, or an error.
type reply struct {
	targets []target
	err     error
}

func (a *answers) askAll(ctx context.Context, ask []query) map[query]reply {
	if len(ask) == 0 {
		return nil
	}
	// Where there are more names than can be asked at once, no name always waits behind the same slow ones.
	rand.Shuffle(len(ask), func(i, j int) { ask[i], ask[j] = ask[j], ask[i] })
	var (
		mu      sync.Mutex
		replies = make(map[query]reply, len(ask))
		group   errgroup.Group
	)
	group.SetLimit(parallelLookups)
	for _, q := range ask {
		group.Go(func() error {
			targets, err := a.ask(ctx, q)
			mu.Lock()
			defer mu.Unlock()
			replies[q] = reply{targets, err}
			return nil
		})
	}
	_ = group.Wait() // the functions return none: a failed question is a reply
	return replies
}

// settle brings an answer up to date with a reply and reports whether its targets changed.
func (a *answers) settle(q query, old *answer, r reply) (changed bool) {
	now := a.o.now()
	a.o.Stats.Lookups.Add(1)
	switch {
	case r.err != nil:
		a.o.Stats.LookupFailures.Add(1)
		a.logFailing(q, old, now, r.err)
		return false
	case len(r.targets) > 0:
		if old.failing {
			a.o.Logger.Info("name resolves again", "name", q.name, "addresses", len(r.targets))
		}
		changed = !slices.Equal(old.targets, r.targets)
		*old = answer{targets: r.targets}
		return changed
	}
	a.o.Stats.LookupsEmpty.Add(1)
	a.logFailing(q, old, now, errors.New("no such name, or no usable address"))
	if len(old.targets) == 0 {
		return false
	}
	if old.emptySince.IsZero() {
		old.emptySince = now
	}
	if now.Sub(old.emptySince) < a.o.EmptyGrace {
		return false
	}
	a.o.Logger.Warn("name has stayed empty, its endpoints are removed", "name", q.name, "endpoints", len(old.targets))
	old.targets, old.emptySince = nil, time.Time{}
	return true
}

func (a *answers) logFailing(q query, old *answer, now time.Time, err error) {
	if !old.failing || !now.Before(old.nextLog) {
		a.o.Logger.Warn("name does not resolve", "name", q.name, "srv", q.srv, "kept", len(old.targets), "error", err)
		old.nextLog = now.Add(relogInterval)
	}
	old.failing = true
}

// ask puts a query to DNS. No targets and no error means that there authoritatively are none. The targets of an SRV query
// are hosts and ports without addresses.
func (a *answers) ask(ctx context.Context, q query) (targets []target, err error) {
	if q.srv {
		targets, err = a.askSRV(ctx, q.name)
	} else {
		targets, err = a.askHost(ctx, q.name, q.family)
	}
	return sorted(targets, func(x, y target) bool { return x == y }), err
}

func (a *answers) askSRV(ctx context.Context, name string) ([]target, error) {
	_, records, err := a.o.Resolver.LookupSRV(ctx, "", "", name)
	// The resolver returns an error beside the good records where some are malformed.
	if len(records) == 0 {
		return nil, ignoreNotFound(err)
	}
	targets := make([]target, 0, len(records))
	for _, r := range records {
		host := strings.ToLower(strings.TrimSuffix(r.Target, "."))
		if host != "" && r.Port != 0 { // the target "." says that the service is not offered (RFC 2782)
			targets = append(targets, target{host: host, port: r.Port})
		}
	}
	return targets, nil
}

func (a *answers) askHost(ctx context.Context, host string, f family) ([]target, error) {
	var targets []target
	for _, network := range networks[f] {
		addrs, err := a.o.Resolver.LookupNetIP(ctx, network, host)
		if err := ignoreNotFound(err); err != nil {
			return nil, err
		}
		for _, addr := range addrs {
			if addr = addr.Unmap(); usable(addr) && addr.Zone() == "" {
				targets = append(targets, target{addr: addr})
			}
		}
		if f == familyAuto && len(targets) > 0 {
			break
		}
	}
	return targets, nil
}

// networks lists what is asked for, in order. The families are asked for one by one: asked for both, the resolver hides
// that one of them failed behind the answer of the other.
var networks = [...][]string{
	familyAuto: {"ip4", "ip6"},
	familyIPv4: {"ip4"},
	familyIPv6: {"ip6"},
	familyAny:  {"ip4", "ip6"},
}

// ignoreNotFound drops the error that says, with authority, that there is nothing.
func ignoreNotFound(err error) error {
	var dns *net.DNSError
	if errors.As(err, &dns) && dns.IsNotFound {
		return nil
	}
	// A hosts file that knows the name in the other family only.
	var addr *net.AddrError
	if errors.As(err, &addr) {
		return nil
	}
	return err
}
