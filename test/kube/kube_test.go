package kube

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/server/discovery/kube"
	"github.com/sluice-epp/sluice/test/kube/cluster"
)

// One API server serves all tests, each in a namespace of its own. The order matters once: the first meets an API server
// without the custom resource.
func TestKubernetes(t *testing.T) {
	c := cluster.Start(t)
	for _, test := range []struct {
		name string
		run  func(*testing.T, *cluster.Cluster)
	}{
		{"PoolIsNotDefined", testPoolIsNotDefined},
		{"Pods", testPods},
		{"Restart", testRestart},
		{"AddressReuse", testAddressReuse},
		{"Ranks", testRanks},
		{"PoolChanges", testPoolChanges},
		{"PoolGone", testPoolGone},
		{"Selector", testSelector},
		{"Service", testService},
		{"LeastRights", testLeastRights},
		{"ManyPods", testManyPods},
		{"BrokenWatches", testBrokenWatches},
		{"FrozenWatches", testFrozenWatches},
		{"ExpiredWatches", testExpiredWatches},
		{"APIServerAway", testAPIServerAway},
		{"Reload", testReload},
		{"Traffic", testTraffic},
	} {
		if !t.Run(test.name, func(t *testing.T) { test.run(t, c) }) && test.name == "PoolIsNotDefined" {
			t.FailNow()
		}
	}
}

// As long as there is no pool nothing is known, and that is said with what to do.
func testPoolIsNotDefined(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "undefined")
	w := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool"})
	w.says("install the custom resource, or follow pods by selector")
	if n := w.stats.KubeFailing.Load(); n != 1 {
		t.Errorf("%d failing, want 1", n)
	}
	c.DefinePools(t)
	w.says("InferencePool cannot be followed, it is waited for")
	if w.isReady() || w.stats.KubeFailing.Load() != 0 {
		t.Errorf("ready %v, %d failing; want neither", w.isReady(), w.stats.KubeFailing.Load())
	}
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	c.Pool(t, ns, "other", "model", 9000)
	c.Pool(t, ns, "pool", "model", 8000)
	w.wants("m-1 10.0.0.1:8000 ready")
	<-w.ready
}

// A pod is an endpoint from the address on, and until it is gone; it is picked while it is ready.
func testPods(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "pods")
	c.Pool(t, ns, "pool", "model", 8000)
	w := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool"})
	<-w.ready
	w.wants()
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", Phase: "Pending", Unready: true})
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2"})
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "other", IP: "10.0.0.9", App: "other"})
	w.wants("m-2 10.0.0.2:8000 ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1", Unready: true})
	w.wants("m-1 10.0.0.1:8000 not_ready", "m-2 10.0.0.2:8000 ready")
	before := w.generations()
	uid := c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2", Unready: true})
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 not_ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2"})
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	if e := w.pool.Snapshot().ByAddress("10.0.0.1:8000"); e.UID != uid || e.Labels["app"] != "model" {
		t.Errorf("uid %q and labels %v, want %q and the pod's", e.UID, e.Labels, uid)
	}
	// Deleted, it finishes what it has for as long as that takes.
	c.Delete(t, "Pod", ns, "m-1", false)
	w.wants("m-1 10.0.0.1:8000 draining", "m-2 10.0.0.2:8000 ready")
	w.keeps(before)
	c.Delete(t, "Pod", ns, "m-1", true)
	w.wants("m-2 10.0.0.2:8000 ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2", Phase: "Failed", Unready: true})
	w.wants()
	// What is written without a change of what is read is no update.
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-3", IP: "10.0.0.3"})
	w.wants("m-3 10.0.0.3:8000 ready")
	updates := w.stats.Updates.Load()
	for i := range 20 {
		c.Patch(t, "Pod", ns, "m-3", fmt.Sprintf(`{"metadata":{"annotations":{"beat":"%d"}}}`, i))
	}
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-4", IP: "10.0.0.4"})
	w.wants("m-3 10.0.0.3:8000 ready", "m-4 10.0.0.4:8000 ready")
	if n := w.stats.Updates.Load() - updates; n > 3 {
		t.Errorf("%d updates for 20 changes of what is not read and a pod that came in three", n)
	}
}

// A container that is restarted in place has lost its cache: the endpoint is another instance, under the same address.
func testRestart(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "restart")
	c.Pool(t, ns, "pool", "model", 8000)
	p := cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1", Ports: []int{8000}}
	c.Pod(t, p)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2"})
	w := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool"})
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	before := w.generations()
	p.Unready = true
	c.Pod(t, p)
	w.wants("m-1 10.0.0.1:8000 not_ready", "m-2 10.0.0.2:8000 ready")
	w.keeps(before)
	p.Unready, p.Restarts = false, 1
	c.Pod(t, p)
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	after := w.generations()
	if after["10.0.0.1:8000"] <= before["10.0.0.1:8000"] || after["10.0.0.2:8000"] != before["10.0.0.2:8000"] {
		t.Errorf("the instances are %v, and were %v: want another for the one that was restarted", after, before)
	}
}

