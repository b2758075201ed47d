package e2e

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// healthInterval is how often Envoy asks for health where a test waits for it to notice.
const healthInterval = 50 * time.Millisecond

// healthyPickers is Envoy's gauge of pickers that it sends requests to.
const healthyPickers = "cluster." + envoy.PickerCluster + ".membership_healthy"

// at makes a plan's Sluice listen on an address.
func at(address string, p lab.Plan) lab.Plan {
	before := p.Override
	p.Override = func(c *config.Config) {
		if before != nil {
			before(c)
		}
		c.Server.Listen = address
	}
	return p
}

// withReplicas starts an Envoy whose picker cluster has a host for each Sluice.
func withReplicas(t *testing.T, p envoy.Params, replicas ...*lab.Sluice) *envoytest.Instance {
	t.Helper()
	p.Listen, p.Admin, p.Picker.Address = "127.0.0.1:0", "127.0.0.1:0", replicas[0].Addr()
	bootstrap, err := envoy.Render(p)
	if err != nil {
		t.Fatal(err)
	}
	line := func(s *lab.Sluice) string {
		host, port, err := net.SplitHostPort(s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf("              - endpoint: {address: {socket_address: {address: %q, port_value: %s}}}\n", host, port)
	}
	first, all := line(replicas[0]), ""
	for _, s := range replicas {
		all += line(s)
	}
	if strings.Count(string(bootstrap), first) != 1 {
		t.Fatalf("the bootstrap does not have the picker's line %q once:\n%s", first, bootstrap)
	}
	return envoytest.StartBootstrap(t, []byte(strings.Replace(string(bootstrap), first, all, 1)))
}
