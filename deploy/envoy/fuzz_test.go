package envoy_test

import (
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/sluice-epp/sluice/deploy/envoy"
)

// FuzzRender checks that no parameter can break out of its place: what renders is YAML, and a hostile string is found
// again whole and nowhere else.
func FuzzRender(f *testing.F) {
	f.Add("127.0.0.1:8080", "sluice.svc:9002", "10.0.0.1:8000", "/etc/ca.pem", "x-subset", "/chat/")
	f.Add("[::]:0", "[::1]:9002", "[2001:db8::1]:8000", "a\"b: {c}\n\\ü\u2028", "x", "/a#b")
	f.Add("0.0.0.0:1", "_a.b:1", "1.2.3.4.5:80", "\x00\x7f\u0085\U0001f600", "a'b", "/: - &x *y !z")
	f.Fuzz(func(t *testing.T, listen, picker, endpoint, file, header, prefix string) {
		out, err := envoy.Render(envoy.Params{
			Listen: listen, Picker: envoy.Picker{Address: picker, TLS: &envoy.TLS{CAFile: file}}, PoolType: envoy.OverrideHost,
			Endpoints: []string{endpoint}, SubsetHeader: header, Bypass: &envoy.Bypass{Prefix: prefix, Header: header},
		})
		if err != nil {
			return
		}
		var parsed struct {
			Static struct {
				Clusters []struct {
					Name      string
					Transport struct {
						Typed struct {
							Common struct {
								Validation struct {
									CA struct{ Filename string } `yaml:"trusted_ca"`
								} `yaml:"validation_context"`
							} `yaml:"common_tls_context"`
						} `yaml:"typed_config"`
					} `yaml:"transport_socket"`
				}
			} `yaml:"static_resources"`
		}
		if err := yaml.Unmarshal(out, &parsed); err != nil {
			t.Fatalf("not YAML: %v\n%s", err, out)
		}
		if len(parsed.Static.Clusters) != 3 {
			t.Fatalf("%d clusters, want 3\n%s", len(parsed.Static.Clusters), out)
		}
		if got := parsed.Static.Clusters[0].Transport.Typed.Common.Validation.CA.Filename; got != file {
			t.Fatalf("CA file %q, want %q", got, file)
		}
	})
}
