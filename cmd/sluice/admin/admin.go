// Package admin reaches the admin port of a running Sluice for the commands that ask it.
package admin

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
)

// Flags say where the admin port is and how to speak to it. The zero value of TLS is plaintext; any other of its flags
// implies it.
type Flags struct {
	Address    string `name:"admin" help:"The admin port of the Sluice to ask." default:"127.0.0.1:9090" placeholder:"HOST:PORT"`
	TLS        bool   `name:"tls" help:"Speak TLS, as a server with server.adminTLS does; its certificate must be one that this machine trusts."`
	CA         string `name:"ca" help:"Trust the certificates in FILE (PEM) instead. Implies --tls." type:"path" placeholder:"FILE"`
	Cert       string `name:"cert" help:"Show the certificate in FILE (PEM), with --key. Implies --tls." type:"path" placeholder:"FILE"`
	Key        string `name:"key" help:"The private key of --cert." type:"path" placeholder:"FILE"`
	ServerName string `name:"server-name" help:"The name that the server's certificate must carry, where it is not the host of --admin. Implies --tls." placeholder:"NAME"`
	SkipVerify bool   `name:"insecure-skip-verify" help:"Accept any certificate, as the self-signed one of server.adminTLS.mode selfSigned. Implies --tls."`
}

// Check judges the flags by themselves.
func (f *Flags) Check() error {
	if _, port, err := net.SplitHostPort(f.Address); err != nil || port == "" {
		return fmt.Errorf("--admin: must be \"host:port\", got %q", f.Address)
	}
	switch {
	case f.Cert != "" && f.Key == "":
		return errors.New("--cert: needs --key")
	case f.Key != "" && f.Cert == "":
		return errors.New("--key: needs --cert")
	case f.CA != "" && f.SkipVerify:
		return errors.New("--ca: does nothing with --insecure-skip-verify")
	}
	return nil
}

func (f *Flags) secure() bool {
	return f.TLS || f.CA != "" || f.Cert != "" || f.ServerName != "" || f.SkipVerify
}

// maxAnswerBytes bounds what is taken from the server: a hundred decisions about many endpoints are large.
const maxAnswerBytes = 512 << 20

// maxBackoff is how long a lost server is left alone between two tries.
const maxBackoff = 2 * time.Second

// Dial returns a client. Nothing is connected until it is used. close ends its connection.
func (f *Flags) Dial() (client schedulerv1.SchedulerServiceClient, closeIt func(), err error) {
	creds, err := f.credentials()
	if err != nil {
		return nil, nil, err
	}
	patience := backoff.DefaultConfig
	patience.MaxDelay = maxBackoff
	conn, err := grpc.NewClient("passthrough:///"+f.Address,
		grpc.WithTransportCredentials(creds), grpc.WithNoProxy(), grpc.WithDisableServiceConfig(),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxAnswerBytes)),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 20 * time.Second, Timeout: 5 * time.Second}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: patience, MinConnectTimeout: 5 * time.Second}))
	if err != nil {
		return nil, nil, fmt.Errorf("--admin: %w", err)
	}
	return schedulerv1.NewSchedulerServiceClient(conn), func() { _ = conn.Close() }, nil
}

func (f *Flags) credentials() (credentials.TransportCredentials, error) {
	if !f.secure() {
		return insecure.NewCredentials(), nil
	}
	cfg := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName, InsecureSkipVerify: f.SkipVerify} //nolint:gosec // it is asked for by name
	if f.CA != "" {
		pem, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, fmt.Errorf("--ca: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca: no certificate in %s", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("--cert: %w", err)
		}
		cfg.Certificates = []tls.Certificate{pair}
	}
	return credentials.NewTLS(cfg), nil
}

// Error says what a failed call means and what to try. It wraps the cause; nil stays nil.
func (f *Flags) Error(err error) error {
	s, ok := status.FromError(err)
	if err == nil || !ok {
		return err
	}
	switch s.Code() {
	case codes.Unavailable:
		return &fault{fmt.Sprintf("no answer from %s: %s", f.Address, f.unreachable(s.Message())), err}
	case codes.DeadlineExceeded:
		return &fault{fmt.Sprintf("no answer from %s in time: is it the admin port, and is the way there open?", f.Address), err}
	case codes.Unimplemented:
		return &fault{fmt.Sprintf("%s does not have what this asks for: it is no admin port (server.adminListen, not server.listen), "+
			"or its Sluice is older than this one (%s)", f.Address, shortened(s.Message())), err}
	case codes.Canceled:
		return context.Canceled
	default:
		return &fault{display.Plain(s.Message()), err}
	}
}

// unreachable says what to try where no connection could be made.
func (f *Flags) unreachable(cause string) string {
	hint := "is it the right address (--admin), and does Sluice run there?"
	switch {
	case strings.Contains(cause, "first record does not look like a TLS handshake"):
		hint = "it speaks plaintext there: leave --tls and its like out"
	case strings.Contains(cause, "certificate required"), strings.Contains(cause, "bad certificate"), strings.Contains(cause, "unknown certificate authority"):
		hint = "it wants a certificate that server.adminTLS.clientCAFile has signed: --cert and --key"
	case strings.Contains(cause, "x509:"):
		hint = "--ca FILE names whom to trust, --server-name NAME whom to expect, --insecure-skip-verify trusts anybody"
	case strings.Contains(cause, "connection refused"):
		hint = "nothing listens there: is it the right address (--admin), and does Sluice run? The admin port is on loopback unless server.adminListen says otherwise"
	case hungUp(cause) && !f.secure():
		hint = "it may speak TLS there: --tls, --ca FILE or --insecure-skip-verify"
	case hungUp(cause) && f.Cert == "":
		hint = "it may want a certificate that server.adminTLS.clientCAFile has signed: --cert and --key"
	case hungUp(cause):
		hint = "it may not accept the certificate: server.adminTLS.clientCAFile must have signed it"
	}
	return hint + " (" + shortened(cause) + ")"
}

// hungUp reports whether the other side ended the connection. In TLS 1.3 a client that is refused may see no more than that.
func hungUp(cause string) bool {
	for _, sign := range [...]string{"server preface", "EOF", "reset by peer", "broken pipe", "frame too large"} {
		if strings.Contains(cause, sign) {
			return true
		}
	}
	return false
}

// shortened leaves out what gRPC puts before the cause, and is one line.
func shortened(cause string) string {
	cause = display.Plain(strings.Join(strings.Fields(cause), " "))
	if _, after, ok := strings.Cut(cause, "desc = "); ok {
		cause = strings.Trim(after, `"`)
	}
	cause = strings.TrimPrefix(cause, "transport: ")
	return strings.TrimPrefix(cause, "Error while dialing: ")
}

// fault is a failed call in words.
type fault struct {
	words string
	cause error
}

// Error implements error.
func (f *fault) Error() string { return f.words }

// Unwrap gives the call's status.
func (f *fault) Unwrap() error { return f.cause }
