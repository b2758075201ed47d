package envoy

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

var (
	dnsName    = regexp.MustCompile(`^([a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?\.)*[a-zA-Z0-9_]([a-zA-Z0-9_-]{0,61}[a-zA-Z0-9_])?\.?$`)
	headerName = regexp.MustCompile("^[a-z0-9!#$%&'*+.^_`|~-]+$")
	poolName   = regexp.MustCompile(`^[a-z0-9]([a-z0-9._-]*[a-z0-9])?$`)
	pathPrefix = regexp.MustCompile(`^/[\x21-\x7e]*$`)
	retryOn    = regexp.MustCompile(`^[a-z0-9-]+(, ?[a-z0-9-]+)*$`)
)

// Every mode by type, the default first.
var (
	bodyModes   = []BodyMode{FullDuplexStreamed, Streamed, Buffered, BufferedPartial, BodyNone}
	headerModes = []HeaderMode{Send, Skip}
	poolTypes   = []PoolType{OriginalDst, OverrideHost}
	pickSources = []PickSource{FromHeader, FromMetadata}
)

// ParseBodyMode reads a body mode in any case, with hyphens or underscores. The error names the nearest mode.
func ParseBodyMode(s string) (BodyMode, error) { return parse("body mode", s, bodyModes) }

// ParseHeaderMode reads a header or trailer mode, as [ParseBodyMode] does.
func ParseHeaderMode(s string) (HeaderMode, error) { return parse("header mode", s, headerModes) }

// ParsePickSource reads a source, as [ParseBodyMode] does.
func ParsePickSource(s string) (PickSource, error) { return parse("pick source", s, pickSources) }

// ParsePoolType reads a pool type, as [ParseBodyMode] does.
func ParsePoolType(s string) (PoolType, error) { return parse("pool type", s, poolTypes) }

func parse[T ~string](kind, s string, known []T) (T, error) {
	name := strings.ReplaceAll(strings.TrimSpace(s), "-", "_")
	for _, k := range known {
		if strings.EqualFold(name, string(k)) {
			return k, nil
		}
	}
	return "", fmt.Errorf("unknown %s %q, the nearest is %s (known: %s)", kind, s, nearest(T(name), known), join(known))
}

// Validate returns every fault of the parameters, joined, or nil.
func (p Params) Validate() error {
	v := &validator{}
	v.listen("listen", p.Listen)
	if p.Admin != "" {
		v.listen("admin", p.Admin)
	}
	check(v, "poolType", p.PoolType, poolTypes)
	check(v, "source", p.Source, pickSources)
	v.modes(p)
	v.pools(p)
	v.bypass(p)
	v.traffic(p)
	v.tracing(p)
	return errors.Join(v.faults...)
}

type validator struct{ faults []error }

func (v *validator) fault(path, format string, args ...any) {
	v.faults = append(v.faults, fmt.Errorf("%s: "+format, append([]any{path}, args...)...))
}

func (v *validator) modes(p Params) {
	check(v, "requestBody", p.RequestBody, bodyModes)
	check(v, "responseBody", p.ResponseBody, bodyModes)
	check(v, "responseHeaders", p.ResponseHeaders, headerModes)
	check(v, "requestTrailers", p.RequestTrailers, headerModes)
	check(v, "responseTrailers", p.ResponseTrailers, headerModes)
	request, response := or(p.RequestBody, defaultBody), or(p.ResponseBody, defaultBody)
	if request == FullDuplexStreamed && p.RequestTrailers == Skip {
		v.fault("requestTrailers", "must be SEND with requestBody FULL_DUPLEX_STREAMED, got SKIP")
	}
	if response == FullDuplexStreamed && p.ResponseTrailers == Skip {
		v.fault("responseTrailers", "must be SEND with responseBody FULL_DUPLEX_STREAMED, got SKIP")
	}
	if response == FullDuplexStreamed && p.ResponseHeaders == Skip {
		v.fault("responseHeaders", "must be SEND with responseBody FULL_DUPLEX_STREAMED, got SKIP")
	}
	if p.Observability {
		v.observed("requestBody", request)
		v.observed("responseBody", response)
	}
	if p.SendBodyEarly && request != Streamed {
		v.fault("sendBodyEarly", "needs requestBody STREAMED, got %s", request)
	}
	if p.AllowModeOverride && (request == FullDuplexStreamed || response == FullDuplexStreamed) {
		v.fault("allowModeOverride", "Envoy ignores it with FULL_DUPLEX_STREAMED bodies")
	}
	v.duration("messageTimeout", p.MessageTimeout)
	v.duration("maxMessageTimeout", p.MaxMessageTimeout)
	if p.MaxMessageTimeout != 0 && p.MaxMessageTimeout < or(p.MessageTimeout, defaultMessageTimeout) {
		v.fault("maxMessageTimeout", "must be at least messageTimeout %s, got %s", or(p.MessageTimeout, defaultMessageTimeout), p.MaxMessageTimeout)
	}
}

