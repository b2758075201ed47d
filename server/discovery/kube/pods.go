package kube

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/discovery"
)

// activePorts are the annotations by which a pod says which of the target ports it serves, in the order in which they count.
var activePorts = []string{"llm-d.ai/active-ports", "inference.networking.k8s.io/active-ports"}

// pod is what is kept of a pod.
type pod struct {
	uid, name  string
	ip         netip.Addr // not valid: none yet
	state      scheduling.EndpointState
	over       bool // it has ended, and its address may be another's
	created    time.Time
	labels     map[string]string
	active     string // the annotation's value
	containers []container
}

// container is what is kept of a container.
type container struct {
	ports    []uint16
	restarts uint32
}

// reducePod keeps of a pod what is read.
func reducePod(p *Pod) *pod {
	r := &pod{
		uid: string(p.UID), name: p.Name, state: stateOf(p), over: p.Status.Phase == "Succeeded" || p.Status.Phase == "Failed",
		created: p.CreationTimestamp.Time, labels: p.Labels,
	}
	if ip, err := netip.ParseAddr(p.Status.PodIP); err == nil {
		r.ip = ip.Unmap()
	}
	for _, key := range activePorts {
		if value, ok := p.Annotations[key]; ok {
			r.active = value
			break
		}
	}
	for _, c := range p.Spec.Containers {
		kept := container{}
		for _, port := range c.Ports {
			kept.ports = append(kept.ports, port.ContainerPort)
		}
		for _, s := range p.Status.ContainerStatuses {
			if s.Name == c.Name {
				kept.restarts = s.RestartCount
			}
		}
		r.containers = append(r.containers, kept)
	}
	return r
}

// stateOf is the state of a pod's endpoints. A pod that is being deleted finishes what it has, however long that takes.
func stateOf(p *Pod) scheduling.EndpointState {
	if p.DeletionTimestamp != nil {
		return scheduling.EndpointDraining
	}
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" && c.Status == "True" {
			return scheduling.EndpointReady
		}
	}
	return scheduling.EndpointNotReady
}

func (p *pod) equal(o *pod) bool {
	return p.uid == o.uid && p.name == o.name && p.ip == o.ip && p.state == o.state && p.over == o.over && p.created.Equal(o.created) &&
		p.active == o.active && maps.Equal(p.labels, o.labels) &&
		slices.EqualFunc(p.containers, o.containers, func(a, b container) bool {
			return a.restarts == b.restarts && slices.Equal(a.ports, b.ports)
		})
}

// podEndpoints are the endpoints of pods, by name of the pod and then by port. Where two pods have one address, the one that
// serves there counts: networks give the address of a pod that ended to the next, and the end may be heard of later.
func podEndpoints(pods []*pod, ports []uint16) []scheduling.EndpointSpec {
	pods = slices.Clone(pods)
	slices.SortFunc(pods, func(a, b *pod) int { return cmp.Or(cmp.Compare(a.name, b.name), cmp.Compare(a.uid, b.uid)) })
	holders := make(map[netip.Addr]*pod, len(pods))
	for _, p := range pods {
		if !p.ip.IsValid() || p.over {
			continue
		}
		if holder := holders[p.ip]; holder == nil || p.before(holder) {
			holders[p.ip] = p
		}
	}
	specs := make([]scheduling.EndpointSpec, 0, len(holders)*len(ports))
	for _, p := range pods {
		if holders[p.ip] == p {
			specs = p.appendEndpoints(specs, ports)
		}
	}
	return specs
}

// before reports whether p is the one to have an address that o has too.
func (p *pod) before(o *pod) bool {
	return cmp.Or(cmp.Compare(p.state, o.state), o.created.Compare(p.created), cmp.Compare(p.uid, o.uid)) < 0
}

// appendEndpoints adds the endpoints of one pod to specs. They share its map of labels.
func (p *pod) appendEndpoints(specs []scheduling.EndpointSpec, ports []uint16) []scheduling.EndpointSpec {
	for rank, port := range ports {
		if !p.serves(port) {
			continue
		}
		s := scheduling.EndpointSpec{
			UID: p.uid, Name: p.name, Address: netip.AddrPortFrom(p.ip, port).String(), Labels: p.labels,
			Engine: discovery.EngineOf(p.labels), Rank: rank, State: p.state,
		}
		if restarts := p.restarts(port); restarts > 0 {
			s.UID += "/" + strconv.FormatUint(restarts, 10)
		}
		if len(ports) > 1 {
			s.Name += "-rank-" + strconv.Itoa(rank)
			s.KVEvents.Ranks = 1
		}
		specs = append(specs, s)
	}
	return specs
}

// serves reports whether the pod says that it serves a target port; one that says nothing serves all.
func (p *pod) serves(port uint16) bool {
	if p.active == "" {
		return true
	}
	for s := range strings.SplitSeq(p.active, ",") {
		if n, err := strconv.ParseUint(strings.TrimSpace(s), 10, 16); err == nil && n == uint64(port) {
			return true
		}
	}
	return false
}

// restarts is how often what serves a port was restarted in place: the containers that declare the port or, where none does,
// all of them. To take a restart of something else for one costs a cache that is held for cold; to miss one sends requests
// after a cache that is gone.
func (p *pod) restarts(port uint16) (n uint64) {
	declared := false
	all := uint64(0)
	for _, c := range p.containers {
		all += uint64(c.restarts)
		if slices.Contains(c.ports, port) {
			declared = true
			n += uint64(c.restarts)
		}
	}
	if !declared {
		return all
	}
	return n
}
