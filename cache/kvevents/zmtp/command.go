package zmtp

import (
	"encoding/binary"
	"strings"
)

// A command's body is the length of its name in a byte, the name, and data (RFC 37, "Commands").
const (
	commandReady     = "READY"
	commandError     = "ERROR"
	commandSubscribe = "SUBSCRIBE"
	commandCancel    = "CANCEL"
	commandPing      = "PING"
	commandPong      = "PONG"
)

const (
	// maxCommandBytes bounds a command's body, metadata and subscriptions included. libzmq's READY has about 60 bytes.
	maxCommandBytes = 16 << 10
	// pingHead is the time to live in a PING, which the peer's context follows.
	pingHead = 2
	// maxPingContext bounds the context of a PING (RFC 37, "Connection Heartbeating").
	maxPingContext = 16
)

// splitCommand takes a command's body apart; both parts alias it.
func splitCommand(body []byte) (name, data []byte, err error) {
	if len(body) == 0 {
		return nil, nil, protocolError("a command without a name")
	}
	end := 1 + int(body[0])
	if end == 1 || end > len(body) {
		return nil, nil, protocolError("a command's name of %d bytes in a body of %d", body[0], len(body))
	}
	return body[1:end], body[end:], nil
}

func appendCommand(dst []byte, name string, data []byte) []byte {
	dst = appendHead(dst, flagCommand, 1+len(name)+len(data))
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	return append(dst, data...)
}

func readyData(socket Socket) []byte {
	data := appendProperty(nil, "Socket-Type", string(socket))
	if socket == DEALER || socket == ROUTER {
		data = appendProperty(data, "Identity", "")
	}
	return data
}

func appendProperty(dst []byte, name, value string) []byte {
	dst = append(dst, byte(len(name)))
	dst = append(dst, name...)
	dst = binary.BigEndian.AppendUint32(dst, uint32(len(value)))
	return append(dst, value...)
}

// parseReady reads a READY command's metadata and returns the peer's socket type. Properties that say nothing to this
// side pass.
func parseReady(data []byte) (Socket, error) {
	var socket Socket
	for len(data) > 0 {
		nameEnd := 1 + int(data[0])
		if nameEnd == 1 || nameEnd+4 > len(data) {
			return "", protocolError("READY: a property's name of %d bytes where %d are left", data[0], len(data)-1)
		}
		name := string(data[1:nameEnd])
		size := binary.BigEndian.Uint32(data[nameEnd:])
		data = data[nameEnd+4:]
		if uint64(size) > uint64(len(data)) {
			return "", protocolError("READY: %q has a value of %d bytes where %d are left", name, size, len(data))
		}
		if strings.EqualFold(name, "Socket-Type") {
			socket = Socket(data[:size])
		}
		data = data[size:]
	}
	if socket == "" {
		return "", protocolError("READY: no Socket-Type")
	}
	return socket, nil
}

// parseError reads an ERROR command's reason.
func parseError(data []byte) error {
	if len(data) == 0 || int(data[0]) > len(data)-1 {
		return &PeerError{}
	}
	return &PeerError{Reason: string(data[1 : 1+int(data[0])])}
}

func errorData(reason string) []byte {
	reason = reason[:min(len(reason), 255)]
	return append([]byte{byte(len(reason))}, reason...)
}
