package envoy

import (
	"encoding/json"
	"net/netip"
	"testing"
)

// FuzzFirstListener lets the admin port say anything: what comes out is an address to connect to, which is on the page.
func FuzzFirstListener(f *testing.F) {
	for _, page := range []string{
		`{"listener_statuses":[{"name":"a","local_address":{"socket_address":{"address":"127.0.0.1","port_value":1234}}},{}]}`,
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"::1","port_value":80}}}]}`,
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"fe80::1%eth0","port_value":80}}}]}`,
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"localhost","port_value":80}}}]}`,
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"1.2.3.4","port_value":65536}}}]}`,
		`{"listener_statuses":[{"local_address":{"pipe":{"path":"/x"}}}]}`, `{"listener_statuses":[]}`, `{"listener_statuses":[5]}`, `{}`, `null`, ``,
	} {
		f.Add([]byte(page))
	}
	f.Fuzz(func(t *testing.T, page []byte) {
		address, err := FirstListener(page)
		if err != nil {
			if address != "" {
				t.Fatalf("%q is refused, and names %s", page, address)
			}
			return
		}
		at, err := netip.ParseAddrPort(address)
		if err != nil || at.Port() == 0 {
			t.Fatalf("%q names %q", page, address)
		}
		again, err := json.Marshal(map[string]any{"listener_statuses": []any{map[string]any{
			"local_address": map[string]any{"socket_address": map[string]any{"address": at.Addr().String(), "port_value": at.Port()}},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		if same, err := FirstListener(again); err != nil || netip.MustParseAddrPort(same) != at {
			t.Fatalf("%q names %s, and %q names %s, %v", page, address, again, same, err)
		}
	})
}
