package kube

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-epp/sluice/scheduling"
)

// pool is what is kept of an InferencePool.
type pool struct {
	selector string
	ports    []uint16
	fault    string // why it cannot be followed; empty if it can
}

// reducePool keeps of an InferencePool what is read.
func reducePool(p *InferencePool) *pool {
	r := &pool{}
	for _, port := range p.Spec.TargetPorts {
		if port.Number != 0 && !slices.Contains(r.ports, port.Number) {
			r.ports = append(r.ports, port.Number)
		}
	}
	selected := p.Spec.Selector.MatchLabels
	r.selector = labels.Set(maps.Clone(selected)).String()
	switch {
	case len(selected) == 0: // would select every pod of the namespace
		r.fault = "its selector has no matchLabels"
	case len(r.ports) == 0:
		r.fault = "it has no targetPorts"
	}
	return r
}

func (p *pool) equal(o *pool) bool {
	return p.selector == o.selector && slices.Equal(p.ports, o.ports) && p.fault == o.fault
}

// selection is the pods of one selector.
type selection struct {
	selector string
	pods     *table[*pod]
	stop     context.CancelFunc
}

// followed is the state of following an InferencePool.
type followed struct {
	source  *Source
	group   *sync.WaitGroup
	pools   *table[*pool]
	ports   []uint16
	current *selection // whose pods are published; nil before the first
	coming  *selection // takes current's place once its pods are known; else nil

	said string // what is wrong with the pool as it was last said
	gone time.Time
}

// runPool follows an InferencePool and the pods that it selects.
func (s *Source) runPool(ctx context.Context, group *sync.WaitGroup, publish func([]scheduling.EndpointSpec)) error {
	f := &followed{source: s, group: group, pools: newTable(reducePool, (*pool).equal, s.signal)}
	q := query{
		version: inferenceVersion, resource: "inferencepools", namespace: s.namespace,
		fields: fields.OneTermEqualSelector("metadata.name", s.name).String(),
	}
	if err := s.follow(ctx, group, q, inferencePools, f.pools); err != nil {
		return err
	}
	grace := time.NewTimer(time.Hour)
	grace.Stop()
	defer grace.Stop()
	for s.next(ctx, grace.C) {
		left, err := f.read(ctx)
		if err != nil {
			return err
		}
		grace.Stop()
		if left > 0 {
			grace.Reset(left)
		}
		if specs, known := f.specs(); known {
			publish(specs)
			s.settle(ctx)
		}
	}
	return nil
}

// read takes the pool as it is now over. left is the time after which it is to be called again, whatever happens; 0 for none.
func (f *followed) read(ctx context.Context) (left time.Duration, err error) {
	rows, known := f.pools.all()
	if !known {
		return 0, nil
	}
	if len(rows) == 0 {
		return f.missing(), nil
	}
	f.gone = time.Time{}
	p := rows[0]
	if p.fault != "" {
		f.say(p.fault)
		return 0, nil
	}
	f.say("")
	f.ports = p.ports
	if f.latest() == p.selector {
		return 0, nil
	}
	if f.current != nil && f.current.selector == p.selector { // changed back before the other was known
		f.drop(&f.coming)
		return 0, nil
	}
	f.drop(&f.coming)
	ctx, stop := context.WithCancel(ctx)
	pods, err := f.source.followPods(ctx, f.group, p.selector)
	if err != nil {
		stop()
		return 0, err
	}
	f.coming = &selection{selector: p.selector, pods: pods, stop: stop}
	return 0, nil
}

// latest is the selector that is followed, or is about to be.
func (f *followed) latest() string {
	switch {
	case f.coming != nil:
		return f.coming.selector
	case f.current != nil:
		return f.current.selector
	}
	return ""
}

func (f *followed) drop(s **selection) {
	if *s != nil {
		(*s).stop()
		*s = nil
	}
}

// missing takes in that there is no such pool. One that was there may be about to be made anew, and keeps its endpoints for
// as long as that may take.
func (f *followed) missing() (left time.Duration) {
	f.say("it does not exist")
	if f.gone.IsZero() {
		f.gone = time.Now()
	}
	if f.latest() == "" {
		return 0
	}
	if left = f.source.o.PoolGrace - time.Since(f.gone); left > 0 {
		return left
	}
	f.drop(&f.coming)
	f.ports = nil
	return 0
}

// say logs what is wrong with the pool when that changes.
func (f *followed) say(what string) {
	if what == f.said {
		return
	}
	f.said = what
	log := f.source.o.Logger.With("pool", f.source.namespace+"/"+f.source.name)
	switch {
	case what == "":
		log.Info("InferencePool is followed")
	case f.latest() == "":
		log.Warn("InferencePool cannot be followed, it is waited for", "error", what)
	default:
		log.Warn("InferencePool cannot be followed, its last endpoints stay for now", "error", what)
	}
}

// specs are the endpoints of the pool; known is false as long as nothing can be said of them.
func (f *followed) specs() (specs []scheduling.EndpointSpec, known bool) {
	if f.coming != nil {
		if _, known := f.coming.pods.all(); known {
			f.drop(&f.current)
			f.current, f.coming = f.coming, nil
		}
	}
	if f.current == nil {
		return nil, false
	}
	all, known := f.current.pods.all()
	return podEndpoints(all, f.ports), known
}
