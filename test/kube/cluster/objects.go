package cluster

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"

	"github.com/sluice-epp/sluice/test/lab"
)

// resources are what tests write, by kind.
var resources = map[string]schema.GroupVersionResource{
	"CustomResourceDefinition": {Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions"},
	"EndpointSlice":            {Group: "discovery.k8s.io", Version: "v1", Resource: "endpointslices"},
	"InferencePool":            {Group: "inference.networking.k8s.io", Version: "v1", Resource: "inferencepools"},
	"Namespace":                {Version: "v1", Resource: "namespaces"},
	"Pod":                      {Version: "v1", Resource: "pods"},
	"Role":                     {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
	"RoleBinding":              {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"},
	"Service":                  {Version: "v1", Resource: "services"},
	"ServiceAccount":           {Version: "v1", Resource: "serviceaccounts"},
}

// of is the client of a kind's objects in a namespace; "" for those that are in none.
func (c *Cluster) of(t testing.TB, kind, namespace string) dynamic.ResourceInterface {
	t.Helper()
	resource, ok := resources[kind]
	if !ok {
		t.Fatalf("no resource is known for the kind %q", kind)
	}
	all := c.client(t).Resource(resource)
	if namespace == "" {
		return all
	}
	return all.Namespace(namespace)
}

func parse(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	encoded, err := yaml.YAMLToJSON([]byte(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	o := &unstructured.Unstructured{}
	if err := o.UnmarshalJSON(encoded); err != nil {
		t.Fatalf("%v in %s", err, encoded)
	}
	return o
}

// Apply makes the objects of YAML documents what these say. A status in them is applied too, as those write it that report
// how things are.
func (c *Cluster) Apply(t testing.TB, documents string) {
	t.Helper()
	for document := range strings.SplitSeq(documents, "\n---\n") {
		if strings.TrimSpace(document) == "" {
			continue
		}
		o := parse(t, document)
		of := c.of(t, o.GetKind(), o.GetNamespace())
		options := metav1.ApplyOptions{FieldManager: "test", Force: true}
		if _, err := of.Apply(t.Context(), o.GetName(), o, options); err != nil {
			t.Fatalf("apply %s %s: %v", o.GetKind(), o.GetName(), err)
		}
		if o.Object["status"] == nil {
			continue
		}
		if _, err := of.ApplyStatus(t.Context(), o.GetName(), o, options); err != nil {
			t.Fatalf("apply the status of %s %s: %v", o.GetKind(), o.GetName(), err)
		}
	}
}

// Patch changes an object by a JSON merge patch; subresources may be "status".
func (c *Cluster) Patch(t testing.TB, kind, namespace, name, patch string, subresources ...string) {
	t.Helper()
	if _, err := c.of(t, kind, namespace).Patch(t.Context(), name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}, subresources...); err != nil {
		t.Fatalf("patch %s %s: %v", kind, name, err)
	}
}

// Delete deletes an object; with now, at once.
func (c *Cluster) Delete(t testing.TB, kind, namespace, name string, now bool) {
	t.Helper()
	options := metav1.DeleteOptions{}
	if now {
		options.GracePeriodSeconds = new(int64)
	}
	if err := c.of(t, kind, namespace).Delete(t.Context(), name, options); err != nil {
		t.Fatalf("delete %s %s: %v", kind, name, err)
	}
}

// UID is an object's.
func (c *Cluster) UID(t testing.TB, kind, namespace, name string) string {
	t.Helper()
	o, err := c.of(t, kind, namespace).Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatalf("get %s %s: %v", kind, name, err)
	}
	return string(o.GetUID())
}

// Namespace makes a namespace of its own for the test.
func (c *Cluster) Namespace(t testing.TB, name string) string {
	t.Helper()
	c.Apply(t, "apiVersion: v1\nkind: Namespace\nmetadata: {name: "+name+"}")
	return name
}

// Serve waits until the API server serves a kind, as it does a moment after its definition.
func (c *Cluster) Serve(t testing.TB, kind string) {
	t.Helper()
	of := c.of(t, kind, "default")
	lab.Wait(t, kind+" to be served", func() bool {
		_, err := of.List(context.WithoutCancel(t.Context()), metav1.ListOptions{Limit: 1})
		if err != nil && !apierrors.IsNotFound(err) {
			t.Fatal(err)
		}
		return err == nil
	})
}

// Pod is a pod as its kubelet reports it.
type Pod struct {
	Namespace, Name, IP string
	// App is the value of its label app; "model" unless set.
	App string
	// Ports are those that its container declares.
	Ports []int
	// Annotations are written as a YAML mapping.
	Annotations string
	// Unready pods do not serve yet.
	Unready bool
	// Restarts is how often its container was restarted.
	Restarts int
	// Phase is Running unless set.
	Phase string
	// Filling makes it as large as a model server's pod usually is, of which a picker reads next to nothing.
	Filling bool
}

// filling is what stands in the container of a pod with Filling.
var filling = func() string {
	var b strings.Builder
	b.WriteString(", command: [/bin/sh, -c, \"" + strings.Repeat("vllm serve Qwen/Qwen3-32B --flag value ", 12) + "\"], env: [")
	for i := range 24 {
		fmt.Fprintf(&b, "{name: SETTING_%d, value: \"%s\"}, ", i, strings.Repeat("value ", 6))
	}
	b.WriteString("], readinessProbe: {httpGet: {path: /health, port: 8000}}, resources: {limits: {memory: 200Gi, nvidia.com/gpu: 8}}")
	return b.String()
}()

// Pod makes a pod what it says, and returns its uid. It is on a node that nobody plays: once deleted, it stays until it is
// deleted at once.
func (c *Cluster) Pod(t testing.TB, p Pod) string {
	t.Helper()
	if p.App == "" {
		p.App = "model"
	}
	if p.Phase == "" {
		p.Phase = "Running"
	}
	if p.Annotations == "" {
		p.Annotations = "{}"
	}
	var ports []string
	for _, port := range p.Ports {
		ports = append(ports, fmt.Sprintf("{containerPort: %d}", port))
	}
	ip := ""
	if p.IP != "" {
		ip = fmt.Sprintf("podIP: %q, podIPs: [{ip: %q}], ", p.IP, p.IP)
	}
	c.Apply(t, fmt.Sprintf(`apiVersion: v1
kind: Pod
metadata: {name: %s, namespace: %s, labels: {app: %s}, annotations: %s}
spec: {nodeName: n1, automountServiceAccountToken: false, containers: [{name: engine, image: none, ports: [%s]%s}]}
status: {phase: %s, %sconditions: [{type: Ready, status: "%s"}], containerStatuses: [{name: engine, image: none, imageID: none, ready: %v, restartCount: %d}]}`,
		p.Name, p.Namespace, p.App, p.Annotations, strings.Join(ports, ", "), map[bool]string{true: filling}[p.Filling], p.Phase, ip, map[bool]string{true: "False", false: "True"}[p.Unready],
		!p.Unready, p.Restarts))
	return c.UID(t, "Pod", p.Namespace, p.Name)
}

// Condition changes whether a pod is ready, and nothing else.
func (c *Cluster) Condition(t testing.TB, namespace, name string, ready bool) {
	t.Helper()
	status := map[bool]string{true: "True", false: "False"}[ready]
	c.Patch(t, "Pod", namespace, name, `{"status":{"conditions":[{"type":"Ready","status":"`+status+`"}]}}`, "status")
}
