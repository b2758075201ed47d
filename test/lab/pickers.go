package lab

import (
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/envoytest"
)

// At makes a plan's Sluice listen on an address.
func At(address string, p Plan) Plan {
	before := p.Override
	p.Override = func(c *config.Config) {
		if before != nil {
			before(c)
		}
		c.Server.Listen = address
	}
	return p
}

// StartWithPickers starts an Envoy whose main picker's cluster has the given hosts, none or several, where a bootstrap
// of the usual kind has one.
func StartWithPickers(t testing.TB, p envoy.Params, pickers ...string) *envoytest.Instance {
	t.Helper()
	return envoytest.StartBootstrap(t, []byte(BootstrapWithPickers(t, p, pickers...)))
}

// BootstrapWithPickers is the bootstrap of such an Envoy, with ports that Envoy chooses.
func BootstrapWithPickers(t testing.TB, p envoy.Params, pickers ...string) string {
	t.Helper()
	const stand = "127.0.0.1:9"
	p.Listen, p.Admin, p.Picker.Address = "127.0.0.1:0", "127.0.0.1:0", stand
	bootstrap, err := envoy.Render(p)
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(bootstrap), hostLine(t, stand)); n != 1 {
		t.Fatalf("the bootstrap has the picker's line %q %d times, want once:\n%s", hostLine(t, stand), n, bootstrap)
	}
	all := ""
	for _, address := range pickers {
		all += hostLine(t, address)
	}
	return strings.Replace(string(bootstrap), hostLine(t, stand), all, 1)
}

func hostLine(t testing.TB, address string) string {
	t.Helper()
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("              - endpoint: {address: {socket_address: {address: %q, port_value: %s}}}\n", host, port)
}
