package server

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/pprof"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/certs"
	"github.com/sluice-epp/sluice/server/page"
)

// adminIndex is what the admin port shows at its root.
const adminIndex = `sluice admin
/ui/            the page, for browsers: endpoints, decisions and why, the load gate
/metrics        Prometheus metrics
/config         the effective configuration, secrets redacted, and its hash
/graph          the plugins in the order in which they run
/endpoints      the endpoints and what is in flight on them, as JSON
/healthz        200 while the process lives
/readyz         200 while it wants requests, else 503
/debug/pprof/   Go profiles
gRPC            sluice.scheduler.v1.SchedulerService on this port, with reflection: sluice explain, sluice top, grpcurl
`

// adminHandler serves the admin port. What probes and scrapes ask for is served under any name, the rest under names alone that
// no other site can have: a browser would otherwise read it for a site that points its name here.
func (a *App) adminHandler(gatherer prometheus.Gatherer) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(gatherer, promhttp.HandlerOpts{EnableOpenMetrics: true}))
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { text(w, "ok\n") })
	mux.HandleFunc("GET /readyz", func(w http.ResponseWriter, _ *http.Request) {
		if !a.Ready() {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		text(w, "ready\n")
	})
	mux.Handle("/ui/", a.page)
	mux.Handle("/", page.OwnName(a.inside()))
	return mux
}

// inside is what the admin port tells of the inside of the process.
func (a *App) inside() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Vary", "Accept")
		if strings.Contains(r.Header.Get("Accept"), "text/html") { // a browser
			http.Redirect(w, r, "/ui/", http.StatusSeeOther)
			return
		}
		text(w, adminIndex)
	})
	mux.HandleFunc("GET /index.txt", func(w http.ResponseWriter, _ *http.Request) { text(w, adminIndex) })
	mux.HandleFunc("GET /config", func(w http.ResponseWriter, _ *http.Request) {
		r := a.current.Load()
		text(w, "# config_hash: "+r.hash+"\n")
		for _, k := range r.waiting {
			text(w, "# waits for a restart: "+k.Key+": "+k.Value+"\n")
		}
		text(w, r.effective)
	})
	mux.HandleFunc("GET /graph", func(w http.ResponseWriter, _ *http.Request) {
		for _, line := range a.current.Load().scheduler.Describe() {
			text(w, line+"\n")
		}
	})
	mux.HandleFunc("GET /endpoints", a.serveEndpoints)
	mux.HandleFunc("/debug/pprof/", pprof.Index)
	mux.HandleFunc("/debug/pprof/cmdline", pprof.Cmdline)
	mux.HandleFunc("/debug/pprof/profile", pprof.Profile)
	mux.HandleFunc("/debug/pprof/symbol", pprof.Symbol)
	mux.HandleFunc("/debug/pprof/trace", pprof.Trace)
	return mux
}

func text(w http.ResponseWriter, s string) {
	if _, err := fmt.Fprint(w, s); err != nil {
		return // the reader has gone
	}
}

type endpointView struct {
	Address    string            `json:"address"`
	Name       string            `json:"name,omitempty"`
	State      string            `json:"state"`
	Generation uint64            `json:"generation"`
	Labels     map[string]string `json:"labels,omitempty"`
	Requests   int64             `json:"in_flight_requests"`
	Tokens     int64             `json:"in_flight_tokens"`
	Decoding   int64             `json:"decoding_requests"`
}

func (a *App) serveEndpoints(w http.ResponseWriter, _ *http.Request) {
	views := []endpointView{}
	scheduler := a.current.Load().scheduler
	for _, e := range a.pool.Snapshot().Endpoints {
		if e == nil {
			continue
		}
		v := endpointView{Address: e.Address, Name: e.Name, State: e.State.String(), Generation: e.Generation, Labels: e.Labels}
		load := inFlight(scheduler, e)
		v.Requests, v.Tokens, v.Decoding = load.Requests, load.Tokens, load.Decoding
		views = append(views, v)
	}
	w.Header().Set("content-type", "application/json")
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(views); err != nil {
		a.logger.Debug("writing the endpoints", "error", err)
	}
}

// inFlight is the load of an endpoint in the scheduler's ledger.
func inFlight(s *scheduling.Scheduler, e *scheduling.Endpoint) scheduling.InFlightLoad {
	for _, l := range ledgers(s) {
		if load, ok := l.Load(e.Ordinal, e.Generation); ok {
			return load
		}
	}
	return scheduling.InFlightLoad{}
}

// newHTTPServer bounds what a client of the admin port can hold open.
func newHTTPServer(h http.Handler, keeper *certs.Keeper, logger *slog.Logger) *http.Server {
	s := &http.Server{Handler: h, ErrorLog: slog.NewLogLogger(logger.With("listener", "admin port").Handler(), slog.LevelWarn), ReadHeaderTimeout: 10 * time.Second, IdleTimeout: 2 * time.Minute, Protocols: &http.Protocols{}}
	s.Protocols.SetHTTP1(true)
	s.Protocols.SetHTTP2(true)
	s.Protocols.SetUnencryptedHTTP2(true) // gRPC over loopback
	if keeper != nil {
		s.TLSConfig = keeper.Config("h2", "http/1.1")
	}
	return s
}
