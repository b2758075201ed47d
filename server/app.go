// Package server is the Sluice process: it opens the listeners, finds the endpoints, serves Envoy and drains.
package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/load/ledger"
	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/certs"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
	"github.com/sluice-epp/sluice/server/decisions"
	"github.com/sluice-epp/sluice/server/discovery"
	"github.com/sluice-epp/sluice/server/extproc"
	"github.com/sluice-epp/sluice/server/operator"
	adminpage "github.com/sluice-epp/sluice/server/page"
	"github.com/sluice-epp/sluice/server/telemetry"
	"github.com/sluice-epp/sluice/server/transport"
)

// Options are what a process is started with.
type Options struct {
	// ConfigPath is the configuration file; empty for the built-in configuration.
	ConfigPath string
	// Environment looks up ${NAME} references of the file; nil for none.
	Environment func(string) (string, bool)
	// Override changes the server's sections after the file was read, at the start and at every reload: command-line
	// flags win over the file.
	Override func(*config.Config)
	// Logger gets what an operator should know; Level, where not nil, is what the file's logLevel sets.
	Logger *slog.Logger
	Level  *slog.LevelVar
	// Registry collects the metrics.
	Registry *prometheus.Registry
	// Version is shown in metrics.
	Version string
	// Conformance turns the request headers of the protocol's conformance tests on. Never in production.
	Conformance bool
}

// App is a Sluice process. New opens its listeners, Run serves.
type App struct {
	options     Options
	logger      *slog.Logger
	start       time.Time
	types       []scheduling.PluginType
	hashSeed    blockhash.Seed // of whatever has none configured
	pool        *scheduling.Pool
	started     config.Config // the first, whose listeners and limits are in force until the end
	current     atomic.Pointer[running]
	watcher     *config.Watcher // nil without a file
	reloaded    chan struct{}   // a configuration was adopted after the first
	metrics     *telemetry.Metrics
	tracing     *telemetry.Tracing
	stats       *discovery.Stats
	finder      *finder       // the first; Run runs it
	keeper      *certs.Keeper // nil: plaintext
	extproc     *extproc.Server
	engines     *metrics.Store
	decisions   *decisions.Ring
	decisionLog *decisionlog.Log // nil where none is written
	shadow      *shadowing
	operator    *operator.Service
	page        *adminpage.Page
	adminGRPC   *grpc.Server
	adminKeeper *certs.Keeper // nil: plaintext
	asking      sync.Once     // guards the closing of asked: an operator wants the end
	asked       chan struct{}
	limits      limits
	grpc        *grpc.Server
	health      *healthServer
	probe       *grpc.Server // health and reflection, in plaintext; nil without healthListen
	admin       *http.Server
	channelz    func()
	ready       atomic.Bool
	turning     sync.Mutex // of ready and health, which change together
	draining    bool       // under turning

	grpcListener, adminListener, probeListener net.Listener
}

// running is one configuration in force.
type running struct {
	file      *config.File
	scheduler *scheduling.Scheduler
	effective string
	hash      string
	waiting   []config.Waiting // what the file says otherwise and waits for a restart
	since     time.Time
	unwatch   func()
}

// New reads the configuration, builds everything and opens the listeners. Every fault of the configuration is in the
// error.
func New(ctx context.Context, o Options) (*App, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Registry == nil {
		o.Registry = prometheus.NewRegistry()
	}
	a := &App{options: o, logger: o.Logger, start: time.Now(), pool: scheduling.NewPool(), stats: &discovery.Stats{}, hashSeed: blockhash.NewSeed(),
		reloaded: make(chan struct{}, 1), asked: make(chan struct{})}
	a.engines = metrics.NewStore(metrics.Options{Now: a.now, Logger: o.Logger, Registerer: o.Registry})
	a.types = Plugins(Environment{
		Now: a.now, Logger: o.Logger, Registerer: o.Registry, Engines: a.engines, HashSeed: a.hashSeed,
	})
	file, scheduler, err := config.Open(o.ConfigPath, o.Environment, a.types, a.override)
	if err != nil {
		return nil, err
	}
	a.started = file.Config
	a.adopt(a.running(file, scheduler, nil))
	a.engines.OnCacheLost(a.tellCacheLost)
	for _, w := range file.Warnings {
		a.logger.Warn("configuration", "warning", w.Error())
	}
	if o.ConfigPath != "" {
		a.watcher = config.NewWatcher(file, o.Environment, a.apply, config.WatchOptions{Logger: o.Logger})
	}
	if err := a.assemble(ctx); err != nil {
		return nil, errors.Join(file.Redact(err), a.closeAll(ctx))
	}
	return a, nil
}

// now is the process's monotonic clock.
func (a *App) now() time.Duration { return time.Since(a.start) }

func (a *App) config() *config.Config { return &a.current.Load().file.Config }

