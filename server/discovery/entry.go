package discovery

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// NotationHelp says in a few lines how an entry is written, for the help text of a flag.
const NotationHelp = `HOST:PORT[,PORT|FIRST-LAST...][,KEY=VALUE...] or srv+NAME[,KEY=VALUE...]. HOST is an IPv4 address, ` +
	`[IPv6] or a DNS name (every address of it is an endpoint); several ports are data-parallel ranks. Keys: name, uid, ` +
	`engine, state, rank, metricsURL, metricsPort, family, kvEvents.port, kvEvents.replayPort, kvEvents.ranks, ` +
	`kvEvents.topic, kvEvents.bind, kvEvents.discover, label.KEY. Example: 10.0.0.5:8000-8003,engine=sglang,label.zone=a`

const (
	maxEntryBytes = 4096
	maxLabels     = 64   // of one entry
	maxLabelKey   = 317  // a Kubernetes label key: prefix of 253 bytes, slash, name of 63
	maxValueBytes = 253  // of a name, a uid and a label's value
	maxURLBytes   = 2048 // of a metricsURL
	maxRank       = 65535
	labelPrefix   = "label."
)

// family says which addresses of a name count.
type family uint8

const (
	familyAuto family = iota // IPv4 where the name has any, else IPv6
	familyIPv4
	familyIPv6
	familyAny
)

var (
	engineNames = []string{"vllm", "sglang", "trtllm", "triton"}
	stateNames  = []string{
		scheduling.EndpointReady.String(), scheduling.EndpointNotReady.String(), scheduling.EndpointDraining.String(),
	}
	familyNames  = []string{"auto", "ipv4", "ipv6", "any"}
	placeholders = []string{"{address}", "{ip}", "{port}", "{rank}"}
)

// Entry is one line of a list of endpoints: an address, a DNS name or an SRV name, with what holds for all endpoints that
// it stands for. ParseEntry, ParseEntries and ParseFile make entries; they are immutable and may be shared.
type Entry struct {
	addr   netip.Addr // valid for a literal address
	host   string     // else the DNS name, or the SRV name
	srv    bool
	ports  []uint16 // none with srv
	family family

	name, uid, engine string
	state             scheduling.EndpointState
	rank              int // of the first port
	metricsURL        string
	metricsPort       uint16 // of the first port
	labels            map[string]string
	kv                scheduling.KVEvents // its ports are those of rank 0
}

// setting is a key that the notation and a file's entry share.
type setting struct {
	key string
	set func(e *Entry, value string) error
}

var settings = []setting{
	{"name", func(e *Entry, v string) error { e.name = v; return checkText(v, maxNameBytes) }},
	{"uid", func(e *Entry, v string) error { e.uid = v; return checkText(v, maxValueBytes) }},
	{"engine", func(e *Entry, v string) error { e.engine = v; return oneOf(v, engineNames) }},
	{"state", func(e *Entry, v string) error {
		e.state = scheduling.EndpointState(max(0, slices.Index(stateNames, v)))
		return oneOf(v, stateNames)
	}},
	{"rank", func(e *Entry, v string) (err error) {
		if e.rank, err = strconv.Atoi(v); err != nil || e.rank < 0 || e.rank > maxRank {
			return fmt.Errorf("must be 0 to %d, got %q", maxRank, clip(v))
		}
		return nil
	}},
	{"metricsURL", func(e *Entry, v string) error { e.metricsURL = v; return checkMetricsURL(v) }},
	{"metricsPort", func(e *Entry, v string) (err error) { e.metricsPort, err = parsePort(v); return err }},
	{"family", func(e *Entry, v string) error {
		e.family = family(max(0, slices.Index(familyNames, v)))
		return oneOf(v, familyNames)
	}},
}

// keysOf are the keys of settings, in order.
func keysOf(settings []setting) []string {
	keys := make([]string, len(settings))
	for i, s := range settings {
		keys[i] = s.key
	}
	return keys
}

