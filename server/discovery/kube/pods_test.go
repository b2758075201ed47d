package kube

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// decode reads an object as the API server sends it.
func decode[O any](t testing.TB, text string) *O {
	t.Helper()
	o := new(O)
	if err := json.Unmarshal([]byte(text), o); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	return o
}

// podJSON is a pod as the API server sends it; the extra fields are added to its metadata, spec and status.
func podJSON(name, uid, ip string, metadata, spec, status string) string {
	join := func(first, more string) string {
		if more == "" {
			return first
		}
		return first + "," + more
	}
	return fmt.Sprintf(`{"apiVersion":"v1","kind":"Pod","metadata":{%s},"spec":{%s},"status":{%s}}`,
		join(fmt.Sprintf(`"name":%q,"namespace":"demo","uid":%q,"creationTimestamp":"2026-11-01T00:00:00Z","labels":{"app":"model"},
			"managedFields":[{"manager":"is not read"},1],"ownerReferences":[{"kind":"is not read"},1]`, name, uid), metadata),
		join(`"nodeName":"n1"`, spec), join(fmt.Sprintf(`"phase":"Running","podIP":%q`, ip), status))
}

const ready = `"conditions":[{"type":"PodScheduled","status":"True"},{"type":"Ready","status":"True"}]`

// shown are endpoints, a line each.
func shown(specs []scheduling.EndpointSpec) []string {
	var lines []string
	for _, s := range specs {
		line := fmt.Sprintf("%s %s uid=%s rank=%d %s", s.Name, s.Address, s.UID, s.Rank, s.State)
		if s.Engine != "" {
			line += " engine=" + s.Engine
		}
		if s.KVEvents.Ranks != 0 {
			line += fmt.Sprintf(" ranks=%d", s.KVEvents.Ranks)
		}
		lines = append(lines, line)
	}
	return lines
}

