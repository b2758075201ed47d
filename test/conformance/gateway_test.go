package conformance

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The aids that a picker offers to conformance tests.
const (
	selection = "test-epp-endpoint-selection"
	served    = "x-conformance-test-served-endpoint"
)

// pool is an InferencePool: its pods, which all listen on the same ports, and its endpoint picker.
type pool struct {
	pods   []*lab.Pod
	ips    []string
	picker *lab.Sluice
}

// newPool starts a pool of n pods with a number of ports each.
func newPool(t *testing.T, n, ports int) *pool {
	t.Helper()
	p := &pool{ips: envoytest.PodIPs(t, n)}
	for range ports {
		port := strconv.Itoa(envoytest.FreePort(t, p.ips...))
		for _, ip := range p.ips {
			p.pods = append(p.pods, lab.StartPod(t, ip+":"+port))
		}
	}
	p.picker = lab.StartSluice(t, lab.Plan{Endpoints: p.addresses(), Conformance: true})
	return p
}

func (p *pool) addresses() []string {
	var all []string
	for _, pod := range p.pods {
		all = append(all, pod.Addr)
	}
	return all
}

// has reports whether an address is that of one of the pool's pods.
func (p *pool) has(address string) bool { return slices.Contains(p.addresses(), address) }

// gateway starts an Envoy in front of the pool.
func (p *pool) gateway(t *testing.T, params envoy.Params) *envoytest.Instance {
	t.Helper()
	params.Picker.Address, params.Endpoints = p.picker.Addr(), p.addresses()
	return envoytest.Start(t, params)
}

// ip is the host of an address.
func ip(t *testing.T, address string) string {
	t.Helper()
	ap, err := netip.ParseAddrPort(address)
	if err != nil {
		t.Fatal(err)
	}
	return ap.Addr().String()
}

// completion is the request body of the upstream scenarios.
const completion = `{"model":"conformance-fake-model","prompt":"Write as if you were a critic: San Francisco"}`

// result is what came of one of many requests.
type result struct {
	answer lab.Answer
	echo   lab.Echo
}

// burst sends n requests, ten at a time, half with a body and half without, and returns what came of each.
func burst(t *testing.T, url string, n int, headers ...string) []result {
	t.Helper()
	const concurrent = 10
	client := lab.NewClient(t)
	all := make([]result, n)
	var group sync.WaitGroup
	for worker := range concurrent {
		group.Go(func() {
			for i := worker; i < n; i += concurrent {
				r := lab.Request(t, http.MethodGet, url, nil, headers...)
				if i%2 == 0 {
					r = lab.Request(t, http.MethodPost, url, strings.NewReader(completion), headers...)
				}
				answer, err := lab.Try(client, r)
				if err == nil && answer.Status != http.StatusOK {
					err = fmt.Errorf("status %d: %s", answer.Status, answer.Body)
				}
				if err != nil {
					t.Errorf("request %d: %v", i, err)
					return
				}
				all[i].answer = answer
			}
		})
	}
	group.Wait()
	if t.Failed() {
		t.FailNow()
	}
	for i := range all {
		all[i].echo = lab.ReadEcho(t, all[i].answer)
	}
	return all
}
