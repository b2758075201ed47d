package zmtp

import "bytes"

// A greeting is 64 bytes: a signature of 10, the version in 2, the mechanism's name padded to 20, as-server, and a
// filler of 31 (RFC 37, "Greeting").
const (
	greetingBytes  = 64
	signatureBytes = 10
	versionEnd     = 12
	mechanismEnd   = 32
)

// greeting is what this side sends: version 3.1, NULL.
func greeting() []byte {
	g := make([]byte, greetingBytes)
	g[0], g[9] = 0xff, 0x7f
	g[10], g[11] = 3, 1
	copy(g[versionEnd:], "NULL")
	return g
}

// checkGreeting judges a peer's greeting as far as it has come, so that a peer that speaks something else is found out
// by its first byte.
func checkGreeting(g []byte) error {
	if len(g) >= 1 && g[0] != 0xff || len(g) >= signatureBytes && g[9]&1 == 0 {
		return protocolError("the peer does not speak ZMTP: it begins with %q", g[:min(len(g), signatureBytes)])
	}
	if len(g) >= versionEnd && g[10] < 3 {
		return protocolError("the peer speaks ZMTP %d.%d, older than 3.0", g[10], g[11])
	}
	if len(g) < greetingBytes {
		return nil
	}
	name, _, _ := bytes.Cut(g[versionEnd:mechanismEnd], []byte{0})
	if string(name) != "NULL" {
		return &MechanismError{Mechanism: string(name)}
	}
	return nil
}

// commandsSubscribe tells from a peer's greeting that subscriptions go to it as commands (3.1 and later), and not as
// messages (3.0).
func commandsSubscribe(g []byte) bool { return g[10] > 3 || g[11] >= 1 }
