// Package page is the web page of the admin port: the endpoints, the stream of decisions with their reasons, the load gate
// and the prefix indices. The server renders it whole; a script of its own keeps it fresh by server-sent events.
//
// Nothing is rendered while nobody looks, and at most once a second however many do. It shows no prompt text.
package page

import (
	"context"
	"embed"
	"html/template"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/decisions"
)

// The bounds of the page.
const (
	// MaxReaders is how many event streams are open at a time at most; one beyond is refused.
	MaxReaders = 32
	// MaxTrialBytes is the length of the longest request body that the page's form tries, in bytes.
	MaxTrialBytes = 1 << 20

	period       = time.Second      // between two states
	heartbeat    = 15 * time.Second // between two signs of life to a reader
	writeTimeout = 5 * time.Second  // for what is sent to a reader; then it is cut off
	atWork       = 4                // explanations and trials made at a time
	tryTimeout   = 10 * time.Second // for a form to come; then it is given up
)

// Explainer explains recorded decisions and tries requests.
type Explainer interface {
	Explain(ctx context.Context, r *schedulerv1.ExplainRequest) (*schedulerv1.ExplainResponse, error)
	DryRun(ctx context.Context, r *schedulerv1.DryRunRequest) (*schedulerv1.DryRunResponse, error)
}

// Knowledge is what is known of the endpoints, the caches and the configuration.
type Knowledge interface {
	ListEndpoints(ctx context.Context, r *schedulerv1.ListEndpointsRequest) (*schedulerv1.ListEndpointsResponse, error)
	GetIndexStats(ctx context.Context, r *schedulerv1.GetIndexStatsRequest) (*schedulerv1.GetIndexStatsResponse, error)
	GetConfig(ctx context.Context, r *schedulerv1.GetConfigRequest) (*schedulerv1.GetConfigResponse, error)
}

// Decisions are the newest ones; a decisions.Ring implements it.
type Decisions interface {
	Newest(look func(b decisions.Brief) (more bool))
	Get(id uint64) (e decisions.Entry, ok bool)
	Near(requestID string) []string
}

// Process is what the page says of the process.
type Process struct {
	// State is starting, ready or draining.
	State string
	// Uptime is the time since the start.
	Uptime time.Duration
	// OpenStreams is the number of requests in flight.
	OpenStreams int64
}

// Config is what a Page shows.
type Config struct {
	Explainer Explainer
	Knowledge Knowledge
	Decisions Decisions
	// Process returns the state of the process.
	Process func() Process
	// Registerer collects the page's metrics; nil for none.
	Registerer prometheus.Registerer
}

// Page is the page. It is safe for concurrent use and has to be closed.
type Page struct {
	config   Config
	live     live
	handler  http.Handler
	over     context.Context //nolint:containedctx // the page's own, not a call's
	end      context.CancelFunc
	readers  atomic.Int64
	refused  atomic.Int64
	working  chan struct{}
	reading  chan struct{} // holds a token for each form that is in memory
	patience time.Duration // for a form to come
}

//go:embed templates
var templateFiles embed.FS

// templates escape what they show by where it stands.
var templates = template.Must(template.New("").Funcs(words).ParseFS(templateFiles, "templates/*.html"))

// New returns a page.
func New(c Config) *Page {
	p := &Page{config: c, working: make(chan struct{}, atWork), reading: make(chan struct{}, atWork), patience: tryTimeout}
	p.over, p.end = context.WithCancel(context.Background())
	p.live.render = p.look
	p.live.name = instance()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /ui/{$}", p.serveOverview)
	mux.HandleFunc("GET /ui/events", p.serveEvents)
	mux.HandleFunc("GET /ui/decisions/{id}", p.serveDecision)
	mux.HandleFunc("GET /ui/lookup", p.serveLookup)
	mux.HandleFunc("GET /ui/try", p.serveTryForm)
	mux.HandleFunc("POST /ui/try", p.serveTry)
	for name, a := range assets {
		mux.HandleFunc("GET /ui/"+name, a.serve)
	}
	p.handler = guard(mux)
	p.register(c.Registerer)
	return p
}

// ServeHTTP serves what is below /ui/.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) { p.handler.ServeHTTP(w, r) }

// Close ends the event streams.
func (p *Page) Close() { p.end() }

func (p *Page) register(r prometheus.Registerer) {
	if r == nil {
		return
	}
	r.MustRegister(
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_page_readers", Help: "Browsers that follow the page of the admin port; at most 32.",
		}, func() float64 { return float64(p.readers.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_page_readers_refused_total", Help: "Event streams of the page that were refused because there were 32 already.",
		}, func() float64 { return float64(p.refused.Load()) }),
	)
}

// work runs f when few others work; it reports whether it did before ctx was over.
func (p *Page) work(ctx context.Context, f func()) bool {
	select {
	case p.working <- struct{}{}:
		defer func() { <-p.working }()
		f()
		return true
	case <-ctx.Done():
		return false
	}
}
