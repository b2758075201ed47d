package zmtp

import (
	"fmt"
	"slices"
)

// Socket is a ZeroMQ socket type, as the Socket-Type property of a READY command names it.
type Socket string

// The socket types that a [Conn] can be.
const (
	SUB    Socket = "SUB"
	PUB    Socket = "PUB"
	DEALER Socket = "DEALER"
	ROUTER Socket = "ROUTER"
)

// peers lists the types that each type may talk to (RFC 37, "The Socket-Type Property").
var peers = map[Socket][]Socket{
	SUB:    {PUB, "XPUB"},
	PUB:    {SUB, "XSUB"},
	DEALER: {"REP", DEALER, ROUTER},
	ROUTER: {"REQ", DEALER, ROUTER},
}

func (s Socket) validate() error {
	if _, known := peers[s]; !known {
		return fmt.Errorf("socket type must be SUB, PUB, DEALER or ROUTER, got %q", string(s))
	}
	return nil
}

func (s Socket) accepts(peer Socket) bool { return slices.Contains(peers[s], peer) }
