package envoy_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/deploy/envoy"
)

func TestValidateNamesEveryFault(t *testing.T) {
	valid := envoy.Params{Listen: "127.0.0.1:8080", Picker: picker, Endpoints: endpoints}
	tests := map[string]struct {
		change func(*envoy.Params)
		want   []string
	}{
		"valid": {change: func(*envoy.Params) {}},
		"zero value": {
			change: func(p *envoy.Params) { *p = envoy.Params{} },
			want:   []string{`listen: must be host:port, got ""`, `picker.address: must be host:port, got ""`},
		},
		"replicas": {
			change: func(p *envoy.Params) {
				p.Picker.Replicas = []string{"127.0.0.1:9003", "127.0.0.1", p.Picker.Address, "127.0.0.1:9003"}
			},
			want: []string{
				`picker.replicas[1]: must be host:port, got "127.0.0.1"`, `picker.replicas[2]: "127.0.0.1:9002" is listed twice`,
				`picker.replicas[3]: "127.0.0.1:9003" is listed twice`,
			},
		},
		"addresses": {
			change: func(p *envoy.Params) {
				p.Listen, p.Admin, p.Picker.Address = "localhost:80", "127.0.0.1:70000", "::1:9002"
				p.Endpoints = []string{"127.0.0.2:0", "[::1:80", "a b:80", "[fe80::1%eth0]:80", "127.0.0.2:80", "127.0.0.2:80", "[127.0.0.1]:80"}
			},
			want: []string{
				`listen: the host must be an IP, got "localhost:80"`,
				`admin: bad port in "127.0.0.1:70000"`,
				`picker.address: an IPv6 host needs brackets, got "::1:9002"`,
				`endpoints[0]: bad port in "127.0.0.2:0"`,
				`endpoints[1]: brackets in "[::1:80" hold no IPv6 address`,
				`endpoints[2]: the host of "a b:80" is neither an IP nor a DNS name`,
				`endpoints[3]: "[fe80::1%eth0]:80" has a zone, which Envoy does not take`,
				`endpoints[5]: "127.0.0.2:80" is listed twice`,
				`endpoints[6]: brackets in "[127.0.0.1]:80" hold no IPv6 address`,
			},
		},
		"modes": {
			change: func(p *envoy.Params) {
				p.RequestBody, p.ResponseBody, p.PoolType, p.Source, p.ResponseTrailers = "BUFERED", "stream", "OVERIDE_HOST", "head", "SENT"
			},
			want: []string{
				`poolType: unknown value "OVERIDE_HOST", the nearest is OVERRIDE_HOST (known: ORIGINAL_DST, OVERRIDE_HOST)`,
				`source: unknown value "head", the nearest is header (known: header, metadata)`,
				`requestBody: unknown value "BUFERED", the nearest is BUFFERED (known: FULL_DUPLEX_STREAMED, STREAMED, BUFFERED, BUFFERED_PARTIAL, NONE)`,
				`responseBody: unknown value "stream", the nearest is STREAMED (known: FULL_DUPLEX_STREAMED, STREAMED, BUFFERED, BUFFERED_PARTIAL, NONE)`,
				`responseTrailers: unknown value "SENT", the nearest is SEND (known: SEND, SKIP)`,
			},
		},
		"tracing": {
			change: func(p *envoy.Params) {
				p.Tracing = &envoy.Tracing{Collector: "collector", Service: "a\nb", Percent: 101}
				p.Pools = []envoy.Pool{{Name: envoy.CollectorCluster, Picker: picker, Prefix: "/x"}}
			},
			want: []string{
				`pools[0].name: "trace-collector" is taken`,
				`tracing.collector: must be host:port, got "collector"`,
				`tracing.service: must be printable, got "a\nb"`,
				"tracing.percent: must be from 0 to 100, got 101",
			},
		},
		"full duplex needs everything sent": {
			change: func(p *envoy.Params) {
				p.RequestTrailers, p.ResponseTrailers, p.ResponseHeaders, p.AllowModeOverride = envoy.Skip, envoy.Skip, envoy.Skip, true
			},
			want: []string{
				"requestTrailers: must be SEND with requestBody FULL_DUPLEX_STREAMED, got SKIP",
				"responseTrailers: must be SEND with responseBody FULL_DUPLEX_STREAMED, got SKIP",
				"responseHeaders: must be SEND with responseBody FULL_DUPLEX_STREAMED, got SKIP",
				"allowModeOverride: Envoy ignores it with FULL_DUPLEX_STREAMED bodies",
			},
		},
		"observability": {
			change: func(p *envoy.Params) { p.Observability, p.SendBodyEarly, p.ResponseBody = true, true, envoy.Buffered },
			want: []string{
				"requestBody: must be STREAMED or NONE in observability mode, got FULL_DUPLEX_STREAMED",
				"responseBody: must be STREAMED or NONE in observability mode, got BUFFERED",
				"sendBodyEarly: needs requestBody STREAMED, got FULL_DUPLEX_STREAMED",
			},
		},
		"durations": {
			change: func(p *envoy.Params) {
				p.MessageTimeout, p.MaxMessageTimeout, p.Picker.HealthInterval = -time.Second, -1, -1
			},
			want: []string{
				"messageTimeout: must be >= 0, got -1s", "maxMessageTimeout: must be >= 0, got -1ns", "picker.healthInterval: must be >= 0, got -1ns",
			},
		},
		"extension shorter than the timeout": {
			change: func(p *envoy.Params) { p.MaxMessageTimeout = time.Second },
			want:   []string{"maxMessageTimeout: must be at least messageTimeout 5s, got 1s"},
		},
		"tls": {
			change: func(p *envoy.Params) { p.Picker.TLS = &envoy.TLS{CAFile: "a\xff", CertFile: "c\n", ServerName: "a/b"} },
			want: []string{
				`picker.tls.caFile: must be UTF-8 without control characters, got "a\xff"`,
				`picker.tls.certFile: must be UTF-8 without control characters, got "c\n"`,
				"picker.tls: certFile and keyFile go together",
				`picker.tls.serverName: must be a DNS name, got "a/b"`,
			},
		},
		"pools": {
			change: func(p *envoy.Params) {
				p.PoolType = envoy.OverrideHost
				p.Pools = []envoy.Pool{
					{Name: "inference-pool", Picker: picker, Endpoints: endpoints, Weight: 1},
					{Name: "Two", Picker: picker, Prefix: "/", Endpoints: endpoints},
					{Name: "three", Picker: picker, Prefix: "/x", Weight: 1},
					{Name: "three", Picker: picker, Endpoints: endpoints},
				}
			},
			want: []string{
				`pools[0].name: "inference-pool" is taken`,
				`pools[1].name: must be lower-case letters, digits, dots, hyphens and underscores, got "Two"`,
				`pools[1].prefix: must be a path below /, got "/"`,
				"pools[2].endpoints: must list the endpoints with poolType OVERRIDE_HOST",
				"pools[2]: needs a prefix or a weight, and not both",
				`pools[3].name: "three" is taken`,
				"pools[3]: needs a prefix or a weight, and not both",
				"weight: must be > 0 where another pool has a weight",
			},
		},
		"bypass": {
			change: func(p *envoy.Params) { p.Endpoints, p.Bypass = nil, &envoy.Bypass{} },
			want:   []string{"bypass: needs the endpoints", "bypass: needs a prefix or a header"},
		},
		"bypass of everything": {
			change: func(p *envoy.Params) { p.Bypass = &envoy.Bypass{Prefix: "/"} },
			want:   []string{"bypass.prefix: / alone would take every request"},
		},
		"headers": {
			change: func(p *envoy.Params) {
				p.Bypass, p.SubsetHeader, p.Subset = &envoy.Bypass{Header: "X-Upper"}, envoy.DestinationKey, []string{"a\nb"}
			},
			want: []string{
				`bypass.header: must be a lower-case header name, got "X-Upper"`,
				"subsetHeader: x-gateway-destination-endpoint is removed from every request",
				"subsetHeader: subset and subsetHeader exclude each other",
				`subset[0]: must be printable, got "a\nb"`,
			},
		},
		"traffic": {
			change: func(p *envoy.Params) { p.HideDestination, p.RetryOn = true, "5xx; reset" },
			want: []string{
				"hideDestination: needs source metadata: without the header Envoy would lose the pick",
				`retryOn: must be Envoy's retry conditions separated by commas, got "5xx; reset"`,
				"retryOn: needs retries > 0",
			},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			p := valid
			tc.change(&p)
			var got []string
			if err := p.Validate(); err != nil {
				got = strings.Split(err.Error(), "\n")
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			_, err := envoy.Render(p)
			if (err != nil) != (tc.want != nil) {
				t.Errorf("Render: error %v", err)
			}
		})
	}
}

