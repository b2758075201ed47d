package page

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net"
	"net/http"
	"net/netip"
	"strings"
)

// policy lets the browser fetch nothing from anywhere but here, run no script but the page's own, and show the page in no
// frame.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; " +
	"base-uri 'none'; frame-ancestors 'none'"

// guard keeps other sites out: they can neither show the page in a frame, nor reach it under a name of theirs, nor post to it.
func guard(h http.Handler) http.Handler {
	posts := http.NewCrossOriginProtection()
	guarded := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		head := w.Header()
		head.Set("Content-Security-Policy", policy)
		head.Set("X-Content-Type-Options", "nosniff")
		head.Set("X-Frame-Options", "DENY")
		head.Set("Referrer-Policy", "no-referrer")
		head.Set("Cross-Origin-Resource-Policy", "same-origin")
		head.Set("Cross-Origin-Opener-Policy", "same-origin")
		head.Set("Cache-Control", "no-store")
		if posts.Check(r) != nil {
			http.Error(w, "another site may not post here", http.StatusForbidden)
			return
		}
		h.ServeHTTP(w, r)
	})
	return OwnName(guarded)
}

// OwnName refuses requests under a name that could be another site's, unless they came by TLS.
func OwnName(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.TLS == nil && !ours(r.Host) {
			http.Error(w, "this is not served under this name: call it by its IP address or as localhost, or serve the admin port by TLS",
				http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}

// closed are the ends of names that nobody can register in the public DNS, so that no other site can point one at this port.
var closed = []string{".localhost", ".local", ".internal", ".svc", ".test", ".home.arpa"}

// ours reports whether a request's Host can not be the name of another site. A page of such a site could otherwise point its
// own name at this port and read it as its own. With TLS the certificate sees to that.
func ours(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.ToLower(strings.TrimSuffix(host, "."))
	if _, err := netip.ParseAddr(strings.Trim(host, "[]")); err == nil {
		return true
	}
	if host == "" || !strings.Contains(host, ".") {
		return host != ""
	}
	for _, end := range closed {
		if strings.HasSuffix(host, end) {
			return true
		}
	}
	return false
}

// fromElsewhere reports whether a browser says that another site made the request.
func fromElsewhere(r *http.Request) bool {
	site := r.Header.Get("Sec-Fetch-Site")
	return site == "cross-site" || site == "same-site"
}

// asset is a file that browsers may keep: its address changes with its content.
type asset struct {
	content, kind, tag string
}

//go:embed assets
var assetFiles embed.FS

var assets = func() map[string]*asset {
	all := make(map[string]*asset)
	for name, kind := range map[string]string{
		"style.css": "text/css; charset=utf-8", "page.js": "text/javascript; charset=utf-8", "icon.svg": "image/svg+xml",
	} {
		content, err := fs.ReadFile(assetFiles, "assets/"+name)
		if err != nil {
			panic(err) // panic allowed: the file is part of the binary
		}
		sum := sha256.Sum256(content)
		all[name] = &asset{content: string(content), kind: kind, tag: hex.EncodeToString(sum[:8])}
	}
	return all
}()

// assetPath is the path of an asset as it is now.
func assetPath(name string) string { return "/ui/" + name + "?v=" + assets[name].tag }

func (a *asset) serve(w http.ResponseWriter, r *http.Request) {
	head := w.Header()
	head.Set("Content-Type", a.kind)
	head.Set("ETag", `"`+a.tag+`"`)
	head.Set("Cache-Control", "no-cache")
	if r.URL.RawQuery == "v="+a.tag {
		head.Set("Cache-Control", "public, max-age=31536000, immutable")
	}
	http.ServeContent(w, r, "", start, strings.NewReader(a.content))
}
