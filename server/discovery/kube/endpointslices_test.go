package kube

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSliceEndpoints(t *testing.T) {
	t.Parallel()
	sliceJSON := func(name, ports, endpoints string) string {
		return `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":"` + name + `","namespace":"demo"},
			"addressType":"IPv4","ports":[` + ports + `],"endpoints":[` + endpoints + `]}`
	}
	podOf := func(name, uid, ip, conditions string) string {
		return `{"addresses":["` + ip + `"],"conditions":{` + conditions + `},"targetRef":{"kind":"Pod","namespace":"demo","name":"` + name + `","uid":"` + uid + `"}}`
	}
	const http = `{"name":"http","port":8000,"protocol":"TCP"}`
	for name, tc := range map[string]struct {
		slices []string
		ports  []uint16
		want   []string
	}{
		"none": {},
		"states": {
			slices: []string{sliceJSON("s-a", http, podOf("m-1", "u1", "10.0.0.1", `"ready":true`)+","+podOf("m-2", "u2", "10.0.0.2", `"ready":false`)+","+
				podOf("m-3", "u3", "10.0.0.3", `"ready":false,"serving":true,"terminating":true`)+","+podOf("m-4", "u4", "10.0.0.4", ``))},
			want: []string{
				"m-1 10.0.0.1:8000 uid=u1 rank=0 ready", "m-2 10.0.0.2:8000 uid=u2 rank=0 not_ready",
				"m-3 10.0.0.3:8000 uid=u3 rank=0 draining", "m-4 10.0.0.4:8000 uid=u4 rank=0 ready",
			},
		},
		"terminating, though published while not ready": {
			slices: []string{sliceJSON("s-a", http, podOf("m-1", "u1", "10.0.0.1", `"ready":true,"terminating":true`))},
			want:   []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 draining"},
		},
		"without a pod": {
			slices: []string{sliceJSON("s-a", http, `{"addresses":["10.0.0.1","10.0.0.9"]},{"addresses":[]},{"addresses":["engine.example"]}`)},
			want:   []string{"10.0.0.1 10.0.0.1:8000 uid= rank=0 ready"},
		},
		"all ports, by number": {
			slices: []string{sliceJSON("s-a", `{"name":"b","port":8001},{"name":"a","port":8000,"protocol":"TCP"},{"name":"u","port":8002,"protocol":"UDP"},{"name":"any"}`,
				podOf("m-1", "u1", "10.0.0.1", ``))},
			want: []string{"m-1-rank-0 10.0.0.1:8000 uid=u1 rank=0 ready ranks=1", "m-1-rank-1 10.0.0.1:8001 uid=u1 rank=1 ready ranks=1"},
		},
		"the ports that count": {
			slices: []string{sliceJSON("s-a", http+`,{"name":"metrics","port":9090}`, podOf("m-1", "u1", "10.0.0.1", ``)), sliceJSON("s-b", `{"port":7000}`, podOf("m-2", "u2", "10.0.0.2", ``))},
			ports:  []uint16{8000},
			want:   []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready"},
		},
		"in two slices": {
			slices: []string{sliceJSON("s-a", http, podOf("m-1", "u1", "10.0.0.1", `"ready":false`)), sliceJSON("s-b", http, podOf("m-1", "u1", "10.0.0.1", `"ready":true`))},
			want:   []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready"},
		},
		"the next pod's address": {
			slices: []string{sliceJSON("s-a", http, podOf("m-1", "u1", "10.0.0.1", `"terminating":true`)), sliceJSON("s-b", http, podOf("m-2", "u2", "10.0.0.1", `"ready":true`))},
			want:   []string{"m-2 10.0.0.1:8000 uid=u2 rank=0 ready"},
		},
		"both families": {
			slices: []string{
				sliceJSON("s-6", http, podOf("m-1", "u1", "2001:db8::1", ``)+","+podOf("m-2", "u2", "2001:db8::2", ``)),
				sliceJSON("s-4", http, podOf("m-1", "u1", "10.0.0.1", ``)),
			},
			want: []string{"m-1 10.0.0.1:8000 uid=u1 rank=0 ready", "m-2 [2001:db8::2]:8000 uid=u2 rank=0 ready"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, order := range [][]int{{0, 1}, {1, 0}} { // slices come in no order
				var all []*endpointSlice
				for _, i := range order {
					if i < len(tc.slices) {
						all = append(all, reduceSlice(decode[EndpointSlice](t, tc.slices[i])))
					}
				}
				if diff := cmp.Diff(tc.want, shown(sliceEndpoints(all, tc.ports))); diff != "" {
					t.Errorf("slices in the order %v: %s", order, diff)
				}
			}
		})
	}
}

func TestSliceLabels(t *testing.T) {
	t.Parallel()
	s := reduceSlice(decode[EndpointSlice](t, `{"metadata":{"name":"s"},"ports":[{"port":8000}],
		"endpoints":[{"addresses":["10.0.0.1"],"nodeName":"n1","zone":"z1"},{"addresses":["10.0.0.2"]}]}`))
	got := sliceEndpoints([]*endpointSlice{s}, nil)
	if diff := cmp.Diff(map[string]string{"topology.kubernetes.io/zone": "z1", "kubernetes.io/hostname": "n1"}, got[0].Labels); diff != "" {
		t.Error(diff)
	}
	if got[1].Labels != nil {
		t.Errorf("labels %v of an endpoint without any", got[1].Labels)
	}
}
