package server

import (
	"context"
	"net"
	"net/netip"
	"reflect"
	"sync"

	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/discovery"
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

// sources are the endpoint sources of a configuration.
func (a *App) sources(c *config.Config) ([]discovery.Source, discovery.Options, error) {
	o := discovery.Options{Logger: a.logger, Stats: a.stats, ResolveInterval: c.DNS.Interval, EmptyGrace: c.DNS.EmptyGrace}
	var sources []discovery.Source
	if len(c.Endpoints) > 0 {
		entries, err := discovery.ParseEntries(c.Endpoints)
		if err != nil {
			return nil, o, err
		}
		sources = append(sources, discovery.NewList(entries, o))
	}
	if c.EndpointsFile != "" {
		sources = append(sources, discovery.NewFile(c.EndpointsFile, o))
	}
	return sources, o, nil
}

// listing is the part of a configuration that says where endpoints come from.
type listing struct {
	endpoints []string
	file      string
	dns       config.DNS
}

func listingOf(c *config.Config) listing {
	return listing{endpoints: c.Endpoints, file: c.EndpointsFile, dns: c.DNS}
}

// discover keeps the pool at what the configuration's sources find. A reload that lists endpoints otherwise replaces
// the sources; the pool keeps what it has until the new ones have spoken.
func (a *App) discover(ctx context.Context) error {
	for ctx.Err() == nil {
		current := a.current.Load()
		sources, o, err := a.sources(&current.file.Config)
		if err != nil {
			return err
		}
		d := discovery.New(a.pool, o, sources...)
		running, stop := context.WithCancel(ctx)
		var group sync.WaitGroup
		group.Go(func() { a.becomeReady(running, d.Ready()) })
		group.Go(func() {
			if err := d.Run(running); err != nil {
				a.logger.Error("endpoint discovery", "error", err)
			}
		})
		a.awaitOtherListing(running, listingOf(&current.file.Config))
		stop()
		group.Wait()
	}
	return nil
}

// becomeReady says that the process wants requests once the endpoints are known.
func (a *App) becomeReady(ctx context.Context, found <-chan struct{}) {
	select {
	case <-ctx.Done():
	case <-found:
		if a.draining.Load() {
			return
		}
		a.ready.Store(true)
		setReady(a.health, true)
	}
}

// awaitOtherListing returns when the configuration in force lists endpoints otherwise, or ctx is over.
func (a *App) awaitOtherListing(ctx context.Context, now listing) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-a.reloaded:
			if !reflect.DeepEqual(listingOf(a.config()), now) {
				return
			}
		}
	}
}
