// Package config reads the configuration file: strict YAML in the shape that the field already writes
// (EndpointPickerConfig), with the sections of the server itself beside it. It reports every fault with file, line,
// column, path and the nearest valid name, and turns the plugins into what package scheduling builds from.
package config

import (
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/discovery/kube"
)

// Config holds the sections of the file that configure the server rather than the decision. Every key may be absent;
// the defaults are those of defaultConfig.
type Config struct {
	// Server configures the listeners and the limits of the ext_proc server.
	Server Server `yaml:"server" reload:"restart"`
	// Endpoints are the engines, for example "10.0.0.5:8000", "10.0.0.5:8000-8003" (data-parallel ranks),
	// "vllm.internal:8000" (every address of a name) or "srv+_http._tcp.vllm.internal". Those of every source count.
	Endpoints []string `yaml:"endpoints"`
	// EndpointsFile is the path of a YAML file that lists the engines, watched for changes. A relative path is relative to
	// the working directory.
	EndpointsFile string `yaml:"endpointsFile"`
	// DNS configures the look-ups of endpoints that are names.
	DNS DNS `yaml:"dns"`
	// Kubernetes names what is followed in Kubernetes: an InferencePool, the pods of a selector, or a Service.
	Kubernetes Kubernetes `yaml:"kubernetes"`
	// Telemetry configures logs and metric labels.
	Telemetry Telemetry `yaml:"telemetry"`
	// Shadow scores live traffic with a second configuration, whose agreement is exported and nothing else.
	Shadow Shadow `yaml:"shadow"`
}

// Shadow scores live traffic with a second configuration: its filters, scorers and picker decide every request again, after the
// pick, on what this configuration's producers found. Only how often both agree is exported.
type Shadow struct {
	// Config is the path of the second configuration file, followed for changes as this one is; empty means none. Of that file the
	// plugins and the profile count. A relative path is relative to the working directory.
	Config string `yaml:"config"`
	// SampleRatio is the share of decisions that are compared, 0 to 1.
	SampleRatio float64 `yaml:"sampleRatio" range:"0..1"`
}