// findSetting returns what applies a key's value, or nil for an unknown key.
func findSetting(key string) func(*Entry, string) error {
	for _, s := range settings {
		if s.key == key {
			return s.set
		}
	}
	return nil
}

// ParseEntry reads one entry in the notation that the package comment gives. The error names the entry and what would be
// valid.
func ParseEntry(s string) (Entry, error) {
	e, err := parseEntry(strings.TrimSpace(s))
	if err != nil {
		return Entry{}, fmt.Errorf("endpoint %q: %w", clip(s), err)
	}
	return e, nil
}

// ParseEntries reads a list of entries and reports every fault in it, each with its index.
func ParseEntries(list []string) ([]Entry, error) {
	entries := make([]Entry, 0, len(list))
	var faults []error
	for i, s := range list {
		e, err := ParseEntry(s)
		if err != nil {
			faults = append(faults, fmt.Errorf("endpoints[%d]: %w", i, err))
			continue
		}
		entries = append(entries, e)
	}
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	return entries, nil
}

func parseEntry(s string) (Entry, error) {
	var e Entry
	switch {
	case s == "":
		return e, errors.New("is empty; write host:port")
	case len(s) > maxEntryBytes:
		return e, fmt.Errorf("has %d bytes, at most %d are allowed", len(s), maxEntryBytes)
	case strings.Contains(s, "://") && !strings.Contains(strings.SplitN(s, "://", 2)[0], ","):
		return e, errors.New("is a URL; write host:port without a scheme")
	}
	parts := strings.Split(s, ",")
	for i := range parts {
		parts[i] = strings.TrimSpace(parts[i])
	}
	settingsAt := 1
	for settingsAt < len(parts) && !strings.Contains(parts[settingsAt], "=") {
		settingsAt++
	}
	if err := e.setTarget(parts[0], parts[1:settingsAt]); err != nil {
		return e, err
	}
	if err := e.setPairs(parts[settingsAt:]); err != nil {
		return e, err
	}
	err := e.check()
	return e, err
}

// setPairs applies a list of "key=value".
func (e *Entry) setPairs(pairs []string) error {
	seen := make(map[string]bool, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		switch {
		case !ok:
			return fmt.Errorf("%q: must be KEY=VALUE (ports come before the first setting)", clip(pair))
		case seen[key]:
			return fmt.Errorf("%s: is set twice", clip(key))
		}
		seen[key] = true
		if err := e.set(key, value); err != nil {
			return err
		}
	}
	return nil
}

// set applies one setting, a label and a key of kvEvents included.
func (e *Entry) set(key, value string) error {
	if label, ok := strings.CutPrefix(key, labelPrefix); ok {
		if err := e.setLabel(label, value); err != nil {
			return fmt.Errorf("%s: %w", clip(key), err)
		}
		return nil
	}
	if kvKey, ok := strings.CutPrefix(key, kvEventsPrefix); ok {
		if err := e.setKV(kvKey, value); err != nil {
			return fmt.Errorf("%s: %w", clip(key), err)
		}
		return nil
	}
	set := findSetting(key)
	switch {
	case set == nil:
		return unknownKey(key)
	case value == "":
		return fmt.Errorf("%s: has no value", key)
	}
	if err := set(e, value); err != nil {
		return fmt.Errorf("%s: %w", key, err)
	}
	return nil
}

// unknownKey lists the keys and points at the nearest, which may be one of kvEvents.
func unknownKey(key string) error {
	keys := keysOf(settings)
	near := slices.Clone(keys)
	for _, s := range kvSettings {
		near = append(near, kvEventsPrefix+s.key)
	}
	return fmt.Errorf("%s: unknown key, must be one of %s, %sKEY, %sKEY, got %q%s (a label is label.%s)", clip(key),
		strings.Join(keys, ", "), kvEventsPrefix, labelPrefix, clip(key), scheduling.Hint(key, near), clip(key))
}

