package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/server/config"
)

// authority signs certificates.
type authority struct {
	folder string
	cert   *x509.Certificate
	key    *ecdsa.PrivateKey
}

// newAuthority returns one whose certificate is in the file name.pem of a folder.
func newAuthority(t *testing.T, folder, name string) *authority {
	t.Helper()
	a := &authority{folder: folder}
	a.cert, a.key = a.issue(t, name, &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	})
	return a
}

// issue writes a certificate and its key as name.pem and name.key.
func (a *authority) issue(t *testing.T, name string, template *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template.SerialNumber = big.NewInt(time.Now().UnixNano())
	template.NotBefore, template.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = template, key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, &key.PublicKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{
		name + ".pem": {Type: "CERTIFICATE", Bytes: der}, name + ".key": {Type: "PRIVATE KEY", Bytes: private},
	} {
		if err := os.WriteFile(filepath.Join(a.folder, file), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return cert, key
}

// An admin port that asks for certificates gets one, and whoever has none, or trusts somebody else, is told what to give.
func TestExplainWithCertificates(t *testing.T) {
	folder := t.TempDir()
	file := func(name string) string { return filepath.Join(folder, name) }
	ca := newAuthority(t, folder, "ca")
	newAuthority(t, folder, "other")
	ca.issue(t, "server", &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, DNSNames: []string{"sluice.example"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	ca.issue(t, "me", &x509.Certificate{Subject: pkix.Name{CommonName: "me"}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	r := launch(t, func(c *config.Config) {
		c.Server.AdminTLS = config.AdminTLS{Mode: config.TLSFiles, CertFile: file("server.pem"), KeyFile: file("server.key"), ClientCAFile: file("ca.pem")}
	})
	r.request(t, "one")
	shown := " --cert " + file("me.pem") + " --key " + file("me.key")
	for args, want := range map[string]string{
		"--server-name sluice.example --ca " + file("ca.pem") + shown:                  "",
		"--insecure-skip-verify" + shown:                                               "",
		"--server-name sluice.example --ca " + file("ca.pem"):                          "--cert and --key",
		"--server-name sluice.example --ca " + file("other.pem") + shown:               "--ca FILE names whom to trust",
		"--ca " + file("ca.pem") + shown:                                               "--server-name NAME whom to expect",
		"--ca " + file("ca.key") + shown:                                               "--ca: no certificate in " + file("ca.key"),
		"--insecure-skip-verify --cert " + file("me.pem") + " --key " + file("ca.key"): "--cert: tls: private key does not match",
	} {
		code, stdout, stderr := captured(t, append([]string{"explain", "--admin", r.admin()}, strings.Fields(args)...)...)
		if (want == "") != (code == 0) || !strings.Contains(stderr, want) || want == "" && !strings.Contains(stdout, "engine-") {
			t.Errorf("%q: exit %d, said %q; want %q", args, code, stderr, want)
		}
	}
}