func TestPodEndpoints(t *testing.T) {
	t.Parallel()
	const later = `"creationTimestamp":"2026-11-02T00:00:00Z"`
	const deleted = `"deletionTimestamp":"2026-11-03T00:00:00Z"`
	const container = `"containers":[{"name":"vllm","ports":[{"containerPort":8000}]}]`
	restarts := func(n int) string {
		return fmt.Sprintf(`%s,"containerStatuses":[{"name":"vllm","restartCount":%d}]`, ready, n)
	}
	for name, tc := range map[string]struct {
		pods  []string
		ports []uint16
		want  []string
	}{
		"none": {},
		"ready": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "", "", ready)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready"},
		},
		"by name": {
			pods: []string{podJSON("m-2", "u2", "10.0.0.2", "", "", ready), podJSON("m-1", "u1", "10.0.0.1", "", "", ready)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready", "m-2 10.0.0.2:8000 uid=u2 rank=0 ready"},
		},
		"not ready": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "", "", `"conditions":[{"type":"Ready","status":"False"}]`)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 not_ready"},
		},
		"nothing said of readiness": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "", "", "")},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 not_ready"},
		},
		"ready to be told, of something else": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "", "", `"conditions":[{"type":"ContainersReady","status":"True"},{"type":"Ready","status":"Unknown"}]`)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 not_ready"},
		},
		"being deleted, while still ready": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", deleted, "", ready)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 draining"},
		},
		"no address yet": {
			pods: []string{podJSON("m-1", "u1", "", "", "", `"phase":"Pending"`)},
		},
		"ended": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "", "", `"phase":"Succeeded"`), podJSON("m-2", "u2", "10.0.0.2", "", "", `"phase":"Failed"`)},
		},
		"an address that the next pod has": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", deleted, "", ready), podJSON("m-2", "u2", "10.0.0.1", "", "", "")},
			want: []string{"m-2 10.0.0.1:8000 uid=u2 rank=0 not_ready"},
		},
		"an address of an ended pod": {
			pods: []string{podJSON("m-2", "u2", "10.0.0.1", deleted, "", ""), podJSON("m-1", "u1", "10.0.0.1", "", "", ready+`,"phase":"Failed"`)},
			want: []string{"m-2 10.0.0.1:8000 uid=u2 rank=0 draining"},
		},
		"an address of two, of which one is ready": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", later, "", ""), podJSON("m-2", "u2", "10.0.0.1", "", "", ready)},
			want: []string{"m-2 10.0.0.1:8000 uid=u2 rank=0 ready"},
		},
		"an address of two, the younger counts": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", later, "", ready), podJSON("m-2", "u2", "10.0.0.1", "", "", ready)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready"},
		},
		"an address of two of one age": {
			pods: []string{podJSON("m-1", "u2", "10.0.0.1", "", "", ready), podJSON("m-2", "u1", "10.0.0.1", "", "", ready)},
			want: []string{"m-2 10.0.0.1:8000 uid=u1 rank=0 ready"},
		},
		"ranks": {
			pods:  []string{podJSON("m-1", "u1", "10.0.0.1", "", "", ready)},
			ports: []uint16{8001, 8000},
			want:  []string{"m-1-rank-0 10.0.0.1:8001 uid=u1 rank=0 ready ranks=1", "m-1-rank-1 10.0.0.1:8000 uid=u1 rank=1 ready ranks=1"},
		},
		"ranks that the pod names": {
			pods: []string{
				podJSON("m-1", "u1", "10.0.0.1", `"annotations":{"llm-d.ai/active-ports":"8002, 8000","inference.networking.k8s.io/active-ports":"8001"}`, "", ready),
				podJSON("m-2", "u2", "10.0.0.2", `"annotations":{"inference.networking.k8s.io/active-ports":"8001,nonsense,1"}`, "", ready),
			},
			ports: []uint16{8000, 8001, 8002},
			want: []string{
				"m-1-rank-0 10.0.0.1:8000 uid=u1 rank=0 ready ranks=1", "m-1-rank-2 10.0.0.1:8002 uid=u1 rank=2 ready ranks=1",
				"m-2-rank-1 10.0.0.2:8001 uid=u2 rank=1 ready ranks=1",
			},
		},
		"restarted in place": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "", container, restarts(2))},
			want: []string{"m-1 10.0.0.1:8000 uid=u1/2 rank=0 ready"},
		},
		"restarted, of which the port is not": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "",
				`"containers":[{"name":"vllm","ports":[{"containerPort":8000}]},{"name":"exporter","ports":[{"containerPort":9400}]}]`,
				ready+`,"containerStatuses":[{"name":"exporter","restartCount":7},{"name":"vllm","restartCount":0}]`)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready"},
		},
		"restarted, and nobody declares the port": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "", `"containers":[{"name":"vllm"},{"name":"exporter"}]`,
				ready+`,"containerStatuses":[{"name":"exporter","restartCount":7},{"name":"vllm","restartCount":1}]`)},
			want: []string{"m-1 10.0.0.1:8000 uid=u1/8 rank=0 ready"},
		},
		"restarted, one rank of two": {
			pods: []string{podJSON("m-1", "u1", "10.0.0.1", "",
				`"containers":[{"name":"a","ports":[{"containerPort":8000}]},{"name":"b","ports":[{"containerPort":8001}]}]`,
				ready+`,"containerStatuses":[{"name":"b","restartCount":1},{"name":"a","restartCount":0}]`)},
			ports: []uint16{8000, 8001},
			want:  []string{"m-1-rank-0 10.0.0.1:8000 uid=u1 rank=0 ready ranks=1", "m-1-rank-1 10.0.0.1:8001 uid=u1/1 rank=1 ready ranks=1"},
		},
		"IPv6, and IPv4 in its clothes": {
			pods: []string{podJSON("m-1", "u1", "2001:DB8::5", "", "", ready), podJSON("m-2", "u2", "::ffff:10.0.0.2", "", "", ready)},
			want: []string{"m-1 [2001:db8::5]:8000 uid=u1 rank=0 ready", "m-2 10.0.0.2:8000 uid=u2 rank=0 ready"},
		},
		"no address at all": {
			pods: []string{podJSON("m-1", "u1", "pod-1.local", "", "", ready)},
		},
		"engine": {
			pods: []string{
				podJSON("m-1", "u1", "10.0.0.1", `"labels":{"inference.networking.k8s.io/engine-type":"sglang"}`, "", ready),
				podJSON("m-2", "u2", "10.0.0.2", `"labels":{"llm-d.ai/engine-type":"unheard-of","engine":"triton"}`, "", ready),
			},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready engine=sglang", "m-2 10.0.0.2:8000 uid=u2 rank=0 ready engine=triton"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var pods []*pod
			for _, text := range tc.pods {
				pods = append(pods, reducePod(decode[Pod](t, text)))
			}
			ports := tc.ports
			if ports == nil {
				ports = []uint16{8000}
			}
			if diff := cmp.Diff(tc.want, shown(podEndpoints(pods, ports))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// What is read of a pod is all that makes it another; what others write often, such as times of probes, does not.
func TestPodEqual(t *testing.T) {
	t.Parallel()
	const spec = `"containers":[{"name":"vllm","ports":[{"containerPort":8000}]}]`
	const status = ready + `,"containerStatuses":[{"name":"vllm","restartCount":1}]`
	const annotation = `"annotations":{"llm-d.ai/active-ports":"8000"}`
	base := podJSON("m-1", "u1", "10.0.0.1", annotation, spec, status)
	of := func(text string) *pod { return reducePod(decode[Pod](t, text)) }
	same := strings.NewReplacer(`"status":"True"}]`, `"status":"True","lastProbeTime":"2026-11-04T00:00:00Z"}]`,
		`"namespace":`, `"resourceVersion":"77","namespace":`, `"nodeName":`, `"nodeSelector":{"a":"b"},"nodeName":`,
		`"restartCount":1`, `"restartCount":1,"image":"x"`).Replace(base)
	if same == base || !of(same).equal(of(base)) {
		t.Error("a pod of which nothing changed that is read counts as another")
	}
	for from, to := range map[string]string{
		`"uid":"u1"`: `"uid":"u2"`, `10.0.0.1`: `10.0.0.2`, `"Ready","status":"True"`: `"Ready","status":"False"`, `"name":"m-1"`: `"name":"m-2"`,
		`"app":"model"`: `"app":"other"`, `"restartCount":1`: `"restartCount":2`, `"Running"`: `"Failed"`, `"containerPort":8000`: `"containerPort":8001`,
		`active-ports":"8000"`: `active-ports":"8001"`, `2026-11-01`: `2026-11-02`,
	} {
		changed := strings.ReplaceAll(base, from, to)
		if changed == base || of(changed).equal(of(base)) {
			t.Errorf("a pod with %s for %s counts as the same", to, from)
		}
	}
}