func (e *Entry) setLabel(key, value string) error {
	switch {
	case len(e.labels) == maxLabels:
		return fmt.Errorf("an entry has at most %d labels", maxLabels)
	case key == "" || len(key) > maxLabelKey:
		return fmt.Errorf("a label's key has 1 to %d bytes, got %d", maxLabelKey, len(key))
	}
	for i := range len(key) {
		if !isAlnum(key[i]) && !strings.ContainsRune("._-/", rune(key[i])) {
			return errors.New("a label's key holds only letters, digits, '.', '_', '-' and '/'")
		}
	}
	if err := checkText(value, maxValueBytes); err != nil {
		return err
	}
	if e.labels == nil {
		e.labels = make(map[string]string)
	}
	e.labels[key] = value
	return nil
}

// setTarget reads "host:port" or "srv+name" and the further ports that follow it.
func (e *Entry) setTarget(s string, more []string) error {
	if name, ok := strings.CutPrefix(s, "srv+"); ok {
		if len(more) > 0 {
			return fmt.Errorf("%q: the ports of srv+ come from DNS", clip(more[0]))
		}
		return e.setSRV(name)
	}
	s, named := strings.CutPrefix(s, "dns+")
	host, port, err := splitHostPort(s)
	if err != nil {
		return err
	}
	if err := e.setHost(host, named); err != nil {
		return err
	}
	return e.setPorts(append([]string{port}, more...))
}

func (e *Entry) setSRV(name string) error {
	if strings.Contains(name, ":") {
		return fmt.Errorf("%q: the ports of srv+ come from DNS; write srv+NAME", clip(name))
	}
	_, host, err := parseHost(name)
	if err != nil {
		return err
	}
	if host == "" {
		return fmt.Errorf("%q: srv+ takes a DNS name, not an address", clip(name))
	}
	e.host, e.srv = host, true
	return nil
}

func (e *Entry) setHost(host string, named bool) (err error) {
	if e.addr, e.host, err = parseHost(host); err != nil {
		return err
	}
	if named && e.addr.IsValid() {
		return fmt.Errorf("%q: dns+ takes a DNS name, not an address", clip(host))
	}
	return nil
}

func (e *Entry) setPorts(list []string) (err error) {
	for _, p := range list {
		if e.ports, err = appendPorts(e.ports, p); err != nil {
			return err
		}
	}
	return nil
}

// splitHostPort takes the brackets of an IPv6 address off.
func splitHostPort(s string) (host, port string, err error) {
	if strings.ContainsAny(s, "; \t") {
		return "", "", fmt.Errorf("%q: settings follow the ports after a comma, without spaces", clip(s))
	}
	if rest, ok := strings.CutPrefix(s, "["); ok {
		host, after, closed := strings.Cut(rest, "]")
		if port, ok = strings.CutPrefix(after, ":"); !closed || !ok || !strings.Contains(host, ":") {
			return "", "", fmt.Errorf("%q: must be [ipv6]:port", clip(s))
		}
		return host, port, nil
	}
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", "", fmt.Errorf("%q: port is missing; write %s:8000", clip(s), clip(s))
	}
	if strings.Contains(s[:i], ":") {
		if _, err := netip.ParseAddr(s); err == nil {
			return "", "", fmt.Errorf("%q: port is missing; write [%s]:8000", clip(s), s)
		}
		return "", "", fmt.Errorf("%q: an IPv6 address is written in brackets, [ipv6]:port", clip(s))
	}
	return s[:i], s[i+1:], nil
}

