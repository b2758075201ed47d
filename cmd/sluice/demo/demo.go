package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/sluice-epp/sluice/deploy/envoy"
)

// modelName is the model that the simulated engines serve.
const modelName = "demo"

// bypassPrefix is the route that leaves the choice to Envoy's round robin.
const bypassPrefix = "/round-robin/"

// Options are what the demo runs with.
type Options struct {
	// Sluice is the path of the sluice binary, Envoy that of the Envoy binary.
	Sluice, Envoy string
	// Engines is the number of simulated engines, Speed how many times faster than modelled they run.
	Engines int
	Speed   float64
	// Jaeger, where not empty, is the path of a Jaeger to run too: everything then traces, and one request's trace is shown.
	Jaeger string
	// Keep leaves everything running after the summary, until ctx is over.
	Keep bool
	// Out gets the table and the summary.
	Out io.Writer
}

// demo is what runs.
type demo struct {
	o       Options
	dir     string
	client  *http.Client
	engines []*process
	sluice  *process
	envoy   *process
	jaeger  *process // nil without traces

	ports                                              []enginePorts
	sluicePort, sluiceAdmin, envoyPort, envoyAdminPort int
	tracePorts                                         tracePorts
}

// enginePorts are those of one engine: its API, its KV events, and those of the past. They stay when it is started again,
// so that Sluice finds it.
type enginePorts struct{ api, events, replay int }

// Run runs the demo. Everything that it started has ended when it returns.
func Run(ctx context.Context, o Options) (err error) {
	d := &demo{o: o, client: &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: concurrency}}}
	defer d.client.CloseIdleConnections()
	defer func() {
		if ctx.Err() != nil {
			d.say("stopping…")
		}
		d.stop()
	}()
	if d.dir, err = os.MkdirTemp("", "sluice-demo-"); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(d.dir)) }()
	if err := d.choosePorts(); err != nil {
		return err
	}
	if err := d.start(ctx); err != nil {
		return err
	}
	return d.compare(ctx)
}

// choosePorts finds ports that are free now.
func (d *demo) choosePorts() error {
	d.ports = make([]enginePorts, d.o.Engines)
	ports := []*int{&d.sluicePort, &d.sluiceAdmin, &d.envoyPort, &d.envoyAdminPort,
		&d.tracePorts.query, &d.tracePorts.queryGRPC, &d.tracePorts.otlp}
	for i := range d.ports {
		ports = append(ports, &d.ports[i].api, &d.ports[i].events, &d.ports[i].replay)
	}
	// All are held until the last is found, so that no two are the same.
	var held []net.Listener
	defer func() {
		for _, l := range held {
			_ = l.Close()
		}
	}()
	for _, p := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("looking for a free port: %w", err)
		}
		held = append(held, l)
		a, ok := l.Addr().(*net.TCPAddr)
		if !ok {
			return fmt.Errorf("listening on %v, which is not TCP", l.Addr())
		}
		*p = a.Port
	}
	return nil
}

func engineName(i int) string { return fmt.Sprintf("engine-%d", i) }

func local(port int) string { return fmt.Sprintf("127.0.0.1:%d", port) }

func (d *demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.o.Out, format+"\n", args...) }

func (d *demo) start(ctx context.Context) error {
	and := ""
	if d.o.Jaeger != "" {
		and = ", Jaeger"
	}
	d.say("starting %d simulated engines (%gx as fast as modelled on two H100), sluice serve, Envoy%s, all on loopback", d.o.Engines, d.o.Speed, and)
	if err := d.startJaeger(ctx); err != nil {
		return err
	}
	if err := d.startEngines(ctx); err != nil {
		return err
	}
	if err := d.startSluice(); err != nil {
		return err
	}
	if err := d.sluice.await(ctx, d.answers(local(d.sluiceAdmin), "/readyz")); err != nil {
		return err
	}
	return d.startEnvoy(ctx)
}

