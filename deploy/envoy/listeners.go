package envoy

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// FirstListener is the address, ip:port, of the first listener on the page /listeners?format=json of an Envoy's admin port:
// where an Envoy listens that was left to choose its port.
func FirstListener(page []byte) (string, error) {
	var parsed struct {
		Statuses []struct {
			Local struct {
				Socket struct {
					Address string `json:"address"`
					Port    int    `json:"port_value"`
				} `json:"socket_address"`
			} `json:"local_address"`
		} `json:"listener_statuses"`
	}
	if err := json.Unmarshal(page, &parsed); err != nil {
		return "", fmt.Errorf("/listeners: %w", err)
	}
	if len(parsed.Statuses) == 0 || parsed.Statuses[0].Local.Socket.Port == 0 {
		return "", fmt.Errorf("/listeners names no listener: %s", page)
	}
	socket := parsed.Statuses[0].Local.Socket
	address := net.JoinHostPort(socket.Address, strconv.Itoa(socket.Port))
	if _, err := netip.ParseAddrPort(address); err != nil {
		return "", fmt.Errorf("/listeners: listener_statuses[0].local_address.socket_address: %w", err)
	}
	return address, nil
}
