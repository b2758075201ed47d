// Package cluster runs a real Kubernetes API server for tests: kube-apiserver and etcd on loopback, with certificates and
// tokens of their own, with RBAC, and without any controller, scheduler or node. What those would write, tests write.
package cluster

import (
	"bytes"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/sluice-epp/sluice/test/envoytest"
)

// Environment variables that steer the tests.
const (
	// EnvBinaries names the folder that holds kube-apiserver and etcd, which scripts/kube.sh prints.
	EnvBinaries = "SLUICE_KUBE"
	// EnvRequired, when not empty, makes missing binaries a failure and not a skip.
	EnvRequired = "SLUICE_KUBE_REQUIRED"
)

// startTimeout bounds the start of a process, on a machine that does much else.
const startTimeout = 90 * time.Second

// The users that the API server knows.
const (
	// Admin may do everything.
	Admin = "admin"
	// Reader may do what tests bind to it.
	Reader = "reader"
)

// Cluster is a running API server.
type Cluster struct {
	folder, binaries string
	ip               string
	ports            struct{ etcd, peer, api int }
	etcd, api        *process
	ca               []byte
	http             *http.Client
}

// Binaries returns the folder with the programs. Where there is none the test is skipped, or fails if SLUICE_KUBE_REQUIRED
// is set.
func Binaries(t testing.TB) string {
	t.Helper()
	folder := os.Getenv(EnvBinaries)
	if folder == "" {
		if os.Getenv(EnvRequired) != "" {
			t.Fatal("no Kubernetes API server to test with: SLUICE_KUBE is empty")
		}
		t.Skip("no Kubernetes API server to test with; run `make test-kube`")
	}
	return folder
}

// Start runs an API server, which stops with the test.
func Start(t testing.TB) *Cluster {
	t.Helper()
	c := &Cluster{folder: t.TempDir(), binaries: Binaries(t), ip: envoytest.PodIPs(t, 1)[0], http: &http.Client{Timeout: 10 * time.Second}}
	t.Cleanup(func() {
		c.http.CloseIdleConnections()
		// An API server without its etcd does not end in time.
		c.KillAPIServer()
		c.etcd.kill()
		if t.Failed() {
			t.Logf("the end of the API server's log:\n%s\nthe end of etcd's log:\n%s", c.api.log(), c.etcd.log())
		}
	})
	if err := c.write(t); err != nil {
		t.Fatal(err)
	}
	c.ports.etcd, c.ports.peer, c.ports.api = envoytest.FreePort(t, c.ip), envoytest.FreePort(t, c.ip), envoytest.FreePort(t, c.ip)
	if err := c.startEtcd(t.Context()); err != nil {
		t.Fatal(err)
	}
	c.StartAPIServer(t)
	return c
}

// path is a file of the cluster's folder.
func (c *Cluster) path(name string) string { return filepath.Join(c.folder, name) }

// write writes the files that the programs read.
func (c *Cluster) write(t testing.TB) error {
	certificate, key := envoytest.WriteCertificate(t, c.ip, "localhost")
	for from, to := range map[string]string{certificate: "tls.crt", key: "tls.key"} {
		if err := os.Rename(from, c.path(to)); err != nil {
			return err
		}
	}
	var err error
	if c.ca, err = os.ReadFile(c.path("tls.crt")); err != nil {
		return err
	}
	signing, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return err
	}
	encoded := pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(signing)})
	if err := os.WriteFile(c.path("signing.key"), encoded, 0o600); err != nil {
		return err
	}
	tokens := token(Admin) + `,admin,1,"system:masters"` + "\n" + token(Reader) + ",reader,2\n"
	return os.WriteFile(c.path("tokens.csv"), []byte(tokens), 0o600)
}

// token is a user's, worth nothing beyond this loopback address.
func token(user string) string { return "token-of-" + user }

