package envoy

import "testing"

func TestFirstListener(t *testing.T) {
	for page, want := range map[string]string{
		`{"listener_statuses":[{"name":"a","local_address":{"socket_address":{"address":"127.0.0.1","port_value":1234}}},{}]}`: "127.0.0.1:1234",
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"::1","port_value":80}}}]}`:                       "[::1]:80",
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"127.0.0.1"}}}]}`:                                 "",
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"127.0.0.1","port_value":65536}}}]}`:              "",
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"127.0.0.1","port_value":-1}}}]}`:                 "",
		`{"listener_statuses":[{"local_address":{"socket_address":{"address":"","port_value":80}}}]}`:                          "",
		`{}`:      "",
		`not yet`: "",
	} {
		got, err := FirstListener([]byte(page))
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%s: %q, %v", page, got, err)
		}
	}
}
