package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pair makes a certificate of a name, signed by itself and valid for an hour.
func pair(t *testing.T, name string) (certPEM, keyPEM []byte) {
	t.Helper()
	return pairUntil(t, name, time.Now().Add(time.Hour))
}

// pairUntil makes a certificate of a name that is valid until then.
func pairUntil(t *testing.T, name string, until time.Time) (certPEM, keyPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until,
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		DNSNames:    []string{name},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: keyDER})
}

// server accepts TLS connections on loopback and echoes, with the keeper's certificates.
func server(t *testing.T, k *Keeper) string {
	t.Helper()
	l, err := tls.Listen("tcp", "127.0.0.1:0", k.Config("h2"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = io.Copy(c, c); _ = c.Close() }()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return l.Addr().String()
}

func dial(t *testing.T, address string, cfg *tls.Config) (*tls.Conn, error) {
	t.Helper()
	cfg.InsecureSkipVerify, cfg.NextProtos = true, []string{"h2"}
	d := &net.Dialer{Timeout: 5 * time.Second}
	c, err := tls.DialWithDialer(d, "tcp", address, cfg)
	if err == nil {
		t.Cleanup(func() { _ = c.Close() })
	}
	return c, err
}

// shows dials anew and returns the name in the certificate.
func shows(t *testing.T, address string) string {
	t.Helper()
	c, err := dial(t, address, &tls.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return c.ConnectionState().PeerCertificates[0].Subject.CommonName
}

// eventually retries until the server shows want; the watch's settle time bounds how long that takes.
func eventually(t *testing.T, address, want string) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for shows(t, address) != want {
		if time.Now().After(deadline) {
			t.Fatalf("still shows %q, want %q", shows(t, address), want)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func write(t *testing.T, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// secret lays a pair out as Kubernetes mounts a secret: files are links into ..data, itself a link to a directory.
func secret(t *testing.T, dir, version, name string, until time.Time) {
	t.Helper()
	data := filepath.Join(dir, version)
	if err := os.Mkdir(data, 0o700); err != nil {
		t.Fatal(err)
	}
	c, k := pairUntil(t, name, until)
	write(t, filepath.Join(data, "tls.crt"), c)
	write(t, filepath.Join(data, "tls.key"), k)
	link := filepath.Join(dir, "..data_tmp")
	if err := os.Symlink(version, link); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(link, filepath.Join(dir, "..data")); err != nil {
		t.Fatal(err)
	}
}

func TestC42_CertificateReload(t *testing.T) {
	dir := t.TempDir()
	expiry := func(certificate int) time.Time { // another for each, and not always a later one
		return time.Now().Truncate(24*time.Hour).AddDate(0, 0, []int{0, 30, 90, 60}[certificate])
	}
	secret(t, dir, "..v1", "one", expiry(1))
	files := Files{Cert: filepath.Join(dir, "tls.crt"), Key: filepath.Join(dir, "tls.key")}
	for _, f := range []string{"tls.crt", "tls.key"} {
		if err := os.Symlink(filepath.Join("..data", f), filepath.Join(dir, f)); err != nil {
			t.Fatal(err)
		}
	}
	k, err := Load(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); k.Run(ctx, 200*time.Millisecond) }()
	address := server(t, k)
	open, err := dial(t, address, &tls.Config{})
	if err != nil {
		t.Fatal(err)
	}

	expires := func(certificate int) { // it follows the certificate at once, but not in the same instant
		t.Helper()
		want := expiry(certificate)
		for deadline := time.Now().Add(time.Second); !k.Expiry().Equal(want); time.Sleep(time.Millisecond) {
			if time.Now().After(deadline) {
				t.Errorf("expiry %v, want %v, that of certificate %d", k.Expiry(), want, certificate)
				return
			}
		}
	}
	expires(1)

	secret(t, dir, "..v2", "two", expiry(2)) // a swap of the link
	eventually(t, address, "two")
	expires(2)

	// Certificate and key one after the other: in between the pair does not fit, and the old one stays.
	cert3, key3 := pairUntil(t, "three", expiry(3))
	write(t, filepath.Join(dir, "..v2", "tls.crt"), cert3)
	waitFor(t, func() bool { _, refused := k.Reloads(); return refused >= 1 })
	if got := shows(t, address); got != "two" {
		t.Errorf("between certificate and key: shows %q, want the last good one, two", got)
	}
	expires(2)
	write(t, filepath.Join(dir, "..v2", "tls.key"), key3)
	eventually(t, address, "three")
	expires(3)

	write(t, filepath.Join(dir, "..v2", "tls.key"), key3[:len(key3)/2])
	waitFor(t, func() bool { _, refused := k.Reloads(); return refused >= 2 })
	if err := os.RemoveAll(filepath.Join(dir, "..v2")); err != nil {
		t.Fatal(err)
	}
	waitFor(t, func() bool { _, refused := k.Reloads(); return refused >= 3 })
	if got := shows(t, address); got != "three" {
		t.Errorf("with truncated and deleted files: shows %q, want three", got)
	}
	expires(3)

	if _, err := open.Write([]byte("still here")); err != nil {
		t.Errorf("the old connection: %v", err)
	}
	b := make([]byte, 10)
	if _, err := io.ReadFull(open, b); err != nil || string(b) != "still here" {
		t.Errorf("the old connection echoed %q, %v", b, err)
	}
	cancel()
	<-ran
}

func waitFor(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("waited in vain")
		}
	}
}

func TestC42_ClientCARotates(t *testing.T) {
	dir := t.TempDir()
	cert, key := pair(t, "server")
	oldCert, oldKey := pair(t, "old client")
	newCert, newKey := pair(t, "new client")
	files := Files{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), ClientCA: filepath.Join(dir, "ca")}
	write(t, files.Cert, cert)
	write(t, files.Key, key)
	write(t, files.ClientCA, oldCert)
	k, err := Load(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ran := make(chan struct{})
	go func() { defer close(ran); k.Run(ctx, time.Second) }()
	defer func() { cancel(); <-ran }()
	address := server(t, k)
	if err := talk(t, address, showing(t, oldCert, oldKey)); err != nil {
		t.Errorf("before: the client is refused: %v", err)
	}
	// A file that holds no certificate, and one that is cut, leave the old clients welcome, and let nobody else in.
	for i, bad := range [][]byte{[]byte("garbage"), newCert[:len(newCert)/2]} {
		write(t, files.ClientCA, bad)
		waitFor(t, func() bool { _, refused := k.Reloads(); return refused == int64(i+1) })
		if err := talk(t, address, showing(t, oldCert, oldKey)); err != nil {
			t.Errorf("bad CA %d: the client of the old CA is refused: %v", i, err)
		}
		for name, cfg := range map[string]*tls.Config{"the new CA": showing(t, newCert, newKey), "nobody": {}} {
			if err := talk(t, address, cfg); err == nil {
				t.Errorf("bad CA %d: the client of %s is welcome", i, name)
			}
		}
	}
	write(t, files.ClientCA, newCert)
	waitFor(t, func() bool { taken, _ := k.Reloads(); return taken == 1 })
	if err := talk(t, address, showing(t, newCert, newKey)); err != nil {
		t.Errorf("after: the client of the new CA is refused: %v", err)
	}
	if err := talk(t, address, showing(t, oldCert, oldKey)); err == nil {
		t.Error("after: the client of the old CA is still welcome")
	}
}

// showing is a client that shows a certificate.
func showing(t *testing.T, cert, key []byte) *tls.Config {
	t.Helper()
	c, err := tls.X509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{GetClientCertificate: func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &c, nil }}
}

func TestClientCA(t *testing.T) {
	dir := t.TempDir()
	cert, key := pair(t, "server")
	clientCert, clientKey := pair(t, "client")
	strangerCert, strangerKey := pair(t, "stranger")
	files := Files{Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), ClientCA: filepath.Join(dir, "ca")}
	write(t, files.Cert, cert)
	write(t, files.Key, key)
	write(t, files.ClientCA, clientCert)
	k, err := Load(files, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	address := server(t, k)
	for _, test := range []struct {
		name      string
		cert, key []byte
		welcome   bool
	}{
		{"the client of the CA", clientCert, clientKey, true},
		{"a stranger", strangerCert, strangerKey, false},
		{"nobody", nil, nil, false},
	} {
		cfg := &tls.Config{}
		if test.cert != nil {
			cfg = showing(t, test.cert, test.key)
		}
		err := talk(t, address, cfg)
		if welcome := err == nil; welcome != test.welcome {
			t.Errorf("%s: welcome = %v, want %v (%v)", test.name, welcome, test.welcome, err)
		}
	}
}

// talk sends a byte and waits for its echo: with TLS 1.3 a refused client certificate shows only at the first read.
func talk(t *testing.T, address string, cfg *tls.Config) error {
	t.Helper()
	c, err := dial(t, address, cfg)
	if err != nil {
		return err
	}
	if _, err := c.Write([]byte{1}); err != nil {
		return err
	}
	_, err = io.ReadFull(c, make([]byte, 1))
	return err
}

func TestSelfSigned(t *testing.T) {
	k, err := SelfSigned()
	if err != nil {
		t.Fatal(err)
	}
	if got := shows(t, server(t, k)); got != "sluice" {
		t.Errorf("shows %q", got)
	}
}

func TestLoadErrors(t *testing.T) {
	dir := t.TempDir()
	cert, key := pair(t, "a")
	_, otherKey := pair(t, "b")
	write(t, filepath.Join(dir, "c"), cert)
	write(t, filepath.Join(dir, "k"), key)
	write(t, filepath.Join(dir, "other"), otherKey)
	write(t, filepath.Join(dir, "text"), []byte("no certificate"))
	for name, files := range map[string]Files{
		"missing file":           {Cert: filepath.Join(dir, "none"), Key: filepath.Join(dir, "k")},
		"wrong key":              {Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "other")},
		"missing CA":             {Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), ClientCA: filepath.Join(dir, "none")},
		"CA without certificate": {Cert: filepath.Join(dir, "c"), Key: filepath.Join(dir, "k"), ClientCA: filepath.Join(dir, "text")},
	} {
		if _, err := Load(files, slog.New(slog.DiscardHandler)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}
