package server

import (
	"fmt"

	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// openDecisionLog begins to write decisions to files, where that is configured.
func (a *App) openDecisionLog(c *config.DecisionLog) (err error) {
	if c.Path == "" {
		return nil
	}
	a.decisionLog, err = decisionlog.Open(decisionlog.Options{
		Folder: c.Path, Format: decisionlog.Format(c.Format), SampleRatio: c.SampleRatio,
		MaxFileBytes: int64(c.MaxFileBytes), RotateInterval: c.RotateInterval, MaxFiles: c.MaxFiles,
		MaxPendingBytes: int64(c.MaxPendingBytes), Logger: a.logger, Registerer: a.options.Registry,
	})
	if err != nil {
		return fmt.Errorf("telemetry.decisionLog.path: %w", err)
	}
	return nil
}
