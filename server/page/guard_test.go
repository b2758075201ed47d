package page

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
)

func TestPolicy(t *testing.T) {
	s := newStage(t, 1)
	s.decide(t, "m", "r", true)
	for _, path := range []string{"/ui/", "/ui/style.css", "/ui/page.js", "/ui/icon.svg", "/ui/decisions/1", "/ui/decisions/9", "/ui/try", "/ui/nothing"} {
		head := s.get(t, path).Header()
		for name, want := range map[string]string{
			"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin",
		} {
			if got := head.Get(name); got != want {
				t.Errorf("%s: %s: %q", path, name, got)
			}
		}
		if strings.Contains(path, "/ui/d") && head.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %s", path, head.Get("Cache-Control"))
		}
	}
	if !strings.HasPrefix(policy, "default-src 'none';") || strings.Contains(policy, "unsafe") {
		t.Error(policy)
	}
}

// Another site cannot reach the page under a name of its own.
func TestHosts(t *testing.T) {
	s := newStage(t, 1)
	for host, want := range map[string]int{
		"127.0.0.1:9090": 200, "[::1]:9090": 200, "10.1.2.3": 200, "localhost:9090": 200, "LOCALHOST.": 200, "sluice:9090": 200, "node-7": 200,
		"sluice.prod.svc:9090": 200, "sluice.prod.svc.cluster.local": 200, "sluice.internal": 200, "x.localhost": 200,
		"evil.example.com:9090": 421, "127.0.0.1.evil.com": 421, "evil.com.": 421, "localhost.evil.com": 421, "local.com": 421, "": 421, ":9090": 421,
	} {
		if w := s.get(t, "/ui/", "Host", host); w.Code != want {
			t.Errorf("%q: %d", host, w.Code)
		}
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "https://sluice.example.com/ui/", nil)
	r.TLS = &tls.ConnectionState{}
	if w := s.do(r); w.Code != http.StatusOK {
		t.Errorf("over TLS: %d", w.Code)
	}
}

// Another site can neither post to the page nor take its readers' places.
func TestOtherSites(t *testing.T) {
	s := newStage(t, 1)
	form := url.Values{"path": {trialPaths[0]}, "body": {`{"model":"m","messages":[{"role":"user","content":"x"}]}`}}
	for _, tc := range []struct {
		headers []string
		want    int
	}{
		{nil, 200}, // curl
		{[]string{"Sec-Fetch-Site", "same-origin", "Origin", "http://127.0.0.1:9090"}, 200},
		{[]string{"Origin", "http://127.0.0.1:9090"}, 200},
		{[]string{"Sec-Fetch-Site", "cross-site"}, 403},
		{[]string{"Sec-Fetch-Site", "same-site"}, 403}, // another port of the same host
		{[]string{"Origin", "http://evil.example.com"}, 403},
		{[]string{"Origin", "http://127.0.0.1:8080"}, 403},
		{[]string{"Origin", "null"}, 403},
	} {
		if w := s.post(t, "/ui/try", form, tc.headers...); w.Code != tc.want {
			t.Errorf("%v: %d", tc.headers, w.Code)
		}
	}
	for _, site := range []string{"cross-site", "same-site"} {
		if w := s.get(t, "/ui/events", "Sec-Fetch-Site", site); w.Code != http.StatusForbidden {
			t.Errorf("events for %s: %d", site, w.Code)
		}
	}
	if w := s.get(t, "/ui/", "Sec-Fetch-Site", "cross-site"); w.Code != http.StatusOK { // a link
		t.Errorf("a link: %d", w.Code)
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodDelete, "http://127.0.0.1/ui/", nil)
	if w := s.do(r); w.Code != http.StatusMethodNotAllowed {
		t.Errorf("DELETE: %d", w.Code)
	}
}

func TestAssets(t *testing.T) {
	s := newStage(t, 1)
	page := s.get(t, "/ui/").Body.String()
	for name, a := range assets {
		if !strings.Contains(page, assetPath(name)) {
			t.Errorf("the page does not use %s", assetPath(name))
		}
		w := s.get(t, assetPath(name))
		if w.Code != http.StatusOK || w.Body.String() != a.content || w.Header().Get("Content-Type") != a.kind ||
			!strings.Contains(w.Header().Get("Cache-Control"), "immutable") {
			t.Errorf("%s: %d %v", name, w.Code, w.Header())
		}
		if w := s.get(t, "/ui/"+name, "If-None-Match", w.Header().Get("ETag")); w.Code != http.StatusNotModified || w.Header().Get("Cache-Control") != "no-cache" {
			t.Errorf("%s again: %d %v", name, w.Code, w.Header())
		}
		for _, outside := range []string{"http://", "https://", "@import", "url("} {
			if strings.Contains(strings.ReplaceAll(a.content, "http://www.w3.org/2000/svg", ""), outside) {
				t.Errorf("%s has %q", name, outside)
			}
		}
	}
}
