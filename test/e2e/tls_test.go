package e2e

import (
	"crypto/tls"
	"net/http"
	"os"
	"path/filepath"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

const serverName = "sluice.test"

// Each way of securing the connection from Envoy, and the ways in which it must not come about.
func TestTLS(t *testing.T) {
	cert, key := envoytest.WriteCertificate(t, serverName, "127.0.0.1")
	client, clientKey := envoytest.WriteCertificate(t, "envoy.test")
	stranger, strangerKey := envoytest.WriteCertificate(t, "stranger.test")
	selfSigned := config.TLS{Mode: config.TLSSelfSigned}
	files := config.TLS{Mode: config.TLSAuto, CertFile: cert, KeyFile: key}
	mutual := config.TLS{Mode: config.TLSAuto, CertFile: cert, KeyFile: key, ClientCAFile: client}
	const works, fails = http.StatusOK, http.StatusServiceUnavailable
	for name, tt := range map[string]struct {
		sluice config.TLS
		envoy  *envoy.TLS
		want   int
	}{
		"self-signed, any certificate":     {selfSigned, &envoy.TLS{}, works},
		"self-signed, another CA":          {selfSigned, &envoy.TLS{CAFile: cert, ServerName: serverName}, fails},
		"self-signed, plain Envoy":         {selfSigned, nil, fails},
		"plain, TLS Envoy":                 {config.TLS{Mode: config.TLSPlaintext}, &envoy.TLS{}, fails},
		"files":                            {files, &envoy.TLS{CAFile: cert, ServerName: serverName}, works},
		"files, another name":              {files, &envoy.TLS{CAFile: cert, ServerName: "other.test"}, fails},
		"files, another CA":                {files, &envoy.TLS{CAFile: stranger, ServerName: serverName}, fails},
		"client certificate":               {mutual, &envoy.TLS{CAFile: cert, ServerName: serverName, CertFile: client, KeyFile: clientKey}, works},
		"client certificate, none":         {mutual, &envoy.TLS{CAFile: cert, ServerName: serverName}, fails},
		"client certificate, a stranger's": {mutual, &envoy.TLS{CAFile: cert, ServerName: serverName, CertFile: stranger, KeyFile: strangerKey}, fails},
	} {
		t.Run(name, func(t *testing.T) {
			l := lab.New(t, lab.Plan{Engines: 1, Override: func(c *config.Config) { c.Server.TLS = tt.sluice }})
			e := l.Envoy(t, envoy.Params{Picker: envoy.Picker{TLS: tt.envoy}})
			body := lab.Chat(t, "secret", 30_000, 2, true)[:100] // cut, so that Sluice has to answer it itself
			a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), body)
			if tt.want == works {
				refused(t, a, http.StatusBadRequest, "not_json")
				a = lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, "secret", 10_000, 2, true))
			}
			if a.Status != tt.want {
				t.Errorf("status %d, want %d: %.200s", a.Status, tt.want, a.Body)
			}
		})
	}
}

// A certificate is exchanged while requests are on their way: none fails, new connections get the new one, and a pair
// that does not fit together changes nothing.
func TestCertificateRotationUnderTraffic(t *testing.T) {
	cert, key := envoytest.WriteCertificate(t, serverName, "127.0.0.1")
	next, nextKey := envoytest.WriteCertificate(t, serverName, "127.0.0.1")
	folder := t.TempDir()
	in := config.TLS{Mode: config.TLSAuto, CertFile: filepath.Join(folder, "tls.crt"), KeyFile: filepath.Join(folder, "tls.key")}
	put := func(certificate, key string) {
		t.Helper()
		lab.WriteFile(t, in.CertFile, fileText(t, certificate))
		lab.WriteFile(t, in.KeyFile, fileText(t, key))
	}
	put(cert, key)
	l := lab.New(t, lab.Plan{Override: func(c *config.Config) { c.Server.TLS = in }})
	e := l.Envoy(t, envoy.Params{Picker: envoy.Picker{TLS: &envoy.TLS{}, HealthInterval: healthInterval}})
	traffic := lab.StartTraffic(t, l.Client, e.URL("/v1/chat/completions"), 4)
	busy := func() {
		t.Helper()
		before := traffic.Answered("")
		lab.Wait(t, "some traffic", func() bool { return traffic.Answered("") > before+20 })
	}
	busy()
	first := serial(t, l.Sluice.Addr())
	put(next, nextKey)
	lab.Wait(t, "the new certificate", func() bool { return serial(t, l.Sluice.Addr()) != first })
	busy()
	second := serial(t, l.Sluice.Addr())
	put(cert, nextKey)
	lab.Wait(t, "the refusal", func() bool { return l.Sluice.Metric(t, `sluice_tls_reload_failures_total{listener="grpc"}`) > 0 })
	if now := serial(t, l.Sluice.Addr()); now != second {
		t.Errorf("serial %s after a pair that does not fit, want %s", now, second)
	}
	busy()
	traffic.Stop(t)
	l.Sluice.Settle(t)
}

func fileText(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// serial is the serial number of the certificate that a new connection gets.
func serial(t *testing.T, address string) string {
	t.Helper()
	d := tls.Dialer{Config: &tls.Config{InsecureSkipVerify: true, NextProtos: []string{"h2"}}}
	c, err := d.DialContext(lab.Context(t), "tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	secured, ok := c.(*tls.Conn)
	if !ok {
		t.Fatal("not TLS")
	}
	return secured.ConnectionState().PeerCertificates[0].SerialNumber.String()
}
