package kube

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOptionsCheck(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		o    Options
		want []string // what the faults contain, each
	}{
		"nothing":                {},
		"a pool":                 {o: Options{Pool: "demo/pool"}},
		"a pool, nowhere said":   {o: Options{Pool: "pool"}},
		"a pool, said twice":     {o: Options{Pool: "demo/pool", Namespace: "demo"}},
		"a selector":             {o: Options{Selector: "app in (a, b),role!=prefill,app.kubernetes.io/name=x", TargetPorts: []string{"8000"}}},
		"a selector and ranks":   {o: Options{Selector: "app=x", TargetPorts: []string{"8000-8003", "9000,9001"}}},
		"a service":              {o: Options{Service: "demo/models"}},
		"a service and a port":   {o: Options{Service: "demo/models", TargetPorts: []string{"8000"}}},
		"two":                    {o: Options{Pool: "a", Service: "b"}, want: []string{"service: one of pool, selector and service can be followed, and pool is set too"}},
		"a pool and ports":       {o: Options{Pool: "a", TargetPorts: []string{"8000"}}, want: []string{"targetPorts: an InferencePool has its own"}},
		"a selector, no ports":   {o: Options{Selector: "app=x"}, want: []string{"targetPorts: is needed beside selector"}},
		"no selector":            {o: Options{Selector: "app=x=y", TargetPorts: []string{"8000"}}, want: []string{`selector: "app=x=y"`}},
		"a selector of all":      {o: Options{Selector: " ", TargetPorts: []string{"8000"}}, want: []string{"matches every pod"}},
		"no port":                {o: Options{Selector: "app=x", TargetPorts: []string{"http"}}, want: []string{`targetPorts: port must be 1 to 65535, got "http"`}},
		"a port twice":           {o: Options{Service: "x", TargetPorts: []string{"8000-8001", "8001"}}, want: []string{"targetPorts: port 8001 is listed twice"}},
		"no name":                {o: Options{Pool: "demo/Pool"}, want: []string{`pool: "demo/Pool" is no InferencePool's NAMESPACE/NAME`}},
		"too many parts":         {o: Options{Service: "a/b/c"}, want: []string{"service:"}},
		"no namespace":           {o: Options{Pool: "/pool"}, want: []string{"namespace:"}},
		"two namespaces":         {o: Options{Pool: "demo/pool", Namespace: "other"}, want: []string{`namespace: is "other", and pool names "demo/pool"`}},
		"a namespace of no kind": {o: Options{Pool: "pool", Namespace: "a.b"}, want: []string{`namespace: "a.b"`}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			faults := tc.o.Check()
			if len(faults) != len(tc.want) {
				t.Fatalf("faults %v, want %d", faults, len(tc.want))
			}
			for i, f := range faults {
				if !strings.Contains(f.Error(), tc.want[i]) {
					t.Errorf("fault %q, want it to contain %q", f, tc.want[i])
				}
			}
		})
	}
}

const kubeconfig = `apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: c, user: u, namespace: mine}}]
clusters: [{name: c, cluster: {server: "https://127.0.0.1:1"}}]
users: [{name: u, user: {token: t}}]
`

func TestNew(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	t.Setenv("HOME", t.TempDir())
	t.Setenv("KUBERNETES_SERVICE_HOST", "")
	if _, err := New(Options{Pool: "demo/pool"}); err == nil || !strings.Contains(err.Error(), "no API server is known") {
		t.Errorf("without a kubeconfig: %v", err)
	}
	if _, err := New(Options{Pool: "demo/pool", Kubeconfig: "/nowhere/kubeconfig"}); err == nil || !strings.Contains(err.Error(), "/nowhere/kubeconfig") {
		t.Errorf("with a kubeconfig that is not there: %v", err)
	}
	if _, err := New(Options{}); err == nil || !strings.Contains(err.Error(), "nothing is named") {
		t.Errorf("without anything to follow: %v", err)
	}
	if _, err := New(Options{Pool: "a", Service: "b"}); err == nil || !strings.Contains(err.Error(), "service:") {
		t.Errorf("with two things to follow: %v", err)
	}
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(path, []byte(kubeconfig), 0o600); err != nil {
		t.Fatal(err)
	}
	names := map[string]string{}
	for _, o := range []Options{
		{Pool: "pool"}, {Pool: "demo/pool"}, {Service: "models", Namespace: "demo"}, {Selector: "app=x", TargetPorts: []string{"8000"}},
	} {
		o.Kubeconfig = path
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		names[o.Pool+o.Service+o.Selector] = s.String()
	}
	want := map[string]string{
		"pool": "InferencePool mine/pool", "demo/pool": "InferencePool demo/pool", "models": "Service demo/models",
		"app=x": "pods of mine with app=x",
	}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
}
