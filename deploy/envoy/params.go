// Package envoy renders the bootstrap of an Envoy that asks Sluice for an endpoint: the listener, the ext_proc filter, the
// picker's cluster, and the cluster that dials what was picked. `sluice attach envoy` prints it, the demo runs it, and the
// tests against a real Envoy start from it.
package envoy

import "time"

// Header and metadata names of the endpoint picker protocol.
const (
	// DestinationKey is the request header and the key in the metadata namespace envoy.lb that carry the pick.
	DestinationKey = "x-gateway-destination-endpoint"
	// ServedKey is the key in envoy.lb under which Envoy reports the endpoint that served.
	ServedKey = "x-gateway-destination-endpoint-served"
	// SubsetKey is the key in envoy.lb.subset_hint that restricts the pick.
	SubsetKey = "x-gateway-destination-endpoint-subset"
)

// Names of the clusters, which are also part of the names of Envoy's statistics.
const (
	// PickerCluster is the cluster of the main pool's picker; that of another pool is its name followed by "-picker".
	PickerCluster = "endpoint-picker"
	// PoolCluster is the main pool's name, and so its cluster's; another pool's cluster has the pool's name.
	PoolCluster = "inference-pool"
	// BypassCluster is the cluster of the route that does not ask the picker.
	BypassCluster = "round-robin"
	// CollectorCluster is the cluster of the collector that spans go to.
	CollectorCluster = "trace-collector"
)

// BodyMode is an ext_proc body processing mode.
type BodyMode string

// The body modes. The empty value means FullDuplexStreamed.
const (
	BodyNone           BodyMode = "NONE"
	Buffered           BodyMode = "BUFFERED"
	BufferedPartial    BodyMode = "BUFFERED_PARTIAL"
	Streamed           BodyMode = "STREAMED"
	FullDuplexStreamed BodyMode = "FULL_DUPLEX_STREAMED"
)

// HeaderMode is an ext_proc mode for headers or trailers.
type HeaderMode string

// The header modes. The empty value means Send.
const (
	Send HeaderMode = "SEND"
	Skip HeaderMode = "SKIP"
)

// PoolType says how Envoy dials the picked endpoint.
type PoolType string

// The pool types. The empty value means OriginalDst.
const (
	// OriginalDst dials the picked address, whatever it is; the endpoints need not be listed. It takes one address.
	OriginalDst PoolType = "ORIGINAL_DST"
	// OverrideHost chooses among listed endpoints, takes an ordered list, and reports which endpoint served.
	OverrideHost PoolType = "OVERRIDE_HOST"
)

// PickSource says where Envoy reads the pick from. Sluice always sends both.
type PickSource string

// The sources. The empty value means FromHeader.
const (
	FromHeader   PickSource = "header"
	FromMetadata PickSource = "metadata"
)