func (v *validator) observed(path string, mode BodyMode) {
	if mode != Streamed && mode != BodyNone {
		v.fault(path, "must be STREAMED or NONE in observability mode, got %s", mode)
	}
}

func (v *validator) pools(p Params) {
	v.picker("picker", p.Picker)
	v.endpoints("endpoints", p.Endpoints, p.PoolType == OverrideHost)
	seen := []string{PoolCluster, PickerCluster, BypassCluster, CollectorCluster}
	weighted := p.Weight > 0
	for i, pool := range p.Pools {
		path := fmt.Sprintf("pools[%d]", i)
		switch {
		case !poolName.MatchString(pool.Name):
			v.fault(path+".name", "must be lower-case letters, digits, dots, hyphens and underscores, got %q", pool.Name)
		case slices.Contains(seen, pool.Name) || slices.Contains(seen, pool.Name+pickerSuffix):
			v.fault(path+".name", "%q is taken", pool.Name)
		}
		seen = append(seen, pool.Name, pool.Name+pickerSuffix)
		v.picker(path+".picker", pool.Picker)
		v.endpoints(path+".endpoints", pool.Endpoints, p.PoolType == OverrideHost)
		if (pool.Prefix == "") == (pool.Weight == 0) {
			v.fault(path, "needs a prefix or a weight, and not both")
		}
		if pool.Prefix != "" && (!pathPrefix.MatchString(pool.Prefix) || pool.Prefix == "/") {
			v.fault(path+".prefix", "must be a path below /, got %q", pool.Prefix)
		}
		weighted = weighted || pool.Weight > 0
	}
	if weighted && p.Weight == 0 {
		v.fault("weight", "must be > 0 where another pool has a weight")
	}
}

func (v *validator) picker(path string, p Picker) {
	if _, err := parseAddress(p.Address, false); err != nil {
		v.fault(path+".address", "%w", err)
	}
	for i, replica := range p.Replicas {
		at := fmt.Sprintf("%s.replicas[%d]", path, i)
		if _, err := parseAddress(replica, false); err != nil {
			v.fault(at, "%w", err)
		} else if replica == p.Address || slices.Contains(p.Replicas[:i], replica) {
			v.fault(at, "%q is listed twice", replica)
		}
	}
	v.duration(path+".healthInterval", p.HealthInterval)
	if p.TLS == nil {
		return
	}
	v.file(path+".tls.caFile", p.TLS.CAFile)
	v.file(path+".tls.certFile", p.TLS.CertFile)
	v.file(path+".tls.keyFile", p.TLS.KeyFile)
	if (p.TLS.CertFile == "") != (p.TLS.KeyFile == "") {
		v.fault(path+".tls", "certFile and keyFile go together")
	}
	if p.TLS.ServerName != "" && !dnsName.MatchString(p.TLS.ServerName) {
		v.fault(path+".tls.serverName", "must be a DNS name, got %q", p.TLS.ServerName)
	}
}

func (v *validator) file(path, name string) {
	if !utf8.ValidString(name) || strings.ContainsFunc(name, unicode.IsControl) {
		v.fault(path, "must be UTF-8 without control characters, got %q", name)
	}
}

func (v *validator) endpoints(path string, endpoints []string, needed bool) {
	if needed && len(endpoints) == 0 {
		v.fault(path, "must list the endpoints with poolType OVERRIDE_HOST")
	}
	for i, e := range endpoints {
		if _, err := parseAddress(e, false); err != nil {
			v.fault(fmt.Sprintf("%s[%d]", path, i), "%w", err)
		} else if slices.Contains(endpoints[:i], e) {
			v.fault(fmt.Sprintf("%s[%d]", path, i), "%q is listed twice", e)
		}
	}
}

func (v *validator) bypass(p Params) {
	if p.Bypass == nil {
		return
	}
	if len(p.Endpoints) == 0 {
		v.fault("bypass", "needs the endpoints")
	}
	if p.Bypass.Prefix == "" && p.Bypass.Header == "" {
		v.fault("bypass", "needs a prefix or a header")
	}
	if p.Bypass.Prefix != "" && !pathPrefix.MatchString(p.Bypass.Prefix) {
		v.fault("bypass.prefix", "must be a path, got %q", p.Bypass.Prefix)
	}
	if p.Bypass.Prefix == "/" && p.Bypass.Header == "" {
		v.fault("bypass.prefix", "/ alone would take every request")
	}
	if p.Bypass.Header != "" {
		v.header("bypass.header", p.Bypass.Header)
	}
}

