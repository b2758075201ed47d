package server

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

// operator is a client of the admin port.
func (p *process) operator(t *testing.T, c credentials.TransportCredentials) schedulerv1.SchedulerServiceClient {
	t.Helper()
	conn, err := grpc.NewClient(p.app.AdminAddr().String(), grpc.WithTransportCredentials(c))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return schedulerv1.NewSchedulerServiceClient(conn)
}

// ask plays a proxy that asks for a pick and leaves.
func (p *process) ask(t *testing.T, requestID string) (pick string) {
	t.Helper()
	s := p.duplex(t, "x-request-id", requestID)
	sendTo(t, s, requestBody(`{"model":"m","messages":[{"role":"user","content":"hello"}]}`, true))
	m, err := s.Recv()
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range m.GetRequestHeaders().GetResponse().GetHeaderMutation().GetSetHeaders() {
		pick = string(h.GetHeader().GetRawValue())
	}
	if err := s.CloseSend(); err != nil {
		t.Fatal(err)
	}
	return pick
}

// metric is the value of a metric without labels.
func (p *process) metric(t *testing.T, name string) float64 {
	t.Helper()
	_, page := p.page(t, "/metrics")
	for line := range strings.Lines(page) {
		if rest, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// A request's decision can be explained by its id, over the port that serves the metrics.
func TestDecisionsAreExplainedOverTheAdminPort(t *testing.T) {
	p := launch(t, "", nil)
	pick := p.ask(t, "mine")
	if status, text := p.page(t, "/healthz"); status != 200 || text != "ok\n" {
		t.Errorf("HTTP/1.1: %d %s", status, text)
	}
	o := p.operator(t, insecure.NewCredentials())
	a, err := o.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: "mine"})
	if err != nil {
		t.Fatal(err)
	}
	d := a.GetExplanations()[0].GetDecision()
	if got := d.GetCandidates()[d.GetPicks()[0]].GetAddress(); got != pick || d.GetConfigHash() == "" || d.GetClientRequestId() != "mine" {
		t.Errorf("picked was %s: %v", pick, d)
	}
	if c, err := o.GetConfig(t.Context(), nil); err != nil || c.GetHash() != d.GetConfigHash() || !strings.Contains(c.GetYaml(), "adminListen") ||
		len(c.GetGraph()) == 0 || time.Since(c.GetSince().AsTime()) > time.Minute {
		t.Errorf("%v: %v", err, c)
	}
	waitFor(t, func() bool { // until the proxy's leaving was seen
		a, err := o.Explain(t.Context(), &schedulerv1.ExplainRequest{RequestId: "mine"})
		return err == nil && a.GetExplanations()[0].GetDecision().GetOutcome().GetReason() == "disconnect"
	})
	if n := p.metric(t, "sluice_decisions_kept"); n != 1 {
		t.Errorf("%v decisions are kept", n)
	}
	if n := p.metric(t, "sluice_decisions_kept_bytes"); n < 1000 {
		t.Errorf("they take %v bytes", n)
	}
}

// What an operator sets stays until the file says something else.
func TestLogLevelOverTheAdminPort(t *testing.T) {
	var level slog.LevelVar
	var path string
	p := launch(t, "telemetry: {logLevel: warn}\n", func(o *Options) { o.Level = &level; path = o.ConfigPath })
	o := p.operator(t, insecure.NewCredentials())
	for _, tc := range []struct {
		level, previous string
		code            codes.Code
		now             slog.Level
	}{
		{"debug", "warn", codes.OK, slog.LevelDebug},
		{"ERROR", "debug", codes.OK, slog.LevelError},
		{"wran", "", codes.InvalidArgument, slog.LevelError},
		{"debug+1", "", codes.InvalidArgument, slog.LevelError},
		{"debug", "error", codes.OK, slog.LevelDebug},
	} {
		a, err := o.SetLogLevel(t.Context(), &schedulerv1.SetLogLevelRequest{Level: tc.level})
		if status.Code(err) != tc.code || a.GetPrevious() != tc.previous || level.Level() != tc.now {
			t.Errorf("%s: %v, before %q, now %v", tc.level, err, a.GetPrevious(), level.Level())
		}
		if err != nil && tc.level == "wran" && !strings.Contains(err.Error(), `did you mean "warn"?`) {
			t.Error(err)
		}
	}
	reloads := func(want float64, text string) {
		t.Helper()
		write(t, path, text)
		waitFor(t, func() bool { return p.metric(t, "sluice_config_reloads_total") == want })
	}
	reloads(1, "telemetry: {logLevel: warn}\ndns: {interval: 7s}\n")
	if level.Level() != slog.LevelDebug {
		t.Errorf("a change of something else set the level to %v", level.Level())
	}
	reloads(2, "telemetry: {logLevel: info}\ndns: {interval: 7s}\n")
	if level.Level() != slog.LevelInfo {
		t.Errorf("the file's new level is info, in force is %v", level.Level())
	}
}

