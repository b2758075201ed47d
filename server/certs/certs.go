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
	"errors"
	"fmt"
	"log/slog"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	"github.com/fsnotify/fsnotify"
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

// Config is a server configuration that shows every new connection the newest good certificate.
func (k *Keeper) Config() *tls.Config {
	return &tls.Config{
		MinVersion:         minVersion,
		NextProtos:         []string{"h2"},
		GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) { return k.current.Load(), nil },
	}
}

// Expiry is the end of the current certificate's validity.
func (k *Keeper) Expiry() time.Time { return time.Unix(k.notAfter.Load(), 0) }

// Reloads is how often a changed pair was taken, and how often one was refused.
func (k *Keeper) Reloads() (taken, refused int64) { return k.reloads.Load(), k.failures.Load() }

func (k *Keeper) publish(cert tls.Certificate, clientCAs *x509.CertPool, notAfter time.Time) {
	c := &tls.Config{MinVersion: minVersion, NextProtos: []string{"h2"}, Certificates: []tls.Certificate{cert}}
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

// settle is how long the files must be quiet: a rotation writes certificate and key one after the other.
const settle = 100 * time.Millisecond

// Run reloads the files when they change, until ctx is over. Directories are watched, not files: a Kubernetes secret
// changes by swapping a symbolic link. recheck bounds how long a change can go unnoticed where the watch misses it.
func (k *Keeper) Run(ctx context.Context, recheck time.Duration) error {
	if k.files.Cert == "" {
		<-ctx.Done()
		return nil
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching certificates: %w", err)
	}
	defer func() {
		if err := watcher.Close(); err != nil {
			k.logger.Debug("closing the certificate watch", "error", err)
		}
	}()
	for _, f := range []string{k.files.Cert, k.files.Key, k.files.ClientCA} {
		if f == "" {
			continue
		}
		if err := watcher.Add(filepath.Dir(f)); err != nil {
			return fmt.Errorf("watching %s: %w", filepath.Dir(f), err)
		}
	}
	last := k.fingerprint()
	quiet := time.NewTimer(recheck)
	defer quiet.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-watcher.Events:
			if !ok {
				return errors.New("the certificate watch ended")
			}
			quiet.Reset(settle)
		case err := <-watcher.Errors:
			k.logger.Warn("watching certificates", "error", err)
		case <-quiet.C:
			quiet.Reset(recheck)
			if now := k.fingerprint(); now != last {
				last = now
				k.tryReload()
			}
		}
	}
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

// fingerprint is the content of all files; unreadable ones count as empty.
func (k *Keeper) fingerprint() string {
	var all string
	for _, f := range []string{k.files.Cert, k.files.Key, k.files.ClientCA} {
		b, err := os.ReadFile(f)
		if err != nil {
			b = nil
		}
		all += fmt.Sprintf("%d:", len(b)) + string(b)
	}
	return all
}
