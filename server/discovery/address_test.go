package discovery

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestNormalizeAddress(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]string{
		"10.0.0.5:8000":               "10.0.0.5:8000",
		"10.0.0.5:08000":              "10.0.0.5:8000",
		"[2001:DB8::5]:8000":          "[2001:db8::5]:8000",
		"[2001:db8:0:0:0:0:0:5]:8000": "[2001:db8::5]:8000",
		"[0:0:0:0:0:0:0:1]:21000":     "[::1]:21000",
		"[::ffff:10.0.0.5]:8000":      "10.0.0.5:8000",
		"[::ffff:a00:5]:8000":         "10.0.0.5:8000",
		"0.0.0.0:1":                   "0.0.0.0:1",
	} {
		got, err := NormalizeAddress(in)
		if err != nil || got != want {
			t.Errorf("NormalizeAddress(%q) = %q, %v; want %q", in, got, err, want)
		}
		if again, err := NormalizeAddress(got); err != nil || again != got {
			t.Errorf("NormalizeAddress(%q) = %q, %v; must change nothing", got, again, err)
		}
	}
	for in, want := range map[string]string{
		"":                         "must be ip:port",
		"10.0.0.5":                 "must be ip:port",
		"vllm-0:8000":              "must be ip:port",
		"2001:db8::5:8000":         "must be ip:port or [ipv6]:port",
		"[10.0.0.5]:8000":          "must be ip:port",
		"10.0.0.05:8000":           "must be ip:port",
		"10.0.0.5:0":               "port must be 1 to 65535",
		"10.0.0.5:65536":           "must be ip:port",
		"10.0.0.5:-1":              "must be ip:port",
		"[fe80::1%eth0]:80":        "zone",
		" 10.0.0.5:8000":           "must be ip:port",
		strings.Repeat("x", 10000): "…",
	} {
		got, err := NormalizeAddress(in)
		if err == nil || !strings.Contains(err.Error(), want) || len(err.Error()) > 200 {
			t.Errorf("NormalizeAddress(%q) = %q, %v; want an error with %q", clip(in), got, err, want)
		}
	}
}

func TestPorts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		want []uint16
		back string
	}{
		{"8000", []uint16{8000}, "8000"},
		{"8000-8003", []uint16{8000, 8001, 8002, 8003}, "8000-8003"},
		{"8001,8000", []uint16{8001, 8000}, "8001,8000"},
		{"8000,8001,9000", []uint16{8000, 8001, 9000}, "8000-8001,9000"},
		{"65535", []uint16{65535}, "65535"},
		{"65534-65535", []uint16{65534, 65535}, "65534-65535"},
	} {
		var got []uint16
		for p := range strings.SplitSeq(c.in, ",") {
			var err error
			if got, err = appendPorts(got, p); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s: (-want +got)\n%s", c.in, diff)
		}
		if back := formatPorts(got); back != c.back {
			t.Errorf("%s: formatted as %s, want %s", c.in, back, c.back)
		}
	}
}
