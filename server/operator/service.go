// Package operator answers operators: why requests went where they went, and what is known of endpoints and caches. It is
// the service of api/sluice/scheduler/v1.
package operator

import (
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/decisions"
)

// Config is what a Service asks.
type Config struct {
	// Decisions are the newest ones.
	Decisions *decisions.Ring
}

// Service implements SchedulerService.
type Service struct {
	schedulerv1.UnimplementedSchedulerServiceServer

	config Config
}

// New returns a service.
func New(c Config) *Service { return &Service{config: c} }
