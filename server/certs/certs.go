// Package certs serves TLS certificates that change while connections live: from files, reloaded when they change, or
// self-signed.
package certs

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sluice-epp/sluice/server/filewatch"
)

// Files are the paths of a server's certificate, its key and, where clients must show one, their CA; all PEM.
type Files struct {
	Cert, Key, ClientCA string
}

// Keeper hands out the newest good certificate. A pair that does not fit together, or cannot be read, leaves the one
// before in force.
type Keeper struct {
	files   Files
	logger  *slog.Logger
	current atomic.Pointer[tls.Config]
	notAfter,
	reloads, failures atomic.Int64
}

// minVersion is the oldest TLS that any supported Envoy needs.
const minVersion = tls.VersionTLS12

// Load reads the files once. Run keeps them fresh.
func Load(files Files, logger *slog.Logger) (*Keeper, error) {
	k := &Keeper{files: files, logger: logger}
	if err := k.reload(); err != nil {
		return nil, err
	}
	return k, nil
}

// SelfSigned makes a certificate for this process alone: proxies that do not verify accept it.
func SelfSigned() (*Keeper, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 127))
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate: %w", err)
	}
	now := time.Now()
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: "sluice"},
		NotBefore:    now.Add(-time.Hour),
		NotAfter:     now.AddDate(10, 0, 0),
		// Envoy 1.38 and later refuse a certificate without these.
		KeyUsage:    x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{"sluice", "localhost"},
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		return nil, fmt.Errorf("self-signed certificate: %w", err)
	}
	k := &Keeper{}
	k.publish(tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil, template.NotAfter)
	return k, nil
}

// Config is a server configuration that shows every new connection the newest good certificate. protocols are those that it
// speaks, the preferred one first, as ALPN names them (RFC 7301).
func (k *Keeper) Config(protocols ...string) *tls.Config {
	return &tls.Config{
		MinVersion: minVersion,
		NextProtos: protocols,
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
			c := k.current.Load().Clone()
			c.NextProtos = protocols
			return c, nil
		},
	}
}

// Expiry is the end of the current certificate's validity.
func (k *Keeper) Expiry() time.Time { return time.Unix(k.notAfter.Load(), 0) }

// Reloads is how often a changed pair was taken, and how often one was refused.
func (k *Keeper) Reloads() (taken, refused int64) { return k.reloads.Load(), k.failures.Load() }

func (k *Keeper) publish(cert tls.Certificate, clientCAs *x509.CertPool, notAfter time.Time) {
	c := &tls.Config{MinVersion: minVersion, Certificates: []tls.Certificate{cert}}
	if clientCAs != nil {
		c.ClientCAs, c.ClientAuth = clientCAs, tls.RequireAndVerifyClientCert
	}
	k.current.Store(c)
	k.notAfter.Store(notAfter.Unix())
}

func (k *Keeper) reload() error {
	cert, err := tls.LoadX509KeyPair(k.files.Cert, k.files.Key)
	if err != nil {
		return fmt.Errorf("certificate %s with key %s: %w", k.files.Cert, k.files.Key, err)
	}
	var clientCAs *x509.CertPool
	if k.files.ClientCA != "" {
		pem, err := os.ReadFile(k.files.ClientCA)
		if err != nil {
			return fmt.Errorf("client CA: %w", err)
		}
		clientCAs = x509.NewCertPool()
		if !clientCAs.AppendCertsFromPEM(pem) {
			return fmt.Errorf("client CA %s: holds no PEM certificate", k.files.ClientCA)
		}
	}
	k.publish(cert, clientCAs, cert.Leaf.NotAfter)
	return nil
}

// Run reloads the files when they change, until ctx is over. A rotation writes certificate and key one after the other;
// the pair in between does not fit and is refused, the next one is taken. recheck bounds how long a change can go
// unnoticed where no event tells of it.
func (k *Keeper) Run(ctx context.Context, recheck time.Duration) {
	var group sync.WaitGroup
	var mu sync.Mutex // one look at a time
	last := k.fingerprint()
	for _, path := range k.files.paths() {
		watcher := filewatch.New(path, filewatch.Options{Logger: k.logger, Recheck: recheck})
		group.Go(func() {
			watcher.Run(ctx, func([]byte, error) {
				mu.Lock()
				defer mu.Unlock()
				if now := k.fingerprint(); now != last {
					last = now
					k.tryReload()
				}
			})
		})
	}
	group.Wait()
}

func (k *Keeper) tryReload() {
	if err := k.reload(); err != nil {
		k.failures.Add(1)
		k.logger.Error("changed certificate refused: the one before stays in force", "error", err)
		return
	}
	k.reloads.Add(1)
	k.logger.Info("certificate reloaded", "expires", k.Expiry())
}

// paths are the files there are.
func (f Files) paths() []string {
	all := []string{f.Cert, f.Key, f.ClientCA}
	return slices.DeleteFunc(all, func(path string) bool { return path == "" })
}

// fingerprint is the content of all files; unreadable ones count as empty.
func (k *Keeper) fingerprint() string {
	var all strings.Builder
	for _, path := range k.files.paths() {
		b, err := os.ReadFile(path)
		if err != nil {
			b = nil
		}
		fmt.Fprintf(&all, "%d:%s", len(b), b)
	}
	return all.String()
}