// Params describe a bootstrap. The zero value of a field means the default that its comment gives; Listen and
// Picker.Address have none.
type Params struct {
	// Listen is the address of the HTTP listener, host:port with an IP; port 0 lets Envoy choose.
	Listen string
	// Admin is the address of the admin port, as Listen. Empty: no admin port.
	Admin string

	// Picker is the ext_proc server of the main pool.
	Picker Picker
	// PoolType is OriginalDst unless set; it holds for every pool.
	PoolType PoolType
	// Source is FromHeader unless set.
	Source PickSource
	// Endpoints are the main pool's host:port addresses. OverrideHost needs them, and so does Bypass.
	Endpoints []string
	// Weight is the main pool's share of the requests that no prefix claims, where other pools have one.
	Weight uint32
	// Pools are further pools, each with a picker of its own.
	Pools []Pool
	// Bypass adds a route that takes the endpoints in turn without asking the picker.
	Bypass *Bypass

	// RequestBody and ResponseBody are FullDuplexStreamed unless set.
	RequestBody, ResponseBody BodyMode
	// ResponseHeaders, RequestTrailers and ResponseTrailers are Send unless set. Request headers are always sent.
	ResponseHeaders, RequestTrailers, ResponseTrailers HeaderMode
	// Observability lets the picker watch only: its answers are ignored. Bodies must then be Streamed or BodyNone.
	Observability bool
	// SendBodyEarly sends a Streamed body without waiting for the answer to the headers.
	SendBodyEarly bool
	// AllowModeOverride lets the picker change the modes of a stream.
	AllowModeOverride bool
	// AllowContentLength keeps a content-length that the picker sets.
	AllowContentLength bool
	// MessageTimeout is how long Envoy waits for an answer outside full-duplex directions; 5 s unless set.
	MessageTimeout time.Duration
	// MaxMessageTimeout bounds what the picker may extend MessageTimeout to. 0: it may not.
	MaxMessageTimeout time.Duration
	// FailureModeAllow lets requests pass unpicked where the picker cannot be reached.
	FailureModeAllow bool

	// DropTrailers leaves HTTP/1.1 trailers off, Envoy's own default.
	DropTrailers bool
	// BufferLimitBytes bounds what a connection buffers; 64 MiB in the buffered request modes and 1 MiB otherwise unless set.
	BufferLimitBytes uint32
	// Retries is how often a failed request is sent again.
	Retries uint32
	// RetryOn lists Envoy's retry conditions; failures before an engine began, and 503, unless set.
	RetryOn string
	// RetryBodyLimitBytes is the largest body that can be sent again; 64 MiB unless set.
	RetryBodyLimitBytes uint64
	// HideDestination removes the pick's header before the request goes upstream. It needs Source FromMetadata.
	HideDestination bool
	// HTTP2Upstream speaks HTTP/2 in plain text to the endpoints.
	HTTP2Upstream bool

	// Subset is a fixed subset hint sent with each request. nil: no hint; empty: a hint that allows none.
	Subset []string
	// SubsetHeader names a request header that holds a subset hint, endpoints separated by commas. Empty: none.
	SubsetHeader string
	// AccessLog writes a JSON line a request to standard output.
	AccessLog bool
	// Tracing makes Envoy trace. nil: it does not, and hands the client's traceparent on.
	Tracing *Tracing
}

// Tracing says where Envoy's spans go. A client's traceparent is joined, and its decision whether to record kept.
type Tracing struct {
	// Collector is the host:port of a collector that speaks OTLP over gRPC in plain text.
	Collector string
	// Service is the service's name in traces; "envoy" unless set.
	Service string
	// Percent is the share of the requests without a traceparent that are recorded; 100 unless set.
	Percent float64
}

// Picker is an ext_proc server as Envoy sees it.
type Picker struct {
	// Address is host:port; the host is an IP or a DNS name.
	Address string
	// Replicas are the addresses of further servers that answer alike, as Address. Envoy asks those that are healthy in turn.
	Replicas []string
	// TLS is how Envoy speaks to it. nil: plain text.
	TLS *TLS
	// HealthService is the gRPC health service to ask for; that of ext_proc unless set.
	HealthService string
	// HealthInterval is the time between health checks; 1 s unless set.
	HealthInterval time.Duration
	// NoHealthCheck leaves the health checks out.
	NoHealthCheck bool
}

// TLS is Envoy's side of the connection to a picker. The zero value encrypts and trusts any certificate.
type TLS struct {
	// CAFile is the path, on Envoy's machine, of the CA that the picker's certificate must chain to. Empty: any certificate.
	CAFile string
	// ServerName is sent as SNI and, with CAFile, must be a DNS name of the certificate.
	ServerName string
	// CertFile and KeyFile are the paths of Envoy's own certificate and key. Empty: none.
	CertFile, KeyFile string
}

// Pool is a pool of endpoints beside the main one. It gets requests by Prefix or by Weight, not both.
type Pool struct {
	// Name names its cluster, and with "-picker" its picker's.
	Name string
	// Picker is its ext_proc server.
	Picker Picker
	// Endpoints are its host:port addresses, needed by OverrideHost.
	Endpoints []string
	// Prefix is the path prefix of its requests, such as /chat/.
	Prefix string
	// Weight is its share of the requests that no prefix claims.
	Weight uint32
}

// Bypass matches the requests that take the endpoints in turn: by path prefix, by the presence of a header, or both.
type Bypass struct {
	// Prefix is a path prefix that is cut off before the request goes upstream, such as /round-robin/.
	Prefix string
	// Header is the name of a request header.
	Header string
}
