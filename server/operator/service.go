// Package operator answers operators: why requests went where they went, and what is known of endpoints and caches. It is
// the service of api/sluice/scheduler/v1.
package operator

import (
	"context"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
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
}

// Service implements SchedulerService.
type Service struct {
	schedulerv1.UnimplementedSchedulerServiceServer

	config Config
	over   context.Context //nolint:containedctx // the service's own, not a call's
	end    context.CancelFunc
}

// New returns a service. It has to be closed.
func New(c Config) *Service {
	s := &Service{config: c}
	s.over, s.end = context.WithCancel(context.Background())
	return s
}

// Close ends the calls that would go on for ever.
func (s *Service) Close() { s.end() }
