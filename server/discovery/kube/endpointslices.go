package kube

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"

	"github.com/sluice-epp/sluice/scheduling"
)

// The labels of a Service's endpoints; a slice does not tell those of their pods.
const (
	zoneLabel = "topology.kubernetes.io/zone"
	nodeLabel = "kubernetes.io/hostname"
)

// endpointSlice is what is kept of an EndpointSlice.
type endpointSlice struct {
	name  string
	ports []uint16 // by number
	hosts []host
}

// host is one endpoint of a slice.
type host struct {
	uid, name string
	ip        netip.Addr
	state     scheduling.EndpointState
	labels    map[string]string
}

// reduceSlice keeps of an EndpointSlice what is read.
func reduceSlice(s *EndpointSlice) *endpointSlice {
	r := &endpointSlice{name: s.Name}
	for _, p := range s.Ports {
		if p.Port != 0 && (p.Protocol == "" || p.Protocol == "TCP") {
			r.ports = append(r.ports, p.Port)
		}
	}
	slices.Sort(r.ports)
	r.ports = slices.Compact(r.ports)
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		ip, err := netip.ParseAddr(e.Addresses[0]) // the further ones of an endpoint are not to be used
		if err != nil {                            // a slice of names
			continue
		}
		h := host{ip: ip.Unmap(), name: e.Addresses[0]}
		if e.TargetRef != nil && e.TargetRef.Kind == "Pod" {
			h.uid, h.name = e.TargetRef.UID, e.TargetRef.Name
		}
		switch {
		case e.Conditions.Terminating != nil && *e.Conditions.Terminating:
			h.state = scheduling.EndpointDraining
		case e.Conditions.Ready != nil && !*e.Conditions.Ready:
			h.state = scheduling.EndpointNotReady
		}
		for key, value := range map[string]string{zoneLabel: e.Zone, nodeLabel: e.NodeName} {
			if value == "" {
				continue
			}
			if h.labels == nil {
				h.labels = make(map[string]string, 2)
			}
			h.labels[key] = value
		}
		r.hosts = append(r.hosts, h)
	}
	return r
}

func (s *endpointSlice) equal(o *endpointSlice) bool {
	return s.name == o.name && slices.Equal(s.ports, o.ports) && slices.EqualFunc(s.hosts, o.hosts, func(a, b host) bool {
		return a.uid == b.uid && a.name == b.name && a.ip == b.ip && a.state == b.state && maps.Equal(a.labels, b.labels)
	})
}

// sliceEndpoints are the endpoints of a Service's slices, by name of the host and then by port; ports, where there are any,
// are those that count. An endpoint that moves from one slice to another is in both for a while, and a pod with addresses of
// both families is one engine, of which the IPv4 address counts.
func sliceEndpoints(all []*endpointSlice, ports []uint16) []scheduling.EndpointSpec {
	all = slices.Clone(all)
	slices.SortFunc(all, func(a, b *endpointSlice) int { return cmp.Compare(a.name, b.name) })
	fourth := map[string]bool{} // uids with an IPv4 address
	for _, s := range all {
		for i := range s.hosts {
			if h := &s.hosts[i]; h.uid != "" && h.ip.Is4() {
				fourth[h.uid] = true
			}
		}
	}
	found := map[string]scheduling.EndpointSpec{}
	for _, s := range all {
		listed := ports
		if len(listed) == 0 {
			listed = s.ports
		}
		for i := range s.hosts {
			h := &s.hosts[i]
			if h.ip.Is6() && fourth[h.uid] {
				continue
			}
			for rank, port := range listed {
				if !slices.Contains(s.ports, port) {
					continue
				}
				e := h.endpoint(port, rank, len(listed) > 1)
				if other, twice := found[e.Address]; !twice || e.State < other.State {
					found[e.Address] = e
				}
			}
		}
	}
	return slices.SortedFunc(maps.Values(found), func(a, b scheduling.EndpointSpec) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Rank, b.Rank), cmp.Compare(a.Address, b.Address))
	})
}

// endpoint is the one at a port of the host, which serves ranks where it has several.
func (h *host) endpoint(port uint16, rank int, ranks bool) scheduling.EndpointSpec {
	e := scheduling.EndpointSpec{
		UID: h.uid, Name: h.name, Address: netip.AddrPortFrom(h.ip, port).String(), Labels: h.labels, Rank: rank, State: h.state,
	}
	if ranks {
		e.Name += "-rank-" + strconv.Itoa(rank)
		e.KVEvents.Ranks = 1
	}
	return e
}