// configuration makes Sluice look at each engine's own KV events, and take each prompt's exact tokens from the engines.
const configuration = `# Sluice as the demo runs it.
apiVersion: sluice/v1alpha1
kind: EndpointPickerConfig
server: {decisionHeader: true, drainDelay: 0s}
telemetry: {logLevel: warn}
plugins:
  - type: token-producer
    parameters: {vllm: {endpoints: true}}
  - type: precise-prefix-cache-producer
`

func (d *demo) startSluice() error {
	path := filepath.Join(d.dir, "sluice.yaml")
	if err := os.WriteFile(path, []byte(configuration), 0o600); err != nil {
		return err
	}
	args := []string{"serve", "--config", path, "--listen", local(d.sluicePort), "--admin", local(d.sluiceAdmin)}
	for i, p := range d.ports {
		args = append(args, "--endpoint", local(p.api)+",name="+engineName(i))
	}
	var err error
	d.sluice, err = start("sluice serve", d.tracing("sluice"), d.o.Sluice, args...)
	return err
}

func (d *demo) startEngines(ctx context.Context) error {
	for i, ports := range d.ports {
		p, err := start(engineName(i), d.tracing(engineName(i)), d.o.Sluice, "engine", "--listen", local(ports.api), "--name", engineName(i), "--model", modelName,
			"--speed", fmt.Sprint(d.o.Speed), "--blocks", fmt.Sprint(kvBlocks), "--max-model-len", fmt.Sprint(kvBlocks*8),
			"--kv-events-port", fmt.Sprint(ports.events), "--kv-events-replay-port", fmt.Sprint(ports.replay))
		if err != nil {
			return err
		}
		d.engines = append(d.engines, p)
	}
	for i, p := range d.engines {
		if err := p.await(ctx, d.answers(local(d.ports[i].api), "/health")); err != nil {
			return err
		}
	}
	return nil
}

// restartEngines starts the engines again, with nothing in their caches.
func (d *demo) restartEngines(ctx context.Context) error {
	d.stopEngines()
	return d.startEngines(ctx)
}

func (d *demo) stopEngines() {
	for _, p := range d.engines {
		p.stop()
	}
	d.engines = nil
}

func (d *demo) startEnvoy(ctx context.Context) error {
	p := envoy.Params{
		Listen: local(d.envoyPort), Admin: local(d.envoyAdminPort),
		Picker: envoy.Picker{Address: local(d.sluicePort)},
		Bypass: &envoy.Bypass{Prefix: bypassPrefix},
	}
	if d.jaeger != nil {
		p.Tracing = &envoy.Tracing{Collector: local(d.tracePorts.otlp)}
	}
	for _, ports := range d.ports {
		p.Endpoints = append(p.Endpoints, local(ports.api))
	}
	bootstrap, err := envoy.Render(p)
	if err != nil {
		return err
	}
	path := filepath.Join(d.dir, "envoy.yaml")
	if err := os.WriteFile(path, bootstrap, 0o600); err != nil {
		return err
	}
	if d.envoy, err = start("envoy", nil, d.o.Envoy, "-c", path, "--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"); err != nil {
		return err
	}
	if err := d.envoy.await(ctx, d.answers(local(d.envoyAdminPort), "/ready")); err != nil {
		return err
	}
	// Ready is Envoy itself; the picker's health check follows within a second.
	return d.envoy.await(ctx, d.answers(local(d.envoyPort), "/v1/models"))
}

// answers returns a check that a URL answers with 200.
func (d *demo) answers(address, path string) func(context.Context) bool {
	return func(ctx context.Context) bool {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return false
		}
		res, err := d.client.Do(req)
		if err != nil {
			return false
		}
		_ = res.Body.Close()
		return res.StatusCode == http.StatusOK
	}
}