// Server configures the listeners and the limits of the ext_proc server.
type Server struct {
	// Listen is the address of the gRPC listener that Envoy connects to, "host:port"; an empty host means all addresses.
	Listen string `yaml:"listen" form:"address"`
	// AdminListen is the address of the admin listener: metrics, effective configuration, debugging. It is loopback unless
	// set otherwise, since whoever reaches it sees the endpoints.
	AdminListen string `yaml:"adminListen" form:"address"`
	// HealthListen is the address of a listener of its own for the gRPC health service, in plaintext, for probes that speak
	// no TLS; empty means that health is served on listen alone.
	HealthListen string `yaml:"healthListen" form:"address"`
	// TLS configures the gRPC listener's certificates.
	TLS TLS `yaml:"tls"`
	// AdminTLS configures the admin listener's certificates.
	AdminTLS AdminTLS `yaml:"adminTLS"`
	// MaxRequestBodyBytes is the largest request body, in bytes or with a unit such as 64MiB; a larger one is answered
	// with 413.
	MaxRequestBodyBytes scheduling.Size `yaml:"maxRequestBodyBytes" range:"1KiB..1GiB"`
	// MaxOpenStreams is how many requests are served at a time, their responses included; further ones are answered with
	// 429.
	MaxOpenStreams int `yaml:"maxOpenStreams" range:"1..1048576"`
	// MaxBufferedBytes is how much the requests being served hold together: their bodies until they are answered, their
	// headers, and 20 KiB for each; further ones are answered with 429. 0 means a quarter of the memory that the process may
	// use: GOMEMLIMIT, else its control group's limit, else the machine's. One body may take half of it, whatever
	// MaxRequestBodyBytes says.
	MaxBufferedBytes scheduling.Size `yaml:"maxBufferedBytes" range:"0|1MiB..1024GiB"`
	// MaxRequestHeaders is how many headers a request may have; more are answered with 431.
	MaxRequestHeaders int `yaml:"maxRequestHeaders" range:"16..65536"`
	// MaxRequestHeaderBytes is how large a request's headers may be, names and values together; larger ones are answered
	// with 431.
	MaxRequestHeaderBytes scheduling.Size `yaml:"maxRequestHeaderBytes" range:"4KiB..16MiB"`
	// MaxBodyNesting is how many levels deep a JSON body is read. What is deeper is passed over, and the rest is read.
	MaxBodyNesting int `yaml:"maxBodyNesting" range:"8..512"`
	// MaxEventBytes is how much of one server-sent event of an answer is read. The rest passes unread, up to the next event.
	MaxEventBytes scheduling.Size `yaml:"maxEventBytes" range:"4KiB..1GiB"`
	// MaxEndpointsInPick is the length of the ordered list of endpoints that Envoy is given: the pick and its fallbacks.
	MaxEndpointsInPick int `yaml:"maxEndpointsInPick" range:"1..16" reload:"live"`
	// PickTimeout is the longest time from the opening of a stream to its pick, the upload of the body included.
	PickTimeout time.Duration `yaml:"pickTimeout" range:"10ms..1h"`
	// ProduceTimeout bounds the look-ups that come before a decision; what is not known by then counts as unknown.
	ProduceTimeout time.Duration `yaml:"produceTimeout" range:"1ms..1m"`
	// IdleTimeout releases the charge of a request on whose stream nothing has come for so long; the stream itself goes on.
	IdleTimeout time.Duration `yaml:"idleTimeout" range:"1s..24h"`
	// EndStream says when the stream of a request ends: after its response (afterResponse); after the first token
	// (afterFirstToken), which saves a message per chunk and loses usage and end; or after the pick (afterPick), which loses
	// the first token's time, the status and who served, too. What is lost is estimated. Where the response body comes in mode
	// FULL_DUPLEX_STREAMED streams never end early, since Envoy would lose pieces of it.
	EndStream EndStream `yaml:"endStream" oneof:"afterResponse afterFirstToken afterPick"`
	// DecisionHeader adds the response header x-sluice-decision, which says which endpoint was picked and why, in a few words.
	DecisionHeader bool `yaml:"decisionHeader"`
	// DrainDelay is the time from SIGTERM, at which health turns NOT_SERVING, to the moment at which new streams are
	// refused: what the proxies need to notice.
	DrainDelay time.Duration `yaml:"drainDelay" range:"0s..10m" reload:"live"`
	// DrainTimeout is the longest time that open streams get to end after drainDelay.
	DrainTimeout time.Duration `yaml:"drainTimeout" range:"0s..1h" reload:"live"`
}

// LargestBody is the largest request body where the requests being served may hold so much together: half of it. A larger
// one could never be served beside others, and is told so rather than to come again.
func LargestBody(maxBuffered scheduling.Size) scheduling.Size { return maxBuffered / 2 }

// EndStream says when streams end.
type EndStream string

// The values of Server.EndStream.
const (
	EndAfterResponse   EndStream = "afterResponse"
	EndAfterFirstToken EndStream = "afterFirstToken"
	EndAfterPick       EndStream = "afterPick"
)

// TLS configures the gRPC listener's certificates.
type TLS struct {
	// Mode is one of: auto (files where they are given, else plaintext on a loopback address and a self-signed certificate
	// elsewhere), plaintext, selfSigned, files.
	Mode TLSMode `yaml:"mode" oneof:"auto plaintext selfSigned files"`
	// CertFile is the path of the certificate chain in PEM; it is read again when it changes.
	CertFile string `yaml:"certFile"`
	// KeyFile is the path of the private key in PEM.
	KeyFile string `yaml:"keyFile"`
	// ClientCAFile is the path of the certificates, in PEM, of which one must have signed the client's certificate; empty
	// asks clients for none.
	ClientCAFile string `yaml:"clientCAFile"`
}

