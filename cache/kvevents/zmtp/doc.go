// Package zmtp speaks ZMTP 3.0 and 3.1, ZeroMQ's protocol over TCP, as far as KV events need it: the NULL mechanism, and
// the socket types SUB, PUB, DEALER and ROUTER. An engine publishes its KV cache's events on a PUB socket and replays
// recent ones on a ROUTER.
//
// [Conn] is one connection after its handshake. [Subscriber] keeps the connection to one publisher up, [Acceptor] is
// its counterpart for publishers that connect by themselves. [Publisher] and [Router] are the engine's side of the two.
//
// A peer is not trusted: what it claims costs nothing until the bytes are there, every message and command has a bound,
// and a message that began has to go on. Formats are those of the ZeroMQ RFCs 23/ZMTP (3.0) and 37/ZMTP (3.1).
package zmtp