// Whoever asks for the end gets an answer, watchers are let go, and what is in flight is waited for.
func TestDrainOverTheAdminPort(t *testing.T) {
	p := launch(t, "", nil)
	o := p.operator(t, insecure.NewCredentials())
	tail, err := o.TailDecisions(t.Context(), &schedulerv1.TailDecisionsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	open := p.duplex(t, "x-request-id", "open")
	waitFor(t, func() bool {
		s, err := o.ListStreams(t.Context(), &schedulerv1.ListStreamsRequest{})
		return err == nil && len(s.GetStreams()) == 1 && s.GetStreams()[0].GetRequestId() == "open" && s.GetStreams()[0].GetPhase() == "request"
	})
	for range 2 { // the second one asks for what is under way
		a, err := o.Drain(t.Context(), &schedulerv1.DrainRequest{})
		if err != nil || a.GetOpenStreams() != 1 || a.GetGracePeriod().AsDuration() != 10*time.Second {
			t.Fatalf("%v: %v", err, a)
		}
	}
	waitFor(t, func() bool { return !p.app.Ready() })
	select {
	case err := <-p.ended:
		t.Fatalf("it ended with a stream open: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := open.CloseSend(); err != nil {
		t.Fatal(err)
	}
	if err := p.wait(t); err != nil {
		t.Error(err)
	}
	if _, err := tail.Recv(); err == nil || status.Code(err) == codes.DeadlineExceeded {
		t.Errorf("the tail goes on: %v", err)
	}
}

// authority signs certificates.
type authority struct {
	t   *testing.T
	der []byte
	crt *x509.Certificate
	key *ecdsa.PrivateKey
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t}
	a.crt = &x509.Certificate{Subject: pkix.Name{CommonName: "authority"}, IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	a.der, a.key = a.sign(a.crt)
	return a
}

// sign signs a certificate with a new key; the first one signs itself.
func (a *authority) sign(c *x509.Certificate) (der []byte, key *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	by, signer := a.crt, a.key
	if signer == nil {
		signer = key
	}
	c.SerialNumber, c.NotBefore, c.NotAfter = big.NewInt(time.Now().UnixNano()), time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	if der, err = x509.CreateCertificate(rand.Reader, c, by, &key.PublicKey, signer); err != nil {
		a.t.Fatal(err)
	}
	return der, key
}

func (a *authority) pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: a.der}))
	return pool
}