// The network gives the address of a pod to the next: that one is another instance.
func testAddressReuse(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "reuse")
	c.Pool(t, ns, "pool", "model", 8000)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	w := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool"})
	w.wants("m-1 10.0.0.1:8000 ready")
	before := w.generations()
	c.Delete(t, "Pod", ns, "m-1", false)
	w.wants("m-1 10.0.0.1:8000 draining")
	// The old one's end is heard of later than the new one's beginning.
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.1"})
	w.wants("m-2 10.0.0.1:8000 ready")
	second := w.generations()
	c.Delete(t, "Pod", ns, "m-1", true)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-3", IP: "10.0.0.3"})
	w.wants("m-2 10.0.0.1:8000 ready", "m-3 10.0.0.3:8000 ready")
	if g := w.generations()["10.0.0.1:8000"]; g <= before["10.0.0.1:8000"] || g != second["10.0.0.1:8000"] {
		t.Errorf("instance %d, after %d of the old pod and %d of the new", g, before["10.0.0.1:8000"], second["10.0.0.1:8000"])
	}
	// The same name and address, and another pod.
	c.Delete(t, "Pod", ns, "m-3", true)
	w.wants("m-2 10.0.0.1:8000 ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-3", IP: "10.0.0.3"})
	w.wants("m-2 10.0.0.1:8000 ready", "m-3 10.0.0.3:8000 ready")
}

// Every target port is an endpoint, of a rank.
func testRanks(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "ranks")
	c.Pool(t, ns, "pool", "model", 8000, 8001)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2", Annotations: `{llm-d.ai/active-ports: "8001"}`})
	w := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool"})
	w.wants("m-1-rank-0 10.0.0.1:8000 ready", "m-1-rank-1 10.0.0.1:8001 ready", "m-2-rank-1 10.0.0.2:8001 ready")
	if e := w.pool.Snapshot().ByAddress("10.0.0.1:8001"); e.Rank != 1 {
		t.Errorf("rank %d, want 1", e.Rank)
	}
	c.Delete(t, "Pod", ns, "m-1", true)
	w.wants("m-2-rank-1 10.0.0.2:8001 ready")
}

// The pool's ports and its selector may change.
func testPoolChanges(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "changes")
	c.Pool(t, ns, "pool", "model", 8000)
	for i, app := range []string{"model", "model", "other"} {
		c.Pod(t, cluster.Pod{Namespace: ns, Name: fmt.Sprintf("m-%d", i), IP: fmt.Sprintf("10.0.0.%d", i+1), App: app})
	}
	w := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool"})
	w.wants("m-0 10.0.0.1:8000 ready", "m-1 10.0.0.2:8000 ready")
	before := w.generations()
	c.Patch(t, "InferencePool", ns, "pool", `{"status":{"parents":[{"parentRef":{"name":"gw"}}]}}`, "status")
	c.Pool(t, ns, "pool", "model", 8000, 8001)
	w.wants("m-0-rank-0 10.0.0.1:8000 ready", "m-0-rank-1 10.0.0.1:8001 ready", "m-1-rank-0 10.0.0.2:8000 ready", "m-1-rank-1 10.0.0.2:8001 ready")
	c.Pool(t, ns, "pool", "model", 8000)
	w.wants("m-0 10.0.0.1:8000 ready", "m-1 10.0.0.2:8000 ready")
	w.keeps(before)
	c.Pool(t, ns, "pool", "other", 8000)
	w.wants("m-2 10.0.0.3:8000 ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-0", IP: "10.0.0.1", App: "other"})
	w.wants("m-0 10.0.0.1:8000 ready", "m-2 10.0.0.3:8000 ready")
	// One that selects every pod of the namespace is a mistake.
	c.Patch(t, "InferencePool", ns, "pool", `{"spec":{"selector":{"matchLabels":{"app":null}}}}`)
	w.says("its selector has no matchLabels")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-3", IP: "10.0.0.4", App: "other"})
	w.wants("m-0 10.0.0.1:8000 ready", "m-2 10.0.0.3:8000 ready", "m-3 10.0.0.4:8000 ready")
}

// A pool that is deleted and made anew keeps its endpoints; one that stays away loses them.
func testPoolGone(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "gone")
	c.Pool(t, ns, "pool", "model", 8000)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	short := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool", PoolGrace: 50 * time.Millisecond})
	long := follow(t, c, cluster.Admin, kube.Options{Pool: ns + "/pool", PoolGrace: time.Hour})
	for _, w := range []*watcher{short, long} {
		w.wants("m-1 10.0.0.1:8000 ready")
	}
	before := long.generations()
	c.Delete(t, "InferencePool", ns, "pool", true)
	short.wants()
	long.says("it does not exist")
	long.wants("m-1 10.0.0.1:8000 ready")
	c.Pool(t, ns, "pool", "model", 8000)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2"})
	for _, w := range []*watcher{short, long} {
		w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	}
	if g := long.generations()["10.0.0.1:8000"]; g != before["10.0.0.1:8000"] {
		t.Errorf("instance %d, and was %d", g, before["10.0.0.1:8000"])
	}
}