// check looks at what only the whole entry can tell.
func (e *Entry) check() error {
	switch {
	case e.srv && e.name != "":
		return errors.New("name: the endpoints of srv+ are named by the hosts in the answer")
	case e.srv && e.rank != 0:
		return errors.New("rank: srv+ gives one port for each endpoint, rank 0")
	case e.addr.IsValid() && e.family != familyAuto:
		return errors.New("family: applies to names, not to an address")
	case e.metricsURL != "" && e.metricsPort != 0:
		return errors.New("metricsURL and metricsPort exclude each other")
	case e.rank+len(e.ports)-1 > maxRank:
		return fmt.Errorf("rank: the last of %d ports would have a rank above %d", len(e.ports), maxRank)
	case int(e.metricsPort)+len(e.ports)-1 > 65535:
		return fmt.Errorf("metricsPort: the last of %d ports would have a metrics port above 65535", len(e.ports))
	case e.metricsURL != "" && (e.srv || len(e.ports) > 1) &&
		!slices.ContainsFunc(placeholders, func(p string) bool { return strings.Contains(e.metricsURL, p) }):
		return fmt.Errorf("metricsURL: would be the same page for several endpoints; must hold one of %s",
			strings.Join(placeholders, ", "))
	}
	return e.checkKV()
}

// String is the entry in the notation, in a fixed order of settings. What a file alone can hold, a comma in a value, is
// shown as it is.
func (e Entry) String() string {
	var b strings.Builder
	switch {
	case e.srv:
		b.WriteString("srv+" + e.host)
	case e.addr.Is6():
		b.WriteString("[" + e.addr.String() + "]:" + formatPorts(e.ports))
	case e.addr.IsValid():
		b.WriteString(e.addr.String() + ":" + formatPorts(e.ports))
	default:
		b.WriteString(e.host + ":" + formatPorts(e.ports))
	}
	put := func(key, value string, isSet bool) {
		if isSet {
			b.WriteString("," + key + "=" + value)
		}
	}
	put("name", e.name, e.name != "")
	put("uid", e.uid, e.uid != "")
	put("engine", e.engine, e.engine != "")
	put("state", e.state.String(), e.state != scheduling.EndpointReady)
	put("rank", strconv.Itoa(e.rank), e.rank != 0)
	put("metricsURL", e.metricsURL, e.metricsURL != "")
	put("metricsPort", strconv.Itoa(int(e.metricsPort)), e.metricsPort != 0)
	put("family", familyNames[e.family], e.family != familyAuto)
	e.putKV(put)
	for _, key := range slices.Sorted(maps.Keys(e.labels)) {
		put(labelPrefix+key, e.labels[key], true)
	}
	return b.String()
}

func oneOf(got string, valid []string) error {
	if slices.Contains(valid, got) {
		return nil
	}
	return mustBe(got, valid)
}

// checkText refuses what would break a log line, a label or a header.
func checkText(s string, most int) error {
	if len(s) > most {
		return fmt.Errorf("has %d bytes, at most %d are allowed", len(s), most)
	}
	for i, r := range s {
		if r < 0x20 || r == 0x7f || r == '\uFFFD' {
			return fmt.Errorf("byte %d is not printable text", i)
		}
	}
	return nil
}

func checkMetricsURL(s string) error {
	if err := checkText(s, maxURLBytes); err != nil {
		return err
	}
	filled := fillURL(s, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 0, 2, 1}), 8000), 0)
	if strings.ContainsAny(filled, "{}") {
		return fmt.Errorf("%q: the placeholders are %s", clip(s), strings.Join(placeholders, ", "))
	}
	u, err := url.Parse(filled)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Errorf("must be http://HOST:PORT/PATH or https://…, got %q", clip(s))
	case u.User != nil:
		return errors.New("must not hold a user or password: it appears in logs and records")
	}
	return nil
}

// fillURL puts an endpoint's values into the placeholders of a metricsURL.
func fillURL(s string, at netip.AddrPort, rank int) string {
	if !strings.Contains(s, "{") {
		return s
	}
	port := strconv.Itoa(int(at.Port()))
	ip := strings.TrimSuffix(at.String(), ":"+port)
	return strings.NewReplacer("{address}", at.String(), "{ip}", ip, "{port}", port, "{rank}", strconv.Itoa(rank)).Replace(s)
}