// issue is a certificate for the loopback address.
func (a *authority) issue() tls.Certificate {
	der, key := a.sign(&x509.Certificate{
		Subject: pkix.Name{CommonName: "leaf"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	})
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// files writes a certificate and the authority's own.
func (a *authority) files(c tls.Certificate) (cert, key, ca string) {
	a.t.Helper()
	dir := a.t.TempDir()
	cert, key, ca = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem"), filepath.Join(dir, "ca.pem")
	der, err := x509.MarshalECPrivateKey(c.PrivateKey.(*ecdsa.PrivateKey))
	if err != nil {
		a.t.Fatal(err)
	}
	for path, block := range map[string]*pem.Block{
		cert: {Type: "CERTIFICATE", Bytes: c.Certificate[0]}, key: {Type: "EC PRIVATE KEY", Bytes: der}, ca: {Type: "CERTIFICATE", Bytes: a.der},
	} {
		if err := os.WriteFile(path, pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
	return cert, key, ca
}

// The admin port has certificates of its own, and may ask clients for theirs.
func TestAdminTLS(t *testing.T) {
	a := newAuthority(t)
	cert, key, ca := a.files(a.issue())
	p := launch(t, fmt.Sprintf("server: {adminTLS: {certFile: %q, keyFile: %q, clientCAFile: %q}}\n", cert, key, ca), nil)
	mine := a.issue()
	trusted := &tls.Config{RootCAs: a.pool(), Certificates: []tls.Certificate{mine}, MinVersion: tls.VersionTLS12}
	if _, err := p.operator(t, credentials.NewTLS(trusted)).ListEndpoints(t.Context(), &schedulerv1.ListEndpointsRequest{}); err != nil {
		t.Errorf("gRPC with a certificate: %v", err)
	}
	get := func(c *tls.Config) error {
		client := &http.Client{Transport: &http.Transport{TLSClientConfig: c, TLSNextProto: map[string]func(string, *tls.Conn) http.RoundTripper{}}}
		defer client.CloseIdleConnections()
		res, err := client.Get("https://" + p.app.AdminAddr().String() + "/metrics")
		if err != nil {
			return err
		}
		defer func() { _ = res.Body.Close() }()
		if text, err := io.ReadAll(res.Body); err != nil || !strings.Contains(string(text), `sluice_tls_certificate_expiry_timestamp_seconds{listener="admin"}`) {
			return fmt.Errorf("%d: %w", res.StatusCode, err)
		}
		return nil
	}
	if err := get(trusted); err != nil {
		t.Errorf("HTTP/1.1 with a certificate: %v", err)
	}
	other := newAuthority(t)
	for name, c := range map[string]*tls.Config{
		"no certificate":       {RootCAs: a.pool(), MinVersion: tls.VersionTLS12},
		"another's":            {RootCAs: a.pool(), Certificates: []tls.Certificate{other.issue()}, MinVersion: tls.VersionTLS12},
		"an unknown authority": {RootCAs: other.pool(), Certificates: []tls.Certificate{mine}, MinVersion: tls.VersionTLS12},
	} {
		if err := get(c); err == nil {
			t.Errorf("%s: HTTP was served", name)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := p.operator(t, credentials.NewTLS(c)).ListEndpoints(ctx, &schedulerv1.ListEndpointsRequest{}); err == nil {
			t.Errorf("%s: gRPC was served", name)
		}
		cancel()
	}
}

// Only who is on the same machine, or has shown a certificate, may change the process.
func TestWhoMayChangeTheProcess(t *testing.T) {
	remote, local := &net.TCPAddr{IP: net.IPv4(10, 0, 0, 7), Port: 1}, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	shown := credentials.TLSInfo{State: tls.ConnectionState{VerifiedChains: [][]*x509.Certificate{{{}}}}}
	for _, tc := range []struct {
		peer *peer.Peer
		want bool
	}{
		{&peer.Peer{Addr: local}, true}, {&peer.Peer{Addr: &net.TCPAddr{IP: net.IPv6loopback, Port: 1}}, true},
		{&peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP("::ffff:127.0.0.1"), Port: 1}}, true},
		{&peer.Peer{Addr: remote}, false}, {&peer.Peer{Addr: remote, AuthInfo: credentials.TLSInfo{}}, false},
		{&peer.Peer{Addr: remote, AuthInfo: shown}, true}, {nil, false},
	} {
		ctx := context.Background()
		if tc.peer != nil {
			ctx = peer.NewContext(ctx, tc.peer)
		}
		for method, guarded := range map[string]bool{
			schedulerv1.SchedulerService_Drain_FullMethodName: true, schedulerv1.SchedulerService_SetLogLevel_FullMethodName: true,
			schedulerv1.SchedulerService_Explain_FullMethodName: false,
		} {
			_, err := guard(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(context.Context, any) (any, error) { return nil, nil })
			if want := tc.want || !guarded; (err == nil) != want || err != nil && status.Code(err) != codes.PermissionDenied {
				t.Errorf("%v calls %s: %v", tc.peer, method, err)
			}
		}
	}
}

// No more than a few requests are tried at a time; the others wait their turn, and leave when they like.
func TestTriesWaitTheirTurn(t *testing.T) {
	served, may := make(chan struct{}), make(chan struct{})
	g := grpc.NewServer(grpc.UnknownServiceHandler(func(any, grpc.ServerStream) error { served <- struct{}{}; <-may; return nil }))
	defer g.Stop()
	handler := withGRPC(g, http.NotFoundHandler(), trialTimeout)
	call := func(ctx context.Context, method string) chan struct{} {
		done := make(chan struct{})
		r, err := http.NewRequestWithContext(ctx, http.MethodPost, method, http.NoBody)
		if err != nil {
			t.Fatal(err)
		}
		r.ProtoMajor, r.Proto = 2, "HTTP/2.0"
		r.Header.Set("content-type", "application/grpc")
		r.Header.Set("te", "trailers")
		go func() { defer close(done); handler.ServeHTTP(discard{http.Header{}}, r) }()
		return done
	}
	var calls []chan struct{}
	for range trials {
		calls = append(calls, call(t.Context(), schedulerv1.SchedulerService_DryRun_FullMethodName))
		<-served
	}
	ctx, leave := context.WithCancel(t.Context())
	impatient := call(ctx, schedulerv1.SchedulerService_LookupPrefix_FullMethodName)
	leave()
	<-impatient
	last := call(t.Context(), schedulerv1.SchedulerService_LookupPrefix_FullMethodName)
	calls = append(calls, call(t.Context(), schedulerv1.SchedulerService_ListEndpoints_FullMethodName)) // is no try
	<-served
	select {
	case <-served:
		t.Fatal("one try too many is served")
	case <-time.After(20 * time.Millisecond):
	}
	for range calls {
		may <- struct{}{}
	}
	<-served
	may <- struct{}{}
	for _, done := range append(calls, last) {
		<-done
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(b []byte) (int, error) { return len(b), nil }
func (d discard) WriteHeader(int)             {}
func (d discard) Flush()                      {}

// The port's own server turns away who calls from elsewhere, before anything is changed.
func TestChangesFromElsewhereAreRefused(t *testing.T) {
	var level slog.LevelVar
	p := launch(t, "", func(o *Options) { o.Level = &level })
	for method, want := range map[string]string{
		schedulerv1.SchedulerService_Drain_FullMethodName:       "7", // PERMISSION_DENIED
		schedulerv1.SchedulerService_SetLogLevel_FullMethodName: "7",
		schedulerv1.SchedulerService_GetConfig_FullMethodName:   "0",
	} {
		r := httptest.NewRequest(http.MethodPost, method, bytes.NewReader(make([]byte, 5))) // an empty message
		r.ProtoMajor, r.Proto, r.RemoteAddr = 2, "HTTP/2.0", "10.0.0.7:4711"
		r.Header.Set("content-type", "application/grpc")
		r.Header.Set("te", "trailers")
		w := httptest.NewRecorder()
		p.app.adminGRPC.ServeHTTP(w, r)
		if got := w.Result().Trailer.Get("grpc-status"); got != want {
			t.Errorf("%s: status %q, want %s: %v", method, got, want, w.Result().Trailer)
		}
	}
	if !p.app.Ready() || level.Level() != slog.LevelInfo {
		t.Errorf("ready: %v, log level %v", p.app.Ready(), level.Level())
	}
}

// A body that Envoy may send may be tried, though it is larger than what gRPC takes by itself.
func TestLargeBodiesAreTried(t *testing.T) {
	p := launch(t, "", nil)
	body := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("x", 5<<20) + `"}]}`
	a, err := p.operator(t, insecure.NewCredentials()).DryRun(t.Context(), &schedulerv1.DryRunRequest{BodyText: body})
	if err != nil || a.GetExplanation().GetReason() == "" {
		t.Errorf("%v", err)
	}
}