func TestParseModes(t *testing.T) {
	for in, want := range map[string]envoy.BodyMode{
		"FULL_DUPLEX_STREAMED": envoy.FullDuplexStreamed, "full-duplex-streamed": envoy.FullDuplexStreamed,
		"Buffered": envoy.Buffered, "none": envoy.BodyNone, "buffered-partial": envoy.BufferedPartial,
	} {
		if got, err := envoy.ParseBodyMode(in); err != nil || got != want {
			t.Errorf("ParseBodyMode(%q) = %q, %v; want %q", in, got, err, want)
		}
	}
	_, err := envoy.ParseBodyMode("streaming")
	if err == nil || !strings.Contains(err.Error(), `unknown body mode "streaming", the nearest is STREAMED`) {
		t.Errorf("error %v", err)
	}
	if got, err := envoy.ParsePoolType("override-host"); err != nil || got != envoy.OverrideHost {
		t.Errorf("ParsePoolType: %q, %v", got, err)
	}
	if got, err := envoy.ParseHeaderMode("skip"); err != nil || got != envoy.Skip {
		t.Errorf("ParseHeaderMode: %q, %v", got, err)
	}
	if got, err := envoy.ParsePickSource("Metadata"); err != nil || got != envoy.FromMetadata {
		t.Errorf("ParsePickSource: %q, %v", got, err)
	}
	if _, err := envoy.ParsePickSource("heads"); err == nil || !strings.Contains(err.Error(), "the nearest is header") {
		t.Errorf("error %v", err)
	}
}