func (c *Cluster) startEtcd(ctx context.Context) (err error) {
	client, peer := c.url("http", c.ports.etcd), c.url("http", c.ports.peer)
	c.etcd, err = start(filepath.Join(c.binaries, "etcd"), "--data-dir="+c.path("etcd"), "--unsafe-no-fsync",
		"--listen-client-urls="+client, "--advertise-client-urls="+client, "--listen-peer-urls="+peer,
		"--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer, "--log-level=warn")
	if err != nil {
		return err
	}
	return c.etcd.ready(ctx, func(ctx context.Context) error { return get(ctx, c.http, client+"/health") })
}

func (c *Cluster) url(scheme string, port int) string {
	return scheme + "://" + net.JoinHostPort(c.ip, strconv.Itoa(port))
}

// StartAPIServer starts the API server again, at the same address.
func (c *Cluster) StartAPIServer(t testing.TB) {
	t.Helper()
	var err error
	// The address that is advertised must not be loopback, and nobody goes there.
	c.api, err = start(filepath.Join(c.binaries, "kube-apiserver"), "--etcd-servers="+c.url("http", c.ports.etcd),
		"--bind-address="+c.ip, "--secure-port="+strconv.Itoa(c.ports.api), "--advertise-address=192.0.2.1", "--endpoint-reconciler-type=none",
		"--tls-cert-file="+c.path("tls.crt"), "--tls-private-key-file="+c.path("tls.key"), "--cert-dir="+c.path("certificates"),
		"--service-account-issuer=https://kubernetes.default.svc", "--service-account-key-file="+c.path("signing.key"),
		"--service-account-signing-key-file="+c.path("signing.key"), "--token-auth-file="+c.path("tokens.csv"),
		"--authorization-mode=RBAC", "--disable-admission-plugins=ServiceAccount", "--service-cluster-ip-range=10.77.240.0/20",
		"--watch-cache=true", "--v=0")
	if err != nil {
		t.Fatal(err)
	}
	client, err := rest.HTTPClientFor(c.Config(Admin))
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	if err := c.api.ready(t.Context(), func(ctx context.Context) error {
		return get(ctx, client, c.url("https", c.ports.api)+"/readyz")
	}); err != nil {
		t.Fatalf("%v\n%s", err, c.api.log())
	}
}

// KillAPIServer ends the API server at once, as a lost machine does. Connections to it are refused from then on.
func (c *Cluster) KillAPIServer() { c.api.kill() }

// Compact makes etcd, and with it an API server that starts afterwards, forget all changes up to now.
func (c *Cluster) Compact(t testing.TB) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), startTimeout)
	defer cancel()
	var revision struct {
		Header struct {
			Revision string `json:"revision"`
		} `json:"header"`
	}
	at := c.url("http", c.ports.etcd) + "/v3/kv/"
	if err := post(ctx, c.http, at+"range", `{"key":"AA=="}`, &revision); err != nil {
		t.Fatal(err)
	}
	if err := post(ctx, c.http, at+"compaction", `{"revision":"`+revision.Header.Revision+`","physical":true}`, nil); err != nil {
		t.Fatal(err)
	}
}

// Address is the API server's host:port.
func (c *Cluster) Address() string { return net.JoinHostPort(c.ip, strconv.Itoa(c.ports.api)) }

// Config is how a user reaches the API server.
func (c *Cluster) Config(user string) *rest.Config {
	return &rest.Config{
		Host: c.url("https", c.ports.api), BearerToken: token(user), TLSClientConfig: rest.TLSClientConfig{CAData: c.ca},
		QPS: -1, WarningHandler: rest.NoWarnings{},
	}
}

// Kubeconfig writes a user's kubeconfig file, with the API server at address where that is not empty, and returns its path.
func (c *Cluster) Kubeconfig(t testing.TB, user, namespace, address string) string {
	t.Helper()
	if address == "" {
		address = c.Address()
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["test"] = &clientcmdapi.Cluster{Server: "https://" + address, CertificateAuthorityData: c.ca, TLSServerName: "localhost"}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{Token: token(user)}
	config.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: user, Namespace: namespace}
	config.CurrentContext = "test"
	path := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// client is the admin's, for objects of any kind.
func (c *Cluster) client(t testing.TB) dynamic.Interface {
	t.Helper()
	client, err := dynamic.NewForConfig(c.Config(Admin))
	if err != nil {
		t.Fatal(err)
	}
	return client
}

func get(ctx context.Context, client *http.Client, url string) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	return do(client, r, nil)
}

func post(ctx context.Context, client *http.Client, url, body string, into any) error {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader([]byte(body)))
	if err != nil {
		return err
	}
	return do(client, r, into)
}

func do(client *http.Client, r *http.Request, into any) error {
	res, err := client.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }()
	body, err := io.ReadAll(res.Body)
	switch {
	case err != nil:
		return err
	case res.StatusCode != http.StatusOK:
		return fmt.Errorf("%s: %s: %s", r.URL, res.Status, bytes.TrimSpace(body))
	case into == nil:
		return nil
	}
	return json.Unmarshal(body, into)
}