// Pods can be followed without any custom resource.
func testSelector(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "selector")
	for i, app := range []string{"a", "b", "c"} {
		c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-" + app, IP: fmt.Sprintf("10.0.0.%d", i+1), App: app})
	}
	w := follow(t, c, cluster.Admin, kube.Options{Selector: "app in (a, c),app!=d", Namespace: ns, TargetPorts: []string{"8000-8001"}})
	w.wants("m-a-rank-0 10.0.0.1:8000 ready", "m-a-rank-1 10.0.0.1:8001 ready", "m-c-rank-0 10.0.0.3:8000 ready", "m-c-rank-1 10.0.0.3:8001 ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-a", IP: "10.0.0.1", App: "d"}) // no longer selected
	w.wants("m-c-rank-0 10.0.0.3:8000 ready", "m-c-rank-1 10.0.0.3:8001 ready")
	none := follow(t, c, cluster.Admin, kube.Options{Selector: "app=none", Namespace: ns, TargetPorts: []string{"8000"}})
	<-none.ready // to find nothing is to know
	none.wants()
}

// A Service's EndpointSlices tell states and uids, as pods do.
func testService(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "service")
	slice := func(name, service, endpoints string) {
		c.Apply(t, fmt.Sprintf(`apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: %s, namespace: %s, labels: {kubernetes.io/service-name: %s}}
addressType: IPv4
ports: [{name: http, port: 8000, protocol: TCP}, {name: metrics, port: 9090, protocol: TCP}]
endpoints: [%s]`, name, ns, service, endpoints))
	}
	endpoint := func(i int, conditions string) string {
		return fmt.Sprintf(`{addresses: ["10.0.0.%d"], conditions: {%s}, targetRef: {kind: Pod, namespace: %s, name: m-%d, uid: u%d}}`, i, conditions, ns, i, i)
	}
	c.Apply(t, "apiVersion: v1\nkind: Service\nmetadata: {name: models, namespace: "+ns+"}\nspec: {clusterIP: None, selector: {app: model}, ports: [{name: http, port: 8000}, {name: metrics, port: 9090}]}")
	w := follow(t, c, cluster.Admin, kube.Options{Service: ns + "/models", TargetPorts: []string{"8000"}})
	<-w.ready
	slice("models-a", "models", endpoint(1, "ready: true")+", "+endpoint(2, "ready: false"))
	slice("models-b", "models", endpoint(3, "ready: false, serving: true, terminating: true"))
	slice("other-a", "other", endpoint(4, "ready: true"))
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 not_ready", "m-3 10.0.0.3:8000 draining")
	before := w.generations()
	slice("models-a", "models", endpoint(2, "ready: true"))
	slice("models-b", "models", endpoint(1, "ready: true"))
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	if g := w.generations(); g["10.0.0.2:8000"] != before["10.0.0.2:8000"] {
		t.Errorf("the instances are %v, and were %v", g, before)
	}
	c.Delete(t, "EndpointSlice", ns, "models-b", true)
	w.wants("m-2 10.0.0.2:8000 ready")
}

// The Role that deploy/kubernetes has is enough, and what is not allowed is said.
func testLeastRights(t *testing.T, c *cluster.Cluster) {
	ns := c.Namespace(t, "demo")
	c.Pool(t, ns, "pool", "model", 8000)
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-1", IP: "10.0.0.1"})
	w := follow(t, c, cluster.Reader, kube.Options{Pool: ns + "/pool"})
	w.says("the service account needs a Role that allows list and watch")
	text, err := os.ReadFile(filepath.Join("..", "..", "deploy", "kubernetes", "role.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	account := "  - kind: ServiceAccount\n    name: sluice\n    namespace: demo\n"
	if !strings.Contains(string(text), account) {
		t.Fatal("the role is bound to another account than this test knows")
	}
	c.Apply(t, strings.Replace(string(text), account, "  - {kind: User, name: reader, apiGroup: rbac.authorization.k8s.io}\n", 1))
	w.wants("m-1 10.0.0.1:8000 ready")
	c.Pod(t, cluster.Pod{Namespace: ns, Name: "m-2", IP: "10.0.0.2"})
	w.wants("m-1 10.0.0.1:8000 ready", "m-2 10.0.0.2:8000 ready")
	other := follow(t, c, cluster.Reader, kube.Options{Pool: ns + "/another"})
	other.says("needs a Role")
}