// AdminTLS configures the admin listener's certificates.
type AdminTLS struct {
	// Mode is one of: auto (files where they are given, else plaintext), plaintext, selfSigned, files.
	Mode TLSMode `yaml:"mode" oneof:"auto plaintext selfSigned files"`
	// CertFile is the path of the certificate chain in PEM; it is read again when it changes.
	CertFile string `yaml:"certFile"`
	// KeyFile is the path of the private key in PEM.
	KeyFile string `yaml:"keyFile"`
	// ClientCAFile is the path of the certificates, in PEM, of which one must have signed the client's certificate; empty
	// asks clients for none. Who is not on the same machine may change the log level and drain with such a certificate only.
	ClientCAFile string `yaml:"clientCAFile"`
}

// TLSMode says where a listener's certificate comes from.
type TLSMode string

// The values of TLS.Mode and AdminTLS.Mode.
const (
	TLSAuto       TLSMode = "auto"
	TLSPlaintext  TLSMode = "plaintext"
	TLSSelfSigned TLSMode = "selfSigned"
	TLSFiles      TLSMode = "files"
)

// DNS configures the look-ups of endpoints that are names.
type DNS struct {
	// Interval is the time between two look-ups of a name.
	Interval time.Duration `yaml:"interval" range:"1s..1h"`
	// EmptyGrace is how long a name must be answered with nothing before its endpoints are removed.
	EmptyGrace time.Duration `yaml:"emptyGrace" range:"0s..1h"`
}

// Telemetry configures logs and metric labels.
type Telemetry struct {
	// LogLevel is the least severe level that is logged.
	LogLevel string `yaml:"logLevel" oneof:"debug info warn error"`
	// ModelLabels are the model names that keep a metric label of their own however many names clients send.
	ModelLabels []string `yaml:"modelLabels" reload:"restart"`
	// MaxModelLabels is how many other model names get a metric label of their own, once an engine has answered for them;
	// further ones count as "other".
	MaxModelLabels int `yaml:"maxModelLabels" range:"1..100000" reload:"restart"`
	// MaxDecisionBytes is the memory for the newest decisions, which can be explained and watched: about 2, 9 and 67 KB each at
	// 8, 64 and 512 endpoints. At least 16 and at most 4,096 are kept.
	MaxDecisionBytes scheduling.Size `yaml:"maxDecisionBytes" range:"1MiB..64GiB" reload:"restart"`
	// DecisionLog configures the files that decisions are written to.
	DecisionLog DecisionLog `yaml:"decisionLog" reload:"restart"`
}

// DecisionLog configures the files that decisions are written to, one row for each when its request has ended.
type DecisionLog struct {
	// Path is the folder of the files, made where it is missing; empty means that no decision is written. A relative path is
	// relative to the working directory.
	Path string `yaml:"path"`
	// Format is one of: jsonl (JSON lines, which can be read while they are written and after a crash), parquet (Apache
	// Parquet: a twentieth of the size, and read only once a file is finished).
	Format DecisionFormat `yaml:"format" oneof:"jsonl parquet"`
	// SampleRatio is the share of requests whose decisions are written, 0 to 1. Which ones follows from the requests' internal
	// ids, so that the sample of a run can be made again.
	SampleRatio float64 `yaml:"sampleRatio" range:"0..1" reload:"live"`
	// MaxFileBytes is the size at which a file is finished and the next one begun.
	MaxFileBytes scheduling.Size `yaml:"maxFileBytes" range:"1MiB..16GiB"`
	// RotateInterval is the age at which a file is finished; the next one is begun by the next row.
	RotateInterval time.Duration `yaml:"rotateInterval" range:"1s..168h"`
	// MaxFiles is how many files are kept, the one being written included; the oldest are deleted. With MaxFileBytes it bounds
	// the room on disk.
	MaxFiles int `yaml:"maxFiles" range:"2..100000"`
	// BlockHashes is how many hashes of the prompt's leading blocks a row holds at most, so that the log can be simulated as a
	// trace; 0 means none. They are seeded with a secret and tell which prompts begin alike, not what they say. With them rows
	// hold a hash of the header x-session-id too.
	BlockHashes int `yaml:"blockHashes" range:"0..65536"`
	// HashBlockTokens is the size of a hashed block in tokens; where only text is known, a block is four times as many bytes.
	HashBlockTokens int `yaml:"hashBlockTokens" range:"16..4096"`
	// HashSeed is the secret that these hashes are seeded with: hashes of processes with the same secret compare. Without one it
	// is drawn at every start.
	HashSeed string `yaml:"hashSeed" secret:"true"`
	// MaxPendingBytes is the memory for decisions that are not written yet. Once three quarters are taken, further ones are
	// written without their outcome, once all is taken they are left out.
	MaxPendingBytes scheduling.Size `yaml:"maxPendingBytes" range:"1MiB..64GiB"`
}

