package session

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/server/filewatch"
)

// TypeName is the plugin's type in configuration files.
const TypeName = "session-affinity-scorer"

// Parameters are the plugin's parameters.
type Parameters struct {
	// HeaderName is the header that carries the token: answers have it, and the session's next request sends it back.
	HeaderName string `yaml:"headerName"`
	// TokenLifetime is how long after an answer its token counts, 1s to 720h. Each answer has a new one.
	TokenLifetime time.Duration `yaml:"tokenLifetime"`
	// Key signs the tokens: at least 16 bytes, for example ${SESSION_KEY}. Replicas with the same key know one another's
	// sessions. Without key and keyFile a key is drawn when the process starts, and a restart forgets every session.
	Key string `yaml:"key" secret:"true"`
	// KeyFile is the path of a file that holds the key instead, without the white space around it; it is read whenever the
	// configuration is. A relative path is relative to the working directory.
	KeyFile string `yaml:"keyFile"`
}

// DefaultParameters returns the parameters of a plugin without a parameters section.
func DefaultParameters() Parameters {
	return Parameters{HeaderName: "x-session-token", TokenLifetime: time.Hour}
}

// Bounds of the parameters.
const (
	minLifetime, maxLifetime = time.Second, 30 * 24 * time.Hour
	minKeyBytes, maxKeyBytes = 16, 4 << 10
	maxHeaderName            = 100
)

// Validate reports every parameter that cannot be used.
func (p *Parameters) Validate() error {
	var errs []error
	if problem := headerProblem(p.HeaderName); problem != "" {
		errs = append(errs, fmt.Errorf("parameters.headerName: %s, got %q", problem, p.HeaderName))
	}
	if p.TokenLifetime < minLifetime || p.TokenLifetime > maxLifetime {
		errs = append(errs, fmt.Errorf("parameters.tokenLifetime: must be from %v to %v, got %v", minLifetime, maxLifetime, p.TokenLifetime))
	}
	if p.Key != "" && p.KeyFile != "" {
		errs = append(errs, errors.New("parameters.keyFile: stands beside key; one of them holds the key"))
	}
	if n := len(p.Key); n > 0 {
		if err := checkKey(n); err != nil {
			errs = append(errs, fmt.Errorf("parameters.key: %w", err))
		}
	}
	return errors.Join(errs...)
}

func checkKey(n int) error {
	if n < minKeyBytes || n > maxKeyBytes {
		return fmt.Errorf("must have %d to %d bytes, has %d", minKeyBytes, maxKeyBytes, n)
	}
	return nil
}

// reserved are headers that mean something else to proxies, engines or Sluice.
var reserved = []string{
	"accept", "authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "date", "expect", "host",
	"location", "server", "set-cookie", "te", "trailer", "transfer-encoding", "upgrade", "via",
	"x-gateway-destination-endpoint", "x-gateway-destination-endpoint-subset", "x-request-id", "x-session-id",
}

// reservedPrefixes begin the names of headers that Envoy or Sluice sets.
var reservedPrefixes = []string{"x-envoy-", "x-sluice-", "x-forwarded-", "proxy-"}

// headerProblem says why a header cannot carry the token; empty where it can.
func headerProblem(name string) string {
	lower := strings.ToLower(name)
	switch {
	case name == "" || len(name) > maxHeaderName:
		return fmt.Sprintf("must be the name of a header, of 1 to %d bytes", maxHeaderName)
	case strings.ContainsFunc(lower, notInName):
		return "must be the name of a header"
	case slices.Contains(reserved, lower),
		slices.ContainsFunc(reservedPrefixes, func(prefix string) bool { return strings.HasPrefix(lower, prefix) }):
		return "must be a header that means nothing else"
	}
	return ""
}

// notInName reports whether a header's name, in lower case, cannot hold a character (RFC 9110, section 5.6.2).
func notInName(r rune) bool {
	return (r < 'a' || r > 'z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
}

// readKey reads the key from a file.
func readKey(path string) ([]byte, error) {
	text, err := filewatch.Read(path, maxKeyBytes)
	if err != nil {
		return nil, err
	}
	key := bytes.TrimSpace(text)
	if err := checkKey(len(key)); err != nil {
		return nil, fmt.Errorf("the key in %s %w", path, err)
	}
	return key, nil
}
