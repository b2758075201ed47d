package envoy_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
)

var update = flag.Bool("update", false, "write the golden files")

var (
	picker    = envoy.Picker{Address: "127.0.0.1:9002"}
	endpoints = []string{"127.0.0.2:8000", "127.0.0.3:8000", "[::1]:8000"}
)

// golden bootstraps, by file name: together they reach every line of the template.
var golden = map[string]envoy.Params{
	"original-dst": {Listen: "0.0.0.0:8080", Admin: "127.0.0.1:9901", Picker: picker, AccessLog: true},
	"override-host": {
		Listen: "0.0.0.0:8080", Admin: "127.0.0.1:9901", Picker: picker, PoolType: envoy.OverrideHost, Endpoints: endpoints, Retries: 2,
	},
	"metadata": {
		Listen: "[::]:8080", Picker: picker, Source: envoy.FromMetadata, HideDestination: true,
		RequestBody: envoy.Buffered, ResponseBody: envoy.Streamed, ResponseTrailers: envoy.Skip, DropTrailers: true,
		MessageTimeout: 300 * time.Millisecond, MaxMessageTimeout: 30 * time.Second, FailureModeAllow: true,
		AllowModeOverride: true, AllowContentLength: true, SubsetHeader: "x-subset",
	},
	"override-host-metadata": {
		Listen: "127.0.0.1:8080", Picker: envoy.Picker{Address: "sluice.default.svc.cluster.local:9002", TLS: &envoy.TLS{
			CAFile: "/etc/envoy/ca.pem", ServerName: "sluice.default.svc", CertFile: "/etc/envoy/tls.crt", KeyFile: "/etc/envoy/tls.key",
		}, HealthService: "readiness", HealthInterval: 5 * time.Second},
		PoolType: envoy.OverrideHost, Source: envoy.FromMetadata, HTTP2Upstream: true, BufferLimitBytes: 4 << 20,
		Endpoints: []string{"engine-0.engines:8000", "10.0.0.9:8000"}, Subset: []string{"10.0.0.9:8000", "10.0.0.10:8000"},
		Retries: 1, RetryOn: "5xx,connect-failure,reset", RetryBodyLimitBytes: 1 << 20,
	},
	"observe": {
		Listen: "127.0.0.1:0", Admin: "127.0.0.1:0", Picker: envoy.Picker{Address: "[::1]:9002", TLS: &envoy.TLS{}, NoHealthCheck: true},
		PoolType: envoy.OverrideHost, Endpoints: endpoints, RequestBody: envoy.Streamed, ResponseBody: envoy.BodyNone,
		Observability: true, SendBodyEarly: true, ResponseHeaders: envoy.Skip, RequestTrailers: envoy.Skip, Subset: []string{},
	},
	"pools": {
		Listen: "127.0.0.1:8080", Admin: "127.0.0.1:9901", Picker: picker, Endpoints: endpoints, Weight: 70,
		Pools: []envoy.Pool{
			{Name: "canary", Picker: envoy.Picker{Address: "127.0.0.1:9012"}, Weight: 30},
			{Name: "embeddings", Picker: envoy.Picker{Address: "127.0.0.1:9022"}, Prefix: "/v1/embeddings"},
		},
		Bypass: &envoy.Bypass{Prefix: "/round-robin/"},
	},
	"traced": {
		Listen: "127.0.0.1:8080", Picker: picker, AccessLog: true,
		Tracing: &envoy.Tracing{Collector: "collector.observability:4317", Service: "gateway", Percent: 12.5},
	},
	"replicas": {
		Listen: "127.0.0.1:8080", Picker: envoy.Picker{Address: "10.0.0.5:9002", Replicas: []string{"10.0.0.6:9002", "sluice-2.sluice:9002"}, TLS: &envoy.TLS{}},
	},
	"bypass-header": {
		Listen: "127.0.0.1:8080", Picker: picker, PoolType: envoy.OverrideHost, Endpoints: []string{"engine.local:8000"},
		RequestBody: envoy.BufferedPartial, ResponseBody: envoy.Buffered, Bypass: &envoy.Bypass{Header: "x-round-robin"},
	},
}

func TestRender(t *testing.T) {
	for name, params := range golden {
		t.Run(name, func(t *testing.T) {
			got, err := envoy.Render(params)
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join("testdata", name+".yaml")
			if *update {
				if err := os.WriteFile(file, got, 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)); diff != "" {
				t.Errorf("%s (-want +got; go test -update rewrites it):\n%s", file, diff)
			}
		})
	}
}

// Every golden file is a bootstrap that a real Envoy takes.
func TestEnvoyTakesEveryRender(t *testing.T) {
	for name, params := range golden {
		t.Run(name, func(t *testing.T) {
			params.Picker.TLS = writtenFiles(t, params.Picker.TLS)
			got, err := envoy.Render(params)
			if err != nil {
				t.Fatal(err)
			}
			if err := envoytest.Validate(t, got); err != nil {
				t.Error(err)
			}
		})
	}
}

// writtenFiles gives the files that Envoy reads when it checks a bootstrap.
func writtenFiles(t *testing.T, tls *envoy.TLS) *envoy.TLS {
	t.Helper()
	if tls == nil || tls.CAFile == "" {
		return tls
	}
	certificate, key := envoytest.WriteCertificate(t, "sluice.default.svc")
	return &envoy.TLS{CAFile: certificate, ServerName: tls.ServerName, CertFile: certificate, KeyFile: key}
}
