package server

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/discovery"
	"github.com/sluice-epp/sluice/server/discovery/kube"
)

// loopback reports whether a listen address is reachable from this machine alone.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	if host == "localhost" {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}

// finder is a running discovery and the part of the configuration that it came from.
type finder struct {
	*discovery.Discovery
	listing listing
	list    *discovery.List // nil without listed endpoints
}

// listing is the part of a configuration that says where endpoints come from.
type listing struct {
	endpoints []string
	file      string
	dns       config.DNS
	kube      kube.Options
}

func listingOf(c *config.Config) listing {
	return listing{endpoints: c.Endpoints, file: c.EndpointsFile, dns: c.DNS, kube: c.Kubernetes.Options()}
}

// untilKnown is how long a process waits that has no other endpoints than Kubernetes': as long as it takes. A proxy that is told
// that the process is not ready can do better than one whose requests are answered with 503.
const untilKnown = 365 * 24 * time.Hour

// newFinder makes the endpoint sources of a configuration.
func (a *App) newFinder(l listing) (*finder, error) {
	o := discovery.Options{Logger: a.logger, Stats: a.stats, ResolveInterval: l.dns.Interval, EmptyGrace: l.dns.EmptyGrace}
	f := &finder{listing: l}
	var sources []discovery.Source
	if len(l.endpoints) > 0 {
		entries, err := discovery.ParseEntries(l.endpoints)
		if err != nil {
			return nil, err
		}
		f.list = discovery.NewList(entries, o)
		sources = append(sources, f.list)
	}
	if l.file != "" {
		sources = append(sources, discovery.NewFile(l.file, o))
	}
	if k := l.kube; k.Set() {
		k.Logger, k.Stats = a.logger, a.stats
		source, err := kube.New(k)
		if err != nil {
			return nil, fmt.Errorf("kubernetes: %w", err)
		}
		sources = append(sources, source)
		if len(sources) == 1 {
			o.ReadyTimeout = untilKnown
		}
	}
	f.Discovery = discovery.New(a.pool, o, sources...)
	return f, nil
}

// follow takes a changed listing over and reports whether it could. Endpoints listed otherwise change in place, so that
// what DNS has answered stays known; anything else needs new sources.
func (f *finder) follow(next listing) bool {
	now := f.listing
	if slices.Equal(now.endpoints, next.endpoints) && now.file == next.file && now.dns == next.dns && now.kube.Equal(&next.kube) {
		return true
	}
	if now.file != next.file || now.dns != next.dns || !now.kube.Equal(&next.kube) || f.list == nil || len(next.endpoints) == 0 {
		return false
	}
	entries, err := discovery.ParseEntries(next.endpoints)
	if err != nil { // the new sources say so
		return false
	}
	f.list.Replace(entries)
	f.listing = next
	return true
}

// discover keeps the pool at what the configuration's sources find. Where a reload needs new sources, the pool keeps
// what it has until they have spoken.
func (a *App) discover(ctx context.Context) error {
	f := a.finder
	for a.find(ctx, f); ctx.Err() == nil; a.find(ctx, f) {
		next, err := a.newFinder(listingOf(a.config()))
		if err != nil {
			return err
		}
		f = next
	}
	return nil
}

// find runs a finder until a reload needs another, or ctx is over.
func (a *App) find(ctx context.Context, f *finder) {
	ctx, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { a.becomeReady(ctx, f.Ready()) })
	group.Go(func() {
		if err := f.Run(ctx); err != nil {
			a.logger.Error("endpoint discovery", "error", err)
		}
	})
	a.followReloads(ctx, f)
	stop()
	group.Wait()
}

// becomeReady says that the process wants requests once the endpoints are known.
func (a *App) becomeReady(ctx context.Context, found <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-found:
		a.warm(ctx)
		a.turn(true)
	}
}

// warmTimeout bounds how long readiness waits for what engines hold: one dead engine must not hold up the others.
const warmTimeout = 10 * time.Second

// warm waits until the plugins know what they can learn of the endpoints before the first request.
func (a *App) warm(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, warmTimeout)
	defer cancel()
	for name, plugin := range a.current.Load().scheduler.Plugins() {
		if p, ok := plugin.(interface{ Warm(context.Context) int }); ok {
			if late := p.Warm(ctx); late > 0 {
				a.logger.Warn("ready before all endpoints' caches are known", "producer", name, "endpoints", late)
			}
		}
	}
}

// followReloads returns when a reload needs new sources, or ctx is over.
func (a *App) followReloads(ctx context.Context, f *finder) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.reloaded:
			if !f.follow(listingOf(a.config())) {
				return
			}
		}
	}
}
