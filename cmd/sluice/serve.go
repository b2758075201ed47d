package main

import (
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/telemetry"
)

// ServeCommand serves Envoy.
type ServeCommand struct {
	Config             string         `help:"Configuration file. Without one, a built-in configuration runs (see 'sluice config default')." type:"path" placeholder:"FILE"`
	Endpoint           []string       `help:"An engine, host:port; may be repeated. Ports as in 10.0.0.5:8000-8003 are data-parallel ranks; settings follow a comma, as in 10.0.0.5:8000,name=vllm-0. Replaces the file's endpoints." placeholder:"HOST:PORT" sep:"none"`
	EndpointsFile      string         `help:"A YAML file that lists the engines, watched for changes. Replaces the file's endpointsFile." type:"path" placeholder:"FILE"`
	Pool               string         `help:"An InferencePool to follow in Kubernetes, with the pods that it selects." placeholder:"[NAMESPACE/]NAME"`
	Selector           string         `help:"Follow the pods in Kubernetes that match a label selector, as app=vllm,role!=prefill. Needs --target-port." placeholder:"SELECTOR"`
	Service            string         `help:"Follow the EndpointSlices of a Service in Kubernetes." placeholder:"[NAMESPACE/]NAME"`
	TargetPort         []string       `help:"Port of --selector's pods, or the one of --service's that counts; may be repeated, and be a range as 8000-8003: data-parallel ranks." placeholder:"PORT"`
	Namespace          string         `help:"Namespace of what is followed in Kubernetes (default: that of the kubeconfig's context, in a pod the pod's own)." placeholder:"NAMESPACE"`
	Kubeconfig         string         `help:"How the Kubernetes API server is reached (default: what kubectl takes, in a pod its service account)." type:"path" placeholder:"FILE"`
	Listen             string         `help:"Address that Envoy connects to (default :9002). Loopback is plaintext, anything else self-signed TLS, unless configured." placeholder:"HOST:PORT"`
	Admin              string         `aliases:"admin-listen" help:"Address of metrics and debugging (default 127.0.0.1:9090)." placeholder:"HOST:PORT"`
	Plaintext          bool           `help:"Serve Envoy without TLS, wherever it listens."`
	LogLevel           string         `help:"debug, info, warn or error (default info)." placeholder:"LEVEL"`
	DecisionLog        string         `help:"Folder to write decisions to, a row each (see telemetry.decisionLog)." type:"path" placeholder:"FOLDER"`
	DecisionHeader     bool           `help:"Say in a response header (x-sluice-decision) which endpoint was picked and why."`
	MaxEndpointsInPick *int           `help:"Length of the ordered list that Envoy is given: the pick and its fallbacks (default 1). For retries, one more than their number." placeholder:"N"`
	DrainDelay         *time.Duration `help:"Time from SIGTERM to refusing new streams (default 5s)." placeholder:"DURATION"`
	ConformanceTests   bool           `help:"Obey the request headers of the endpoint picker protocol's conformance tests. Never in production."`
}

// Help is shown below the usage.
func (*ServeCommand) Help() string {
	return `Flags win over the file. Example, with fallbacks for the two retries of 'sluice attach envoy --override-host --retries 2':

  sluice serve --listen 127.0.0.1:9002 --endpoint 10.0.0.5:8000 --endpoint 10.0.0.6:8000 --max-endpoints-in-pick 3

In Kubernetes, the first with the InferencePool's custom resource and the second without:

  sluice serve --pool demo/vllm
  sluice serve --namespace demo --selector app=vllm --target-port 8000`
}

// flagNames are the flags that set keys of the configuration, by path.
var flagNames = map[string]string{
	"endpoints": "--endpoint", "endpointsFile": "--endpoints-file", "server.listen": "--listen", "server.adminListen": "--admin",
	"kubernetes.pool": "--pool", "kubernetes.selector": "--selector", "kubernetes.service": "--service", "kubernetes.namespace": "--namespace",
	"kubernetes.targetPorts": "--target-port", "kubernetes.kubeconfig": "--kubeconfig", "telemetry.logLevel": "--log-level", "server.maxEndpointsInPick": "--max-endpoints-in-pick", "server.drainDelay": "--drain-delay",
}

// Validate judges the flags as if they stood in a file.
func (s *ServeCommand) Validate() error { return config.CheckOverride(s.override, flagNames) }

// Run serves until interrupted.
func (s *ServeCommand) Run(i *interrupts) error {
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // before the file is read: a reload in that moment must not end the process
	defer signal.Stop(hangups)
	level := &slog.LevelVar{}
	logger := telemetry.NewLogger(os.Stderr, level, 20, time.Second)
	app, err := server.New(i, server.Options{
		ConfigPath:  s.Config,
		Environment: os.LookupEnv,
		Override:    s.override,
		Logger:      logger,
		Level:       level,
		Registry:    prometheus.NewRegistry(),
		Version:     versionString(),
		Conformance: s.ConformanceTests,
	})
	if err != nil {
		return fmt.Errorf("cannot start:\n%w", err)
	}
	go func() {
		for range hangups {
			app.Reload()
		}
	}()
	return app.Run(i, i.force)
}

// override lets flags win over the file.
func (s *ServeCommand) override(c *config.Config) {
	s.overrideEndpoints(c)
	setNonZero(&c.Server.Listen, s.Listen)
	setNonZero(&c.Server.AdminListen, s.Admin)
	setNonZero(&c.Telemetry.LogLevel, s.LogLevel)
	setNonZero(&c.Telemetry.DecisionLog.Path, s.DecisionLog)
	if s.Plaintext {
		c.Server.TLS = config.TLS{Mode: config.TLSPlaintext}
	}
	if s.DecisionHeader {
		c.Server.DecisionHeader = true
	}
	if s.DrainDelay != nil {
		c.Server.DrainDelay = *s.DrainDelay
	}
	if s.MaxEndpointsInPick != nil {
		c.Server.MaxEndpointsInPick = *s.MaxEndpointsInPick
	}
}

// overrideEndpoints lets flags that say where endpoints come from take the place of all that the file says of that.
func (s *ServeCommand) overrideEndpoints(c *config.Config) {
	if len(s.Endpoint) > 0 || s.EndpointsFile != "" || s.Pool != "" || s.Selector != "" || s.Service != "" {
		c.Endpoints, c.EndpointsFile = s.Endpoint, s.EndpointsFile
		c.Kubernetes = config.Kubernetes{
			Pool: s.Pool, Selector: s.Selector, Service: s.Service, Namespace: c.Kubernetes.Namespace, Kubeconfig: c.Kubernetes.Kubeconfig,
		}
	}
	if len(s.TargetPort) > 0 {
		c.Kubernetes.TargetPorts = s.TargetPort
	}
	setNonZero(&c.Kubernetes.Namespace, s.Namespace)
	setNonZero(&c.Kubernetes.Kubeconfig, s.Kubeconfig)
}

func setNonZero(to *string, v string) {
	if v != "" {
		*to = v
	}
}
