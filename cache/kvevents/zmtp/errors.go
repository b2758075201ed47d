package zmtp

import (
	"errors"
	"fmt"
)

// Errors of a peer that does not keep to the protocol or to the bounds of [Options]. A connection is closed with the
// first of them, and gives the same error from then on.
var (
	// ErrProtocol is any breach of ZMTP: a wrong signature, reserved flags, a malformed command.
	ErrProtocol = errors.New("zmtp: protocol error")
	// ErrTooLarge is a message or command that is larger than its bound, in bytes or in frames.
	ErrTooLarge = errors.New("zmtp: too large")
	// ErrStalled is a message that began and did not go on within Options.StallTimeout.
	ErrStalled = errors.New("zmtp: the message stands still")
	// ErrClosed is the use of a [Publisher] after its Close.
	ErrClosed = errors.New("zmtp: closed")
)

// MechanismError is a peer that asks for a security mechanism other than NULL.
type MechanismError struct {
	Mechanism string // as the peer names it: PLAIN, CURVE, GSSAPI
}

func (e *MechanismError) Error() string {
	return fmt.Sprintf("zmtp: the peer asks for the security mechanism %q; only NULL is supported", e.Mechanism)
}

// SocketError is a peer whose socket type does not go with this side's.
type SocketError struct {
	Own, Peer Socket
}

func (e *SocketError) Error() string {
	return fmt.Sprintf("zmtp: a %s socket cannot talk to the peer's %q", e.Own, string(e.Peer))
}

// PeerError is an ERROR command: the peer refuses this side, for the reason that it gives.
type PeerError struct {
	Reason string
}

func (e *PeerError) Error() string { return fmt.Sprintf("zmtp: the peer refuses: %q", e.Reason) }

func protocolError(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

func tooLarge(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrTooLarge, fmt.Sprintf(format, args...))
}
