package server

import (
	"context"
	"os"
	"time"

	"google.golang.org/grpc"

	"github.com/sluice-epp/sluice/server/config"
)

// drain takes the process out of service without a failed request: readiness goes first, so that proxies look
// elsewhere; what still comes meanwhile is served; then open streams get their time.
func (a *App) drain(failed context.Context, force <-chan struct{}) {
	cfg := a.config().Server
	a.turn(false)
	a.logger.Info("draining", "open_streams", a.extproc.OpenStreams(), "delay", cfg.DrainDelay.String(), "timeout", cfg.DrainTimeout.String())
	if failed.Err() == nil {
		wait(cfg.DrainDelay, force)
	}
	a.health.endWatches()
	graceful := make(chan struct{})
	go func() {
		defer close(graceful)
		a.grpc.GracefulStop()
	}()
	timeout := time.NewTimer(cfg.DrainTimeout)
	defer timeout.Stop()
	select {
	case <-graceful:
	case <-timeout.C:
		a.logger.Warn("drainTimeout is over, cutting what is left", "open_streams", a.extproc.OpenStreams())
	case <-force:
		a.logger.Warn("forced to stop, cutting what is left", "open_streams", a.extproc.OpenStreams())
	}
	a.grpc.Stop()
	<-graceful
	stopServer(a.probe)
	// The admin port goes last, so that the drain can be watched.
	a.stopAdmin()
}

// adminFarewell is how long the answers that the admin port is giving get to end.
const adminFarewell = time.Second

// stopAdmin ends what would go on for ever, lets answers be sent (one may be to who asked for the end), and cuts the rest.
func (a *App) stopAdmin() {
	a.operator.Close()
	a.page.Close()
	ctx, cancel := context.WithTimeout(context.Background(), adminFarewell)
	defer cancel()
	if err := a.admin.Shutdown(ctx); err != nil {
		a.logger.Debug("ending the admin server", "error", err)
	}
	if err := a.admin.Close(); err != nil {
		a.logger.Debug("closing the admin server", "error", err)
	}
	a.adminGRPC.Stop()
}

// turn says that the process wants requests, or that it drains and wants none any more: whatever the start still learns,
// it never turns back.
func (a *App) turn(ready bool) {
	a.turning.Lock()
	defer a.turning.Unlock()
	if a.draining {
		return
	}
	a.draining = !ready
	a.ready.Store(ready)
	setReady(a.health, ready)
}

func stopServer(s *grpc.Server) {
	if s != nil {
		s.Stop()
	}
}

// wait waits for d, or less when force is closed.
func wait(d time.Duration, force <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-force:
	}
}

// gracePeriodVariable tells the process what its supervisor allows between SIGTERM and SIGKILL, as a Go duration.
const gracePeriodVariable = "TERMINATION_GRACE_PERIOD"

// warnGracePeriod says at the start, rather than at the first kill, that a drain would be cut short.
func (a *App) warnGracePeriod(s *config.Server) {
	v := os.Getenv(gracePeriodVariable)
	if v == "" {
		return
	}
	grace, err := time.ParseDuration(v)
	if err != nil {
		a.logger.Warn(gracePeriodVariable+" is not a duration such as 30s", "value", v)
		return
	}
	if drain := s.DrainDelay + s.DrainTimeout; drain > grace {
		a.logger.Warn("drainDelay and drainTimeout together are longer than the grace period: streams would be cut",
			"drain", drain.String(), "grace_period", grace.String())
	}
}
