package kube

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/labels"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/discovery"
)

// serviceLabel is how a Service's EndpointSlices are found.
const serviceLabel = "kubernetes.io/service-name"

// Source finds endpoints in Kubernetes. It is a discovery.Source.
type Source struct {
	o         *Options
	cluster   *cluster
	namespace string
	name      string   // of the pool or the service
	ports     []uint16 // of Options
	changed   chan struct{}
}

var _ discovery.Source = (*Source)(nil)

// New reads how the API server is reached and returns a source for what o names. It asks the API server nothing yet.
func New(o Options) (*Source, error) {
	if !o.Set() {
		return nil, errors.New("nothing is named to follow: set one of pool, selector and service")
	}
	var errs []error
	for _, f := range o.Check() {
		errs = append(errs, f)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	s := &Source{o: o.withDefaults(), changed: make(chan struct{}, 1)}
	var err error
	if s.ports, err = discovery.ParsePorts(o.TargetPorts); err != nil {
		return nil, err
	}
	if s.cluster, err = connect(o.Kubeconfig); err != nil {
		return nil, err
	}
	namespace := o.Namespace
	if namespace == "" {
		namespace = s.cluster.namespace
	}
	s.namespace, s.name = place(o.Pool+o.Service, namespace) // one of them is empty
	return s, nil
}

// String names the source in logs.
func (s *Source) String() string {
	switch {
	case s.o.Pool != "":
		return fmt.Sprintf("InferencePool %s/%s", s.namespace, s.name)
	case s.o.Service != "":
		return fmt.Sprintf("Service %s/%s", s.namespace, s.name)
	}
	return fmt.Sprintf("pods of %s with %s", s.namespace, s.o.Selector)
}

// Run implements discovery.Source.
func (s *Source) Run(ctx context.Context, publish func([]scheduling.EndpointSpec)) error {
	ctx, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	defer s.cluster.http.CloseIdleConnections()
	defer group.Wait()
	defer stop()
	switch {
	case s.o.Pool != "":
		return s.runPool(ctx, &group, publish)
	case s.o.Service != "":
		return s.runService(ctx, &group, publish)
	}
	return s.runSelector(ctx, &group, publish)
}

func (s *Source) signal() {
	select {
	case s.changed <- struct{}{}:
	default:
	}
}

// next waits for a change, or for late; it is false once ctx is over.
func (s *Source) next(ctx context.Context, late <-chan time.Time) bool {
	select {
	case <-ctx.Done():
		return false
	case <-s.changed:
	case <-late:
	}
	return ctx.Err() == nil
}

// settle lets what changes together come together.
func (s *Source) settle(ctx context.Context) {
	timer := time.NewTimer(s.o.Settle)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// publishing publishes what found returns, once it knows, and whenever that changes, until ctx is over.
func (s *Source) publishing(ctx context.Context, publish func([]scheduling.EndpointSpec), found func() (specs []scheduling.EndpointSpec, known bool)) {
	for s.next(ctx, nil) {
		if specs, known := found(); known {
			publish(specs)
			s.settle(ctx)
		}
	}
}

func (s *Source) runSelector(ctx context.Context, group *sync.WaitGroup, publish func([]scheduling.EndpointSpec)) error {
	selector, err := labels.Parse(s.o.Selector)
	if err != nil {
		return err
	}
	table, err := s.followPods(ctx, group, selector.String())
	if err != nil {
		return err
	}
	s.publishing(ctx, publish, func() ([]scheduling.EndpointSpec, bool) {
		all, known := table.all()
		return podEndpoints(all, s.ports), known
	})
	return nil
}

func (s *Source) runService(ctx context.Context, group *sync.WaitGroup, publish func([]scheduling.EndpointSpec)) error {
	table := newTable(reduceSlice, (*endpointSlice).equal, s.signal)
	q := query{
		version: discoveryVersion, resource: "endpointslices", namespace: s.namespace,
		labels: labels.Set{serviceLabel: s.name}.String(),
	}
	if err := s.follow(ctx, group, q, endpointSlices, table); err != nil {
		return err
	}
	s.publishing(ctx, publish, func() ([]scheduling.EndpointSpec, bool) {
		all, known := table.all()
		return sliceEndpoints(all, s.ports), known
	})
	return nil
}

func (s *Source) followPods(ctx context.Context, group *sync.WaitGroup, selector string) (*table[*pod], error) {
	t := newTable(reducePod, (*pod).equal, s.signal)
	q := query{version: coreVersion, resource: "pods", namespace: s.namespace, labels: selector}
	return t, s.follow(ctx, group, q, pods, t)
}
