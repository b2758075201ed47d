package kube

import (
	"fmt"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/kube/cluster"
	"github.com/sluice-epp/sluice/test/lab"
)

// leastRequests spreads requests, so that every engine that is known gets some.
const leastRequests = `
plugins:
  - type: active-request-scorer
  - type: max-score-picker
schedulingProfiles:
  - name: default
    plugins:
      - pluginRef: active-request-scorer
      - pluginRef: max-score-picker
`

// No request fails while the API server is killed and comes back, nor while pods come and go before and after: traffic
// goes on to the pods that are known, a new pod gets some, one that is deleted finishes what it has.
func testTraffic(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "traffic")
	ips := envoytest.PodIPs(t, 5)
	port := envoytest.FreePort(t, ips...)
	engines := map[int]*engine.Server{}
	start := func(i int) {
		t.Helper()
		engines[i] = lab.StartEngine(t, engine.Config{
			Listen: fmt.Sprintf("%s:%d", ips[i], port), Name: fmt.Sprintf("engine-%d", i), Speed: 5000,
			Params: sim.Params{MaxModelLen: 700_000, NumBlocks: 50_000, MaxBatchedTokens: 800_000},
		})
		c.Pod(t, cluster.Pod{Namespace: ns, Name: fmt.Sprintf("engine-%d", i), IP: ips[i]})
	}
	for i := range 3 {
		start(i)
	}
	c.Pool(t, ns, "pool", "model", port)
	l := lab.New(t, lab.Plan{Engines: -1, Config: leastRequests, Override: func(o *config.Config) {
		o.Kubernetes = config.Kubernetes{Pool: ns + "/pool", Kubeconfig: c.Kubeconfig(t, cluster.Admin, ns, "")}
	}})
	e := l.Envoy(t, envoy.Params{})
	traffic := lab.StartTraffic(t, l.Client, e.URL("/v1/chat/completions"), 4)
	gets := func(some ...int) {
		t.Helper()
		for _, i := range some {
			name := fmt.Sprintf("engine-%d", i)
			before := traffic.Answered(name)
			lab.Wait(t, name+" to get requests", func() bool { return traffic.Answered(name) > before+10 })
		}
	}
	known := func(state string, n float64) {
		t.Helper()
		lab.Wait(t, fmt.Sprintf("%v endpoints to be %s", n, state), func() bool {
			return l.Sluice.Total(t, "sluice_endpoints", fmt.Sprintf("state=%q", state)) == n
		})
	}
	failing := func(n float64) {
		t.Helper()
		lab.Wait(t, "the API server to be missed or found", func() bool { return l.Sluice.Metric(t, "sluice_discovery_kubernetes_failing") == n })
	}
	leaves := func(i int) {
		t.Helper()
		name := fmt.Sprintf("engine-%d", i)
		c.Delete(t, "Pod", ns, name, false)
		known("draining", 1)
		lab.Wait(t, name+" to finish what it has", func() bool { return l.Sluice.Loads(t)[engines[i].Addr().String()].Requests == 0 })
		if err := engines[i].Close(); err != nil {
			t.Error(err)
		}
		c.Delete(t, "Pod", ns, name, true)
		known("draining", 0)
	}
	gets(0, 1, 2)
	for round := range 2 {
		c.KillAPIServer()
		failing(2)
		gets(0+round, 1+round, 2+round)
		c.StartAPIServer(t)
		failing(0)
		start(3 + round)
		gets(3 + round)
		leaves(round)
		gets(1+round, 2+round, 3+round)
	}
	traffic.Stop(t)
	l.Sluice.Settle(t)
	t.Logf("%d requests, none failed; %v lists, %v watches, %v errors", traffic.Answered(""), l.Sluice.Metric(t, "sluice_discovery_kubernetes_lists_total"),
		l.Sluice.Metric(t, "sluice_discovery_kubernetes_watches_total"), l.Sluice.Metric(t, "sluice_discovery_kubernetes_errors_total"))
}

// A configuration that names another pool is followed in place, and what both have stays what it is.
func testReload(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "reload")
	c.Pool(t, ns, "first", "first", 8000)
	c.Pool(t, ns, "second", "second", 8000)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "127.0.0.1", App: "first"})
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "127.0.0.2", App: "second"})
	kubeconfig := c.Kubeconfig(t, cluster.Admin, ns, "")
	text := func(followed string) string {
		return fmt.Sprintf("%s\nkubernetes: {%s, kubeconfig: %q}\n", leastRequests, followed, kubeconfig)
	}
	l := lab.New(t, lab.Plan{Engines: -1, Config: text("pool: first")})
	known := func(name string, n int) *scheduling.Endpoint {
		t.Helper()
		var found *scheduling.Endpoint
		lab.Wait(t, name+" to be known", func() bool {
			s := l.Sluice.App.Pool().Snapshot()
			for _, e := range s.Endpoints {
				if e != nil && e.Name == name {
					found = e
				}
			}
			return found != nil && s.Len() == n
		})
		return found
	}
	known("m-1", 1)
	l.Sluice.Configure(t, text("pool: second"))
	before := known("m-2", 1)
	l.Sluice.Configure(t, text(`selector: "app in (first, second)", targetPorts: [8000]`))
	known("m-1", 2)
	if now := known("m-2", 2); now.Generation != before.Generation {
		t.Errorf("instance %d of a pod that both have, and was %d", now.Generation, before.Generation)
	}
}
