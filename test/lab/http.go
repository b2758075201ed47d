package lab

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Timeout bounds every wait and every request of the lab. It is long because the machine may be busy with other tests.
const Timeout = 40 * time.Second

// NewClient is an HTTP client whose connections end with the test.
func NewClient(t testing.TB) *http.Client {
	t.Helper()
	tr := &http.Transport{MaxIdleConnsPerHost: 64, DisableCompression: true}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: Timeout}
}

// Answer is an HTTP response, read to its end.
type Answer struct {
	Status  int
	Body    string
	Header  http.Header
	Trailer http.Header
}

// Get sends a GET. The headers come in pairs of name and value.
func Get(t testing.TB, c *http.Client, url string, headers ...string) Answer {
	t.Helper()
	return Do(t, c, Request(t, http.MethodGet, url, nil, headers...))
}

// Post sends a JSON body.
func Post(t testing.TB, c *http.Client, url, body string, headers ...string) Answer {
	t.Helper()
	return Do(t, c, Request(t, http.MethodPost, url, strings.NewReader(body), headers...))
}

// Request makes a request that ends with the test. Its content type is JSON where it has a body, unless set.
func Request(t testing.TB, method, url string, body io.Reader, headers ...string) *http.Request {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, body)
	if err != nil {
		t.Fatal(err)
	}
	if body != nil {
		r.Header.Set("content-type", "application/json")
	}
	for i := 0; i+1 < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
		if strings.EqualFold(headers[i], "host") {
			r.Host = headers[i+1]
		}
	}
	return r
}

// Do sends a request and reads the answer to its end. An answer that breaks off fails the test.
func Do(t testing.TB, c *http.Client, r *http.Request) Answer {
	t.Helper()
	a, err := Try(c, r)
	if err != nil {
		t.Fatalf("%s %s: %v", r.Method, r.URL, err)
	}
	return a
}

// Try sends a request and reads the answer to its end; it may be called from any goroutine.
func Try(c *http.Client, r *http.Request) (Answer, error) {
	res, err := c.Do(r)
	if err != nil {
		return Answer{}, err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	return Answer{Status: res.StatusCode, Body: string(b), Header: res.Header, Trailer: res.Trailer}, err
}

// SHA256 is the hash of a body as engines and pods report it.
func SHA256[T string | []byte](body T) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

// Wait polls until ok, and fails the test when that takes longer than Timeout.
func Wait(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(Timeout); !ok(); {
		if time.Now().After(deadline) {
			t.Fatalf("waited in vain for %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// Context ends with the test, or after Timeout.
func Context(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Timeout)
	t.Cleanup(cancel)
	return ctx
}

// WriteFile puts a file in place in one step: it is written beside and moved over the old one.
func WriteFile(t testing.TB, path, text string) {
	t.Helper()
	next := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".next")
	if err := os.WriteFile(next, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, path); err != nil {
		t.Fatal(err)
	}
}
