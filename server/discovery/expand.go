package discovery

import (
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-epp/sluice/scheduling"
)

// target is one address that a name stands for.
type target struct {
	host string // the SRV target's name; empty for other names
	addr netip.Addr
	port uint16 // from SRV; 0 for other names
}

// query is what has to be asked of DNS for an entry.
type query struct {
	name   string
	srv    bool
	family family
}

// query returns what has to be asked for the entry; ok is false for a literal address.
func (e *Entry) query() (q query, ok bool) {
	if e.addr.IsValid() {
		return query{}, false
	}
	return query{name: e.host, srv: e.srv, family: e.family}, true
}

// appendSpecs adds the endpoints that the entry stands for to specs. targets is the answer to its query, nothing for a
// literal address. The endpoints of an entry share its map of labels.
func (e *Entry) appendSpecs(specs []scheduling.EndpointSpec, targets []target) []scheduling.EndpointSpec {
	switch {
	case e.addr.IsValid():
		for i := range e.ports {
			at := netip.AddrPortFrom(e.addr, e.ports[i])
			name := e.rankName(i)
			if name == "" {
				name = at.String()
			}
			specs = append(specs, e.spec(name, at, i))
		}
	case e.srv:
		for _, t := range targets {
			name := t.host + ":" + strconv.Itoa(int(t.port))
			alike := func(o target) bool { return o.host == t.host && o.port == t.port && o.addr != t.addr }
			if slices.ContainsFunc(targets, alike) {
				name += "/" + t.addr.String()
			}
			specs = append(specs, e.spec(name, netip.AddrPortFrom(t.addr, t.port), 0))
		}
	default:
		for _, t := range targets {
			for i := range e.ports {
				name := e.rankName(i)
				if name == "" {
					name = e.host + ":" + strconv.Itoa(int(e.ports[i]))
				}
				if len(targets) > 1 {
					name += "/" + t.addr.String()
				}
				specs = append(specs, e.spec(name, netip.AddrPortFrom(t.addr, e.ports[i]), i))
			}
		}
	}
	return specs
}

// rankName tells the ranks of a named entry apart; it is empty for an entry without a name.
func (e *Entry) rankName(i int) string {
	if e.name == "" || len(e.ports) == 1 {
		return e.name
	}
	return e.name + "-rank-" + strconv.Itoa(e.rank+i)
}

// spec is the endpoint of the i-th port at an address.
func (e *Entry) spec(name string, at netip.AddrPort, i int) scheduling.EndpointSpec {
	s := scheduling.EndpointSpec{
		UID:     e.uid,
		Address: at.String(),
		Name:    name,
		Labels:  e.labels,
		Engine:  e.engine,
		Rank:    e.rank + i,
		State:   e.state,

		KVEvents: e.kvEvents(i),
	}
	if s.Engine == "" {
		s.Engine = EngineOf(e.labels)
	}
	switch {
	case e.metricsURL != "":
		s.MetricsURL = fillURL(e.metricsURL, at, s.Rank)
	case e.metricsPort != 0:
		s.MetricsURL = "http://" + netip.AddrPortFrom(at.Addr(), e.metricsPort+uint16(i)).String() + "/metrics"
	}
	return s
}

// engineLabels are the labels that deployments carry to say the dialect of their engine, in the order in which they count.
var engineLabels = []string{"engine", "llm-d.ai/engine-type", "inference.networking.k8s.io/engine-type"}

// EngineOf is the engine that labels name, or "" where they name none that is known: deployments that already label their
// engines by dialect need not say it twice.
func EngineOf(labels map[string]string) string {
	for _, key := range engineLabels {
		if slices.Contains(engineNames, labels[key]) {
			return labels[key]
		}
	}
	return ""
}
