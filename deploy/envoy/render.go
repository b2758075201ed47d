package envoy

import (
	"bytes"
	_ "embed" // The template is embedded.
	"fmt"
	"net/netip"
	"strconv"
	"text/template"
	"time"
)

// Defaults of what [Params] leaves zero.
const (
	defaultBody           = FullDuplexStreamed
	defaultMessageTimeout = 5 * time.Second
	defaultHealthInterval = time.Second
	defaultHealthService  = "envoy.service.ext_proc.v3.ExternalProcessor"
	defaultBufferLimit    = 1 << 20
	bufferedBodyLimit     = 64 << 20
	defaultRetryOn        = "connect-failure,refused-stream,reset-before-request,retriable-status-codes"

	defaultService = "envoy"

	filterName   = "envoy.filters.http.ext_proc"
	pickerSuffix = "-picker"
)

//go:embed bootstrap.yaml.tmpl
var source string

var bootstrap = template.Must(template.New("bootstrap").Funcs(template.FuncMap{"q": quote}).Parse(source))

// quote writes a string as a double-quoted YAML scalar. The strings that reach it are printable ASCII or file paths, for
// which Go's and YAML's escapes agree.
func quote(s string) string { return strconv.QuoteToASCII(s) }

// Render writes the bootstrap as YAML with comments. The error lists every fault of the parameters.
func Render(p Params) ([]byte, error) {
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
	var out bytes.Buffer
	if err := bootstrap.Execute(&out, newView(p)); err != nil {
		return nil, fmt.Errorf("envoy bootstrap: %w", err)
	}
	return out.Bytes(), nil
}

// view is what the template reads: parameters with the defaults in place, in Envoy's units.
type view struct {
	Params
	Listen, Admin *address

	Filter, Destination, Served, SubsetKey string
	OverrideHost, FromMetadata, SetSubset  bool

	Main                       pool
	Pools                      []pool
	PrefixPools, WeightedPools []pool
	Bypass                     *bypass
	Tracing                    *tracing

	IdleTimeout, RouteTimeout         string
	MessageTimeout, MaxMessageTimeout string
	BufferLimit                       uint32
	RetryBodyLimit                    uint64
	RetryStatus                       bool
}

type pool struct {
	Name, Cluster, PickerCluster string
	PickerType, EndpointsType    string
	PickerHosts, EndpointHosts   hosts
	TLS                          *TLS
	HealthService                string
	HealthInterval               string
	Prefix                       string
	Weight                       uint32
}

type bypass struct {
	Prefix, Header, Cluster, EndpointsType string
	Hosts                                  hosts
}

type tracing struct {
	Service, Percent, Cluster, Type string
	Hosts                           hosts
}

// hosts is a cluster's load assignment.
type hosts struct {
	Cluster string
	Hosts   []address
}

func newView(p Params) view {
	v := view{
		Params: p, Listen: listenAddress(p.Listen), Filter: filterName,
		Destination: DestinationKey, Served: ServedKey, SubsetKey: SubsetKey,
		OverrideHost: p.PoolType == OverrideHost, FromMetadata: p.Source == FromMetadata, SetSubset: p.Subset != nil,
		IdleTimeout: "600s", RouteTimeout: "0s",
		MessageTimeout: seconds(or(p.MessageTimeout, defaultMessageTimeout)),
		RetryBodyLimit: or(p.RetryBodyLimitBytes, bufferedBodyLimit),
		RetryStatus:    p.RetryOn == "",
	}
	v.Params.RequestBody = or(p.RequestBody, defaultBody)
	v.Params.ResponseBody = or(p.ResponseBody, defaultBody)
	v.Params.ResponseHeaders = or(p.ResponseHeaders, Send)
	v.Params.RequestTrailers = or(p.RequestTrailers, Send)
	v.Params.ResponseTrailers = or(p.ResponseTrailers, Send)
	v.Params.RetryOn = or(p.RetryOn, defaultRetryOn)
	if p.Admin != "" {
		v.Admin = listenAddress(p.Admin)
	}
	if p.MaxMessageTimeout > 0 {
		v.MaxMessageTimeout = seconds(p.MaxMessageTimeout)
	}
	v.BufferLimit = or(p.BufferLimitBytes, defaultBufferLimit)
	if p.BufferLimitBytes == 0 && (p.RequestBody == Buffered || p.RequestBody == BufferedPartial) {
		v.BufferLimit = bufferedBodyLimit
	}
	v.fillPools(p)
	if t := p.Tracing; t != nil {
		v.Tracing = &tracing{
			Service: or(t.Service, defaultService), Percent: strconv.FormatFloat(or(t.Percent, 100), 'f', -1, 64),
			Cluster: CollectorCluster, Hosts: addresses(CollectorCluster, []string{t.Collector}),
		}
		v.Tracing.Type = v.Tracing.Hosts.discovery()
	}
	return v
}

func (v *view) fillPools(p Params) {
	v.Main = newPool(Pool{Name: PoolCluster, Picker: p.Picker, Endpoints: p.Endpoints, Weight: p.Weight}, PickerCluster)
	v.Pools = []pool{v.Main}
	for _, extra := range p.Pools {
		next := newPool(extra, extra.Name+pickerSuffix)
		v.Pools = append(v.Pools, next)
		if extra.Prefix != "" {
			v.PrefixPools = append(v.PrefixPools, next)
		}
	}
	for _, each := range v.Pools {
		if each.Weight > 0 {
			v.WeightedPools = append(v.WeightedPools, each)
		}
	}
	if p.Bypass != nil {
		v.Bypass = &bypass{
			Prefix: or(p.Bypass.Prefix, "/"), Header: p.Bypass.Header,
			Cluster: BypassCluster, Hosts: addresses(BypassCluster, p.Endpoints),
		}
		v.Bypass.EndpointsType = v.Bypass.Hosts.discovery()
	}
}

func newPool(p Pool, pickerCluster string) pool {
	out := pool{
		Name: p.Name, Cluster: p.Name, PickerCluster: pickerCluster,
		PickerHosts: addresses(pickerCluster, append([]string{p.Picker.Address}, p.Picker.Replicas...)), EndpointHosts: addresses(p.Name, p.Endpoints),
		TLS: p.Picker.TLS, HealthService: or(p.Picker.HealthService, defaultHealthService),
		Prefix: p.Prefix, Weight: p.Weight,
	}
	if !p.Picker.NoHealthCheck {
		out.HealthInterval = seconds(or(p.Picker.HealthInterval, defaultHealthInterval))
	}
	out.PickerType, out.EndpointsType = out.PickerHosts.discovery(), out.EndpointHosts.discovery()
	return out
}

// addresses turns validated host:port strings into a cluster's hosts.
func addresses(cluster string, all []string) hosts {
	out := hosts{Cluster: cluster}
	for _, each := range all {
		if a, err := parseAddress(each, false); err == nil {
			out.Hosts = append(out.Hosts, a)
		}
	}
	return out
}

// discovery is the cluster type for the hosts: names have to be resolved.
func (h hosts) discovery() string {
	for _, each := range h.Hosts {
		if !each.IP {
			return "STRICT_DNS"
		}
	}
	return "STATIC"
}

func listenAddress(s string) *address {
	a, err := netip.ParseAddrPort(s)
	if err != nil {
		return &address{}
	}
	return &address{Host: a.Addr().String(), Port: a.Port(), IP: true}
}

// seconds writes a duration as protobuf's JSON does.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}
