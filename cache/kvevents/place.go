package kvevents

import (
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// place is where one rank publishes.
type place struct {
	rank      int
	publisher string // host:port; empty for none to dial
	replay    string // host:port; empty for none
}

// told is what an engine says of where a rank publishes. Ports that it does not tell are 0.
type told struct {
	rank             int
	off              bool // publishes nothing
	host, replayHost string
	port, replayPort int
	noReplay         bool
}

// places are where the endpoint's ranks publish, by what its configuration says, else the engine, else the defaults.
func (f *Feed) places(engine []told) []place {
	kv, c := f.endpoint.KVEvents, f.config
	byRank := make(map[int]told, len(engine))
	for _, t := range engine {
		byRank[t.rank] = t
	}
	ranks := f.ranks(engine)
	if len(ranks) == 1 && len(engine) == 1 {
		byRank[ranks[0]] = engine[0] // whatever the engine calls it
	}
	var places []place
	for i, rank := range ranks {
		t, known := byRank[rank]
		if t.off && kv.Port == 0 {
			continue
		}
		p := place{rank: rank}
		if !kv.Bind {
			switch {
			case kv.Port > 0: // of the endpoint's first rank
				p.publisher = f.at("", kv.Port+i)
			case t.port > 0 && !f.own(t.host) && f.guestsMay():
				// It connects there by itself.
			case t.port > 0:
				p.publisher = f.at(t.host, t.port)
			case c.Port > 0:
				p.publisher = f.at(t.host, c.Port+rank)
			}
		}
		switch {
		case kv.ReplayPort < 0:
		case kv.ReplayPort > 0:
			p.replay = f.at("", kv.ReplayPort+i)
		case t.replayPort > 0:
			p.replay = f.at(t.replayHost, t.replayPort)
		case c.ReplayPort > 0 && !(known && t.noReplay):
			p.replay = f.at(t.replayHost, c.ReplayPort+rank)
		}
		places = append(places, p)
	}
	return places
}

// ranks are the data-parallel ranks behind the endpoint.
func (f *Feed) ranks(engine []told) []int {
	first, n := f.endpoint.Rank, f.endpoint.KVEvents.Ranks
	if n == 0 && len(engine) > 0 {
		ranks := make([]int, 0, min(len(engine), maxRanks))
		for _, t := range engine[:cap(ranks)] {
			ranks = append(ranks, t.rank)
		}
		return ranks
	}
	if n == 0 {
		n = f.config.Ranks
	}
	ranks := make([]int, min(max(n, 1), maxRanks))
	for i := range ranks {
		ranks[i] = first + i
	}
	return ranks
}

// at is a port of a host as the engine names it, as seen from here: always on the endpoint's own host. An engine answers for
// itself only, and must not make this process connect anywhere else. vLLM names (and binds to) the address of its main
// interface, or VLLM_HOST_IP, for a port of its own choice; behind a port mapping that is another one than the endpoint's.
// Empty for a port that cannot be one.
func (f *Feed) at(host string, port int) string {
	if port <= 0 || port > 65535 {
		return ""
	}
	if !f.own(host) && f.may(aboutPlaces) {
		f.logger.Info("an engine names another address than the endpoint's for its KV events; its port is looked for at the endpoint's (vLLM takes its address from VLLM_HOST_IP)", "host", host, "port", port)
	}
	return net.JoinHostPort(f.host, strconv.Itoa(port))
}

// own reports whether a host that an engine names is its own: any of its interfaces, its loopback, or the endpoint's.
func (f *Feed) own(host string) bool {
	if host == "" || host == "*" || host == "localhost" || host == f.host {
		return true
	}
	ip, err := netip.ParseAddr(host)
	if err != nil {
		return false
	}
	own, err := netip.ParseAddr(f.host)
	ip = ip.Unmap()
	return ip.IsUnspecified() || ip.IsLoopback() || err == nil && ip == own.Unmap()
}

// zmqAddress takes a ZeroMQ address apart. The port is 0 where the system is to choose one; what is not TCP is not ok.
func zmqAddress(address string) (host string, port int, ok bool) {
	rest, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return "", 0, false
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return "", 0, false
	}
	host = strings.TrimSuffix(strings.TrimPrefix(rest[:i], "["), "]")
	if rest[i+1:] == "*" {
		return host, 0, true
	}
	port, err := strconv.Atoi(rest[i+1:])
	if err != nil || port < 0 || port > 65535 {
		return "", 0, false
	}
	return host, port, true
}