// assemble makes the servers around the first configuration.
func (a *App) assemble(ctx context.Context) (err error) {
	cfg := a.config()
	if a.tracing, err = telemetry.NewTracing(ctx, "sluice", a.logger); err != nil {
		return err
	}
	a.metrics = telemetry.NewMetrics(a.options.Registry, cfg.Telemetry.MaxModelLabels, cfg.Telemetry.ModelLabels...)
	a.metrics.Expect(extproc.Kinds()...)
	a.limits = a.boundMemory(&cfg.Server)
	if err := a.openDecisionLog(&cfg.Telemetry.DecisionLog); err != nil {
		return err
	}
	if err := a.newShadow(); err != nil {
		return err
	}
	a.extproc = extproc.New(extproc.Config{
		Pool:                  a.pool,
		Scheduler:             func() *scheduling.Scheduler { return a.current.Load().scheduler },
		Now:                   a.now,
		Hold:                  a.hold,
		MaxRequestBodyBytes:   a.limits.body,
		MaxOpenStreams:        cfg.Server.MaxOpenStreams,
		MaxBufferedBytes:      a.limits.buffered,
		MaxRequestHeaders:     cfg.Server.MaxRequestHeaders,
		MaxRequestHeaderBytes: int(cfg.Server.MaxRequestHeaderBytes),
		MaxBodyNesting:        cfg.Server.MaxBodyNesting,
		MaxEventBytes:         int(cfg.Server.MaxEventBytes),
		PickTimeout:           cfg.Server.PickTimeout,
		ProduceTimeout:        cfg.Server.ProduceTimeout,
		IdleTimeout:           cfg.Server.IdleTimeout,
		Models:                cfg.Telemetry.ModelLabels,
		EndStream:             endStreams[cfg.Server.EndStream],
		DecisionHeader:        cfg.Server.DecisionHeader,
		ConformanceHeaders:    a.options.Conformance,
		Observer:              a.observer(),
		Tracer:                a.tracing.Tracer(),
		FollowTraces:          a.tracing.FollowsCallers(),
		Logger:                a.logger,
	})
	if a.keeper, err = a.certificates(&cfg.Server); err != nil {
		return err
	}
	if a.adminKeeper, err = a.adminCertificates(&cfg.Server); err != nil {
		return err
	}
	if a.finder, err = a.newFinder(listingOf(cfg)); err != nil { // before anything is bound
		return err
	}
	if err := a.listen(&cfg.Server); err != nil {
		return err
	}
	if err := a.servers(a.limits.body); err != nil {
		return err
	}
	a.pool.Watch(a.forgetEndpoints())
	a.registerGauges()
	a.warnGracePeriod(&cfg.Server)
	if following := cfg.Kubernetes.Options(); len(cfg.Endpoints) == 0 && cfg.EndpointsFile == "" && !following.Set() {
		a.logger.Warn("no endpoints are configured: every request is answered with 503; list engines with --endpoint, endpoints or endpointsFile, " +
			"or follow them in Kubernetes with --pool, --selector or --service")
	}
	return nil
}

// endStreams are the moments at which streams end, as configuration names them.
var endStreams = map[config.EndStream]extproc.EndStream{
	config.EndAfterResponse: extproc.EndAfterResponse, config.EndAfterFirstToken: extproc.EndAfterFirstToken,
	config.EndAfterPick: extproc.EndAfterPick,
}

// hold predicts, with the ledger's constants, when a request whose response will not be seen is over.
func (a *App) hold(f *scheduling.Flight) (firstToken, done time.Duration) {
	for _, l := range ledgers(f.Scheduler()) {
		return l.Hold(f, ledger.DefaultRates())
	}
	return 0, 0
}

func (a *App) listen(s *config.Server) (err error) {
	if a.grpcListener, err = net.Listen("tcp", s.Listen); err != nil {
		return fmt.Errorf("server.listen: %w", err)
	}
	if a.adminListener, err = net.Listen("tcp", s.AdminListen); err != nil {
		return fmt.Errorf("server.adminListen: %w", err)
	}
	if s.HealthListen == "" {
		return nil
	}
	if a.probeListener, err = net.Listen("tcp", s.HealthListen); err != nil {
		return fmt.Errorf("server.healthListen: %w", err)
	}
	return nil
}

func (a *App) servers(maxBody int) (err error) {
	a.health = newHealth()
	if a.keeper != nil {
		a.grpc = transport.NewServer(a.keeper.Config("h2"), maxBody)
	} else {
		a.grpc = transport.NewServer(nil, maxBody)
	}
	extprocv3.RegisterExternalProcessorServer(a.grpc, a.extproc)
	healthv1.RegisterHealthServer(a.grpc, a.health)
	if a.channelz, err = registerDebugging(a.grpc); err != nil {
		return fmt.Errorf("channelz: %w", err)
	}
	if a.probeListener != nil {
		a.probe = grpc.NewServer()
		healthv1.RegisterHealthServer(a.probe, a.health)
		reflection.Register(a.probe)
	}
	a.newOperator()
	a.admin = newHTTPServer(withGRPC(a.adminGRPC, a.adminHandler(a.options.Registry), trialTimeout), a.adminKeeper, a.logger)
	return nil
}