// compare plays the workload through Sluice and then, on cold engines, round robin, and says what came of it.
func (d *demo) compare(ctx context.Context) error {
	d.say("\n%d conversations of %d turns, %d at a time; %d tenants share their system prompts; KV cache of %d tokens per engine\n",
		conversations, turns, concurrency, tenants, kvBlocks*16)
	sluice, traced, err := d.half(ctx, "through Sluice", "")
	if err != nil {
		return err
	}
	if err := d.restartEngines(ctx); err != nil {
		return err
	}
	roundRobin, _, err := d.half(ctx, "round robin (same Envoy, ext_proc off, engines restarted cold)", bypassPrefix[:len(bypassPrefix)-1])
	if err != nil {
		return err
	}
	printSummary(d.o.Out, sluice, roundRobin)
	if err := d.showTrace(ctx, traced); err != nil {
		return err
	}
	last := fmt.Sprintf("demo: requests=%d hit_rate=%.2f hit_rate_round_robin=%.2f ttft_ms=%d ttft_ms_round_robin=%d predicted_exactly=%.2f",
		sluice.requests, sluice.hitRate, roundRobin.hitRate, ms(sluice.mean), ms(roundRobin.mean), sluice.exactly())
	if d.o.Keep {
		d.printLines()
	}
	d.say("%s", last)
	if d.o.Keep {
		<-ctx.Done()
	}
	return nil
}

// half plays the workload once; traced is the request whose trace is worth a look.
func (d *demo) half(ctx context.Context, title, prefix string) (s summary, traced result, err error) {
	d.say("── %s", title)
	t := &table{w: d.o.Out, started: time.Now()}
	t.head()
	h := &half{client: d.client, url: "http://" + local(d.envoyPort) + prefix, show: t.row, traces: d.jaeger != nil}
	results, err := h.run(ctx)
	if err != nil {
		return summary{}, result{}, err
	}
	return summarise(results), mostCached(results), nil
}

// nearby is a path as it is written from the folder that the demo runs in, where it is below that.
func nearby(path string) string {
	if here, err := os.Getwd(); err == nil {
		if relative, err := filepath.Rel(here, path); err == nil && filepath.IsLocal(relative) && filepath.Base(relative) != relative {
			return relative
		}
	}
	return path
}

// printLines says what to try while everything keeps running.
func (d *demo) printLines() {
	d.say("everything keeps running until Ctrl-C. Why did the requests go where they went?\n")
	sluice := nearby(d.o.Sluice)
	d.say("%s explain --admin %s", sluice, local(d.sluiceAdmin))
	d.say("%s top --admin %s", sluice, local(d.sluiceAdmin))
	d.say("http://%s/ in a browser", local(d.sluiceAdmin))
	d.say("\nSend more, and look inside:\n")
	d.say(`curl -i http://%s/v1/chat/completions -H 'content-type: application/json' -d '{"model":"%s","max_tokens":8,"messages":[{"role":"user","content":"Where does the river go?"}]}'`, local(d.envoyPort), modelName)
	d.say("curl http://%s/endpoints", local(d.sluiceAdmin))
	d.say("curl -s http://%s/metrics | grep ^sluice_", local(d.sluiceAdmin))
	d.say("curl 'http://%s/stats?filter=ext_proc'", local(d.envoyAdminPort))
	if d.jaeger != nil {
		d.say("curl 'http://%s/api/traces?service=sluice&limit=1'", local(d.tracePorts.query))
	}
	grpcurl := "grpcurl -plaintext"
	if _, err := exec.LookPath("grpcurl"); err != nil {
		grpcurl = "$(make -s grpcurl) -plaintext" // in the repository's folder
	}
	d.say("%s %s list", grpcurl, local(d.sluicePort))
	d.say("%s %s grpc.health.v1.Health/Check", grpcurl, local(d.sluicePort))
	d.say("%s -d '{\"requestHeaders\":{\"endOfStream\":true}}' %s envoy.service.ext_proc.v3.ExternalProcessor/Process", grpcurl, local(d.sluicePort))
	d.say("")
}

// stop ends everything, Envoy first: nothing must run into what is gone.
func (d *demo) stop() {
	for _, p := range []*process{d.envoy, d.sluice} {
		if p != nil {
			p.stop()
		}
	}
	d.stopEngines()
	if d.jaeger != nil {
		d.jaeger.stop() // last: the others send it their spans as they end
	}
}
