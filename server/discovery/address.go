package discovery

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

const (
	maxPorts     = 256 // of one entry
	maxNameBytes = 253 // of a DNS name (RFC 1035, section 2.3.4) and of an endpoint's name
)

// NormalizeAddress brings an "ip:port" into the one spelling that addresses are compared in: IPv6 in brackets, lower
// case and shortest form, an IPv4-mapped IPv6 address as IPv4, no leading zeros in the port. Host names, zones and port 0
// are errors.
func NormalizeAddress(s string) (string, error) {
	ap, err := netip.ParseAddrPort(s)
	switch {
	case err != nil:
		return "", fmt.Errorf("address %q: must be ip:port or [ipv6]:port", clip(s))
	case ap.Addr().Zone() != "":
		return "", fmt.Errorf("address %q: a zone (%%%s) means nothing to another host", clip(s), clip(ap.Addr().Zone()))
	case ap.Port() == 0:
		return "", fmt.Errorf("address %q: port must be 1 to 65535, got 0", clip(s))
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String(), nil
}

// parseHost reads an IP address without brackets, or else a DNS name, which it brings to lower case.
func parseHost(s string) (addr netip.Addr, name string, err error) {
	if s == "" {
		return netip.Addr{}, "", errors.New("host is missing")
	}
	if addr, err := netip.ParseAddr(s); err == nil {
		if addr.Zone() != "" {
			return netip.Addr{}, "", fmt.Errorf("host %q: a zone (%%%s) means nothing to another host", clip(s), clip(addr.Zone()))
		}
		addr = addr.Unmap()
		if !usable(addr) {
			return netip.Addr{}, "", fmt.Errorf("host %q: not the address of one host", clip(s))
		}
		return addr, "", nil
	}
	if err := checkName(s); err != nil {
		return netip.Addr{}, "", fmt.Errorf("host %q: %w", clip(s), err)
	}
	return netip.Addr{}, strings.ToLower(s), nil
}

// usable reports whether an engine can be reached at addr: unspecified addresses are what a server listens on (and what
// DNS blockers answer), multicast and broadcast are not one host.
func usable(addr netip.Addr) bool {
	return addr.IsValid() && !addr.IsUnspecified() && !addr.IsMulticast() &&
		addr != netip.AddrFrom4([4]byte{255, 255, 255, 255})
}

// checkName says what is wrong with a DNS name. Underscores are allowed: SRV names begin with them.
func checkName(s string) error {
	if len(s) > maxNameBytes {
		return fmt.Errorf("a DNS name has at most %d bytes, got %d", maxNameBytes, len(s))
	}
	labels := strings.Split(strings.TrimSuffix(s, "."), ".")
	for _, label := range labels {
		switch {
		case label == "":
			return errors.New("a DNS name has no empty label")
		case len(label) > 63:
			return fmt.Errorf("a label of a DNS name has at most 63 bytes, got %d", len(label))
		case label[0] == '-' || label[len(label)-1] == '-':
			return errors.New("a label of a DNS name neither begins nor ends with a hyphen")
		}
		for i := range len(label) {
			if !isAlnum(label[i]) && label[i] != '-' && label[i] != '_' {
				return fmt.Errorf("a DNS name has no %q", rune(label[i]))
			}
		}
	}
	if last := labels[len(labels)-1]; strings.Trim(last, "0123456789") == "" {
		return errors.New("not an IP address, and the last label of a DNS name is not a number")
	}
	return nil
}

func isAlnum(c byte) bool {
	return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
}

func parsePort(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("port must be 1 to 65535, got %q", clip(s))
	}
	return uint16(n), nil
}

// appendPorts adds a "port" or "first-last" to ports.
func appendPorts(ports []uint16, s string) ([]uint16, error) {
	from, to, isRange := strings.Cut(s, "-")
	if from == "" {
		from = s
	}
	first, err := parsePort(from)
	if err != nil {
		return nil, err
	}
	last := first
	if isRange {
		if last, err = parsePort(to); err != nil {
			return nil, err
		}
		if last < first {
			return nil, fmt.Errorf("port range %q: the first is above the last", clip(s))
		}
	}
	if n := len(ports) + int(last-first) + 1; n > maxPorts {
		return nil, fmt.Errorf("an entry has at most %d ports, got %d", maxPorts, n)
	}
	for p := int(first); p <= int(last); p++ {
		if slices.Contains(ports, uint16(p)) {
			return nil, fmt.Errorf("port %d is listed twice", p)
		}
		ports = append(ports, uint16(p))
	}
	return ports, nil
}

// formatPorts is the shortest spelling that appendPorts reads back in the same order.
func formatPorts(ports []uint16) string {
	var b strings.Builder
	for i := 0; i < len(ports); {
		j := i
		for j+1 < len(ports) && ports[j+1] == ports[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(int(ports[i])))
		if j > i {
			b.WriteString("-" + strconv.Itoa(int(ports[j])))
		}
		i = j + 1
	}
	return b.String()
}

// clip keeps what an error or a log line quotes short.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}

// mustBe is an error that lists the valid names and points at the nearest.
func mustBe(got string, valid []string) error {
	return fmt.Errorf("must be one of %s, got %q%s", strings.Join(valid, ", "), clip(got), scheduling.Hint(got, valid))
}

// ParsePorts reads a list of ports and ranges of ports, "8000" or "8000-8003", in their order. A list without any is one.
func ParsePorts(list []string) (ports []uint16, err error) {
	for _, s := range list {
		for part := range strings.SplitSeq(s, ",") {
			if ports, err = appendPorts(ports, strings.TrimSpace(part)); err != nil {
				return nil, err
			}
		}
	}
	return ports, nil
}