// Addr is the address of the gRPC listener, AdminAddr that of the admin listener.
func (a *App) Addr() net.Addr { return a.grpcListener.Addr() }

// AdminAddr is the address of the admin listener.
func (a *App) AdminAddr() net.Addr { return a.adminListener.Addr() }

// HealthAddr is the address of the plaintext health listener; nil where there is none.
func (a *App) HealthAddr() net.Addr {
	if a.probeListener == nil {
		return nil
	}
	return a.probeListener.Addr()
}

// Ready reports whether the process wants requests.
func (a *App) Ready() bool { return a.ready.Load() }

// Pool is the process's set of endpoints.
func (a *App) Pool() *scheduling.Pool { return a.pool }

// Run serves until ctx is over, then drains: health says NOT_SERVING at once, new streams are served for drainDelay
// more, and open ones get drainTimeout to end. When force is closed the process stops without waiting. Run may be
// called once.
func (a *App) Run(ctx context.Context, force <-chan struct{}) error {
	if a.limits.goLimit > 0 {
		debug.SetMemoryLimit(a.limits.goLimit)
	}
	background, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	g, failed := errgroup.WithContext(background)
	g.Go(func() error { return a.serveGRPC(a.grpc, a.grpcListener) })
	g.Go(func() error { return a.serveHTTP() })
	if a.probe != nil {
		g.Go(func() error { return a.serveGRPC(a.probe, a.probeListener) })
	}
	for _, k := range []*certs.Keeper{a.keeper, a.adminKeeper} {
		if k != nil {
			g.Go(func() error { k.Run(background, certificateRecheck); return nil })
		}
	}
	g.Go(func() error { return a.discover(background) })
	if a.watcher != nil {
		g.Go(func() error { a.watcher.Run(background); return nil })
	}
	g.Go(func() error { a.followShadow(background); return nil })
	a.logger.Info("serving", a.described()...)
	select {
	case <-ctx.Done():
	case <-a.asked:
		a.logger.Warn("asked to drain over the admin port")
	case <-failed.Done():
	}
	a.drain(failed, force)
	stop()
	err := g.Wait()
	return errors.Join(err, a.closeAll(context.WithoutCancel(ctx)))
}

// described is what the start log says of the process.
func (a *App) described() []any {
	running := a.current.Load()
	all := []any{
		"grpc", a.Addr().String(), "admin", a.AdminAddr().String(), "tls", a.keeper != nil, "admin_tls", a.adminKeeper != nil,
		"config", running.file.Name, "config_hash", running.hash,
	}
	if l := a.started.Telemetry.DecisionLog; a.decisionLog != nil {
		all = append(all, "decision_log", l.Path, "decision_log_format", string(l.Format))
	}
	if c := a.config().Shadow.Config; c != "" {
		all = append(all, "shadow", c)
	}
	if e := a.tracing.Exporter(); e != "" {
		all = append(all, "trace_exporter", e)
	}
	return all
}

// certificateRecheck is how often the certificate files are looked at even without an event: what is written into the
// directory behind a symbolic link makes none, and an expired certificate stops everything.
const certificateRecheck = 2 * time.Second

func (a *App) serveGRPC(s *grpc.Server, l net.Listener) error {
	if err := s.Serve(l); err != nil && !errors.Is(err, grpc.ErrServerStopped) {
		return fmt.Errorf("gRPC server: %w", err)
	}
	return nil
}

func (a *App) serveHTTP() error {
	serve := a.admin.Serve
	if a.adminKeeper != nil {
		serve = func(l net.Listener) error { return a.admin.ServeTLS(l, "", "") }
	}
	if err := serve(a.adminListener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("admin server: %w", err)
	}
	return nil
}

// closeAll frees what New and Run made; it may be called on an App that is only half made.
func (a *App) closeAll(ctx context.Context) error {
	var errs []error
	if a.operator != nil {
		a.operator.Close()
		a.page.Close()
		a.adminGRPC.Stop()
	}
	if a.extproc != nil {
		a.extproc.Close()
	}
	if a.decisionLog != nil { // the last ends are told
		a.decisionLog.Close()
	}
	if a.shadow != nil {
		errs = append(errs, a.shadow.Close())
	}
	for _, l := range []net.Listener{a.grpcListener, a.adminListener, a.probeListener} {
		if l != nil {
			if err := l.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
				errs = append(errs, err)
			}
		}
	}
	if a.channelz != nil {
		a.channelz()
	}
	if r := a.current.Load(); r != nil {
		r.unwatch()
		errs = append(errs, r.scheduler.Close())
	}
	if a.tracing != nil {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		errs = append(errs, a.tracing.Close(ctx))
	}
	return errors.Join(errs...)
}
