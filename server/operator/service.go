// Package operator answers operators: why requests went where they went, and what is known of endpoints and caches. It is
// the service of api/sluice/scheduler/v1.
package operator

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/load/metrics"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/decisions"
	"github.com/sluice-epp/sluice/server/extproc"
)

// Config is what a Service asks.
type Config struct {
	// Decisions are the newest ones.
	Decisions *decisions.Ring
	// DryRun decides about a request that is on no stream; see extproc.Server.
	DryRun func(ctx context.Context, d extproc.Draft, look func(*scheduling.Cycle)) error
	// Streams lists the open streams; see extproc.Server.
	Streams func(limit int) (open []extproc.OpenStream, left int)
	// Pool gives the endpoints, and Engines what their engines say.
	Pool    *scheduling.Pool
	Engines *metrics.Store
	// Scheduler returns the scheduler in force.
	Scheduler func() *scheduling.Scheduler
	// Now is the monotonic clock that Engines has.
	Now func() time.Duration
	// Running returns the configuration in force.
	Running func() Running
	// State says whether the process wants requests; nil where that is not known.
	State func() schedulerv1.ProcessState
	// Level is the log level; nil where it cannot be changed.
	Level *slog.LevelVar
	// Drain begins to drain the process; openStreams is what it waits for, gracePeriod how long at most.
	Drain func() (openStreams int64, gracePeriod time.Duration)
	// Logger is told of what operators change.
	Logger *slog.Logger
}

// Service implements SchedulerService.
type Service struct {
	schedulerv1.UnimplementedSchedulerServiceServer

	config         Config
	working        chan struct{} // holds a token for each Explain at work
	tails, refused atomic.Int64
	over           context.Context //nolint:containedctx // the service's own, not a call's
	end            context.CancelFunc
}

// New returns a service. It has to be closed.
func New(c Config) *Service {
	s := &Service{config: c, working: make(chan struct{}, explaining)}
	if s.config.Logger == nil {
		s.config.Logger = slog.New(slog.DiscardHandler)
	}
	s.over, s.end = context.WithCancel(context.Background())
	return s
}

// Close ends the calls that would go on for ever.
func (s *Service) Close() { s.end() }
