package discovery

import (
	"context"
	"net"
	"net/netip"
	"time"
)

// Resolver is what names are looked up with; *net.Resolver is one.
type Resolver interface {
	LookupNetIP(ctx context.Context, network, host string) ([]netip.Addr, error)
	LookupSRV(ctx context.Context, service, proto, name string) (string, []*net.SRV, error)
}

type dialFunc func(ctx context.Context, network, address string) (net.Conn, error)

// newResolver returns Go's own resolver, which reads resolv.conf and the hosts file and reaches name servers by dial.
func newResolver(dial dialFunc) *net.Resolver {
	return &net.Resolver{
		PreferGo: true,
		// With a search list, a failure on one candidate must not look like "no such name" on the next.
		StrictErrors: true,
		Dial: func(ctx context.Context, network, address string) (net.Conn, error) {
			conn, err := dial(ctx, network, address)
			if err != nil {
				return nil, err
			}
			// The resolver reads on until its own time limit when the question's context ends; this ends the read.
			context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
			return conn, nil
		},
	}
}