func (v *validator) traffic(p Params) {
	if p.HideDestination && p.Source != FromMetadata {
		v.fault("hideDestination", "needs source metadata: without the header Envoy would lose the pick")
	}
	if p.RetryOn != "" && !retryOn.MatchString(p.RetryOn) {
		v.fault("retryOn", "must be Envoy's retry conditions separated by commas, got %q", p.RetryOn)
	}
	if p.RetryOn != "" && p.Retries == 0 {
		v.fault("retryOn", "needs retries > 0")
	}
	if p.SubsetHeader != "" {
		v.header("subsetHeader", p.SubsetHeader)
		if p.Subset != nil {
			v.fault("subsetHeader", "subset and subsetHeader exclude each other")
		}
	}
	for i, e := range p.Subset {
		if e == "" || strings.ContainsFunc(e, func(r rune) bool { return r < ' ' || r > '~' }) {
			v.fault(fmt.Sprintf("subset[%d]", i), "must be printable, got %q", e)
		}
	}
}

func (v *validator) tracing(p Params) {
	t := p.Tracing
	if t == nil {
		return
	}
	if _, err := parseAddress(t.Collector, false); err != nil {
		v.fault("tracing.collector", "%w", err)
	}
	if strings.ContainsFunc(t.Service, func(r rune) bool { return r < ' ' || r > '~' }) {
		v.fault("tracing.service", "must be printable, got %q", t.Service)
	}
	if !(t.Percent >= 0 && t.Percent <= 100) {
		v.fault("tracing.percent", "must be from 0 to 100, got %v", t.Percent)
	}
}

func (v *validator) header(path, name string) {
	if !headerName.MatchString(name) {
		v.fault(path, "must be a lower-case header name, got %q", name)
	} else if name == DestinationKey {
		v.fault(path, "%s is removed from every request", name)
	}
}

func (v *validator) duration(path string, d time.Duration) {
	if d < 0 {
		v.fault(path, "must be >= 0, got %s", d)
	}
}

func (v *validator) listen(path, s string) {
	a, err := parseAddress(s, true)
	if err != nil {
		v.fault(path, "%w", err)
	} else if !a.IP {
		v.fault(path, "the host must be an IP, got %q", s)
	}
}

func check[T ~string](v *validator, path string, value T, known []T) {
	if value != "" && !slices.Contains(known, value) {
		v.fault(path, "unknown value %q, the nearest is %s (known: %s)", value, nearest(value, known), join(known))
	}
}

// address is a host and port; IP says that the host is an IP and not a DNS name.
type address struct {
	Host string
	Port uint16
	IP   bool
}

// parseAddress reads host:port, an IPv6 host in brackets. Port 0 is accepted with free alone.
func parseAddress(s string, free bool) (address, error) {
	host, number, err := splitHostPort(s)
	if err != nil {
		return address{}, err
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil || (port == 0 && !free) {
		return address{}, fmt.Errorf("bad port in %q", s)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if ip.Zone() != "" {
			return address{}, fmt.Errorf("%q has a zone, which Envoy does not take", s)
		}
		return address{Host: host, Port: uint16(port), IP: true}, nil
	}
	if !dnsName.MatchString(host) || len(host) > 253 {
		return address{}, fmt.Errorf("the host of %q is neither an IP nor a DNS name", s)
	}
	return address{Host: host, Port: uint16(port)}, nil
}

func splitHostPort(s string) (host, port string, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", "", fmt.Errorf("must be host:port, got %q", s)
	}
	host, port = s[:i], s[i+1:]
	if inner, found := strings.CutPrefix(host, "["); found {
		inner, found = strings.CutSuffix(inner, "]")
		if !found || !strings.Contains(inner, ":") {
			return "", "", fmt.Errorf("brackets in %q hold no IPv6 address", s)
		}
		return inner, port, nil
	}
	if strings.Contains(host, ":") {
		return "", "", fmt.Errorf("an IPv6 host needs brackets, got %q", s)
	}
	return host, port, nil
}

// nearest returns the known name with the smallest edit distance.
func nearest[T ~string](s T, known []T) T {
	best, least := known[0], -1
	for _, k := range known {
		if d := distance(strings.ToUpper(string(s)), strings.ToUpper(string(k))); least < 0 || d < least {
			best, least = k, d
		}
	}
	return best
}

// distance is the Levenshtein distance in bytes.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

func join[T ~string](known []T) string {
	names := make([]string, len(known))
	for i, k := range known {
		names[i] = string(k)
	}
	return strings.Join(names, ", ")
}

func or[T comparable](value, fallback T) T {
	var zero T
	if value == zero {
		return fallback
	}
	return value
}