// DecisionFormat is how decisions are written.
type DecisionFormat string

// The values of DecisionLog.Format.
const (
	DecisionsAsJSONLines DecisionFormat = "jsonl"
	DecisionsAsParquet   DecisionFormat = "parquet"
)

// Kubernetes names what is followed in Kubernetes: one of pool, selector and service. Its endpoints count beside those of endpoints
// and endpointsFile.
type Kubernetes struct {
	// Pool is an InferencePool (inference.networking.k8s.io/v1), "namespace/name" or "name": the pods that it selects, at its
	// target ports.
	Pool string `yaml:"pool"`
	// Selector is a label selector for pods, as kubectl's --selector; targetPorts are their ports.
	Selector string `yaml:"selector"`
	// Service is a Service, "namespace/name" or "name", whose EndpointSlices are followed; it may be headless.
	Service string `yaml:"service"`
	// Namespace is that of selector, and of a name without one; empty means that of the kubeconfig's context, in a pod the pod's own.
	Namespace string `yaml:"namespace"`
	// TargetPorts are ports or ranges, for example "8000" or "8000-8003": several are data-parallel ranks, in this order. For a
	// service they are those that count; none means all.
	TargetPorts []string `yaml:"targetPorts"`
	// Kubeconfig is the path of a kubeconfig file; empty means what kubectl takes, in a pod its service account.
	Kubeconfig string `yaml:"kubeconfig"`
}

// Options are those of the source that follows it.
func (k *Kubernetes) Options() kube.Options {
	return kube.Options{
		Pool: k.Pool, Selector: k.Selector, Service: k.Service, Namespace: k.Namespace, TargetPorts: k.TargetPorts, Kubeconfig: k.Kubeconfig,
	}
}

// defaultConfig is what a file that sets nothing means.
func defaultConfig() Config {
	return Config{
		Server: Server{
			Listen:                ":9002",
			AdminListen:           "127.0.0.1:9090",
			TLS:                   TLS{Mode: TLSAuto},
			AdminTLS:              AdminTLS{Mode: TLSAuto},
			MaxRequestBodyBytes:   64 << 20,
			MaxOpenStreams:        1 << 16,
			MaxRequestHeaders:     512,
			MaxRequestHeaderBytes: 256 << 10,
			MaxBodyNesting:        512,
			MaxEventBytes:         16 << 20,
			MaxEndpointsInPick:    1,
			PickTimeout:           30 * time.Second,
			ProduceTimeout:        150 * time.Millisecond,
			IdleTimeout:           15 * time.Minute,
			EndStream:             EndAfterResponse,
			DrainDelay:            5 * time.Second,
			DrainTimeout:          30 * time.Second,
		},
		Shadow: Shadow{SampleRatio: 1},
		DNS:    DNS{Interval: 5 * time.Second, EmptyGrace: 30 * time.Second},
		Telemetry: Telemetry{
			LogLevel: "info", MaxModelLabels: 1000, MaxDecisionBytes: 64 << 20,
			DecisionLog: DecisionLog{
				Format: DecisionsAsJSONLines, SampleRatio: 1, MaxFileBytes: 64 << 20, RotateInterval: time.Hour, MaxFiles: 48, MaxPendingBytes: 64 << 20,
				HashBlockTokens: 64,
			},
		},
	}
}