// asking is what a feed knows of where its endpoint publishes, and how it came to know. The feed's lock guards it.
type asking struct {
	located  bool // it was found out, or what is configured stands for now
	locating bool // it is being found out
	answered bool // by the engine itself
	failures int  // questions without an answer, in a row
	repeats  int  // questions since a publisher is out of reach
	asked    time.Time
	hurry    bool // the engine was started anew, and may publish on ports of its new life
}

// asks reports whether engines are asked at all.
func (f *Feed) asks() bool {
	return f.config.Discover && !f.endpoint.KVEvents.NoDiscovery && f.options.Client != nil
}

// locateAt is when to find out where the endpoint publishes, for the first time or anew; the zero time is never.
func (f *Feed) locateAt(now time.Time) time.Time {
	switch {
	case f.locating:
		return time.Time{}
	case !f.located:
		return now
	case !f.asks():
		return time.Time{}
	case !f.answered:
		return f.asked.Add(growing(askFirst, askLast, f.failures-1))
	}
	missing, since := len(f.links) == 0 && !f.anyUp(), f.asked
	for _, l := range f.links {
		if !l.up && (!missing || l.down.Before(since)) {
			missing, since = true, l.down
		}
	}
	if !missing {
		f.repeats, f.hurry = 0, false
		return time.Time{}
	}
	if f.hurry {
		return now
	}
	at := since.Add(askAgain)
	if next := f.asked.Add(growing(askAgain, askAgainLast, f.repeats)); next.After(at) {
		at = next
	}
	return at
}

// anyUp reports whether any publisher is connected.
func (f *Feed) anyUp() bool {
	for _, s := range f.sources {
		if s.link != nil && s.link.up {
			return true
		}
	}
	return false
}

// growing is a delay that doubles.
func growing(first, last time.Duration, times int) time.Duration {
	for range times {
		if first *= 2; first >= last {
			return last
		}
	}
	return first
}

// locate finds out where the endpoint publishes, and follows it there.
func (f *Feed) locate() {
	var engine []told
	answered := false
	if f.asks() {
		engine, answered = f.ask()
	}
	if !f.enter() {
		return
	}
	defer f.mu.Unlock()
	first := !f.located
	f.located, f.locating, f.hurry, f.asked = true, false, false, time.Now()
	defer f.rouse()
	if f.answered {
		f.repeats++
	}
	f.answered = f.answered || answered
	if !answered {
		f.failures++
	}
	if first || answered { // else what is known stands
		f.settle(f.places(engine))
	}
}

// placed is the source that was opened for a rank's place, whatever its publisher calls itself; nil where there is none.
func (f *Feed) placed(rank int) *source {
	for _, s := range f.sources {
		if s.place == rank {
			return s
		}
	}
	return nil
}

// settle makes the links those to places.
func (f *Feed) settle(places []place) {
	for _, s := range f.sources {
		s.configured = false
	}
	if len(places) == 1 && len(f.sources) == 1 && f.placed(places[0].rank) == nil && f.sources[0].rename(places[0].rank) {
		f.sources[0].place = places[0].rank
	}
	wanted := make(map[place]bool)
	for _, p := range places {
		wanted[place{rank: p.rank, publisher: p.publisher}] = p.publisher != ""
	}
	kept := f.links[:0]
	for _, l := range f.links {
		if p := (place{rank: l.placed, publisher: l.address}); wanted[p] {
			wanted[p] = false
			kept = append(kept, l)
			continue
		}
		f.logger.Info("an engine publishes its KV events elsewhere", "rank", l.placed, "before", l.address)
		l.leave()
	}
	clear(f.links[len(kept):])
	f.links = kept
	for _, p := range places {
		if p.publisher == "" && !f.guestsMay() {
			continue
		}
		s := f.placed(p.rank)
		if s == nil {
			s = f.find(p.rank)
		}
		if s == nil {
			s = f.add(p.rank)
		}
		if s == nil {
			f.stats.fault(FaultRank)
			continue
		}
		s.configured, s.place = true, p.rank
		s.replayFrom(p.replay)
		if wanted[place{rank: p.rank, publisher: p.publisher}] {
			f.dial(p, s)
		}
	}
	f.welcome()
	if len(places) == 0 && f.may(aboutPlaces) {
		f.logger.Warn("an engine publishes no KV events")
	}
}
