package server

import (
	"fmt"

	"github.com/sluice-epp/sluice/cache/blockhash"
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
		Hashing:         decisionlog.Hashing{Most: c.BlockHashes, BlockTokens: c.HashBlockTokens, Seed: a.hashSeedOf(c)},
		MaxPendingBytes: int64(c.MaxPendingBytes), Logger: a.logger, Registerer: a.options.Registry,
	})
	if err != nil {
		return fmt.Errorf("telemetry.decisionLog.path: %w", err)
	}
	a.keepConfig(a.current.Load())
	return nil
}

// hashSeedOf is the secret of the log's hashes: the one configured, or the process's own.
func (a *App) hashSeedOf(c *config.DecisionLog) blockhash.Seed {
	if c.HashSeed != "" {
		return blockhash.SeedOf(c.HashSeed)
	}
	return a.hashSeed
}

// keepConfig writes a configuration beside the decisions that it is about to make. Where that fails they lack it when
// somebody wants to make them again, and nothing else.
func (a *App) keepConfig(r *running) {
	if err := a.decisionLog.KeepConfig(r.hash, r.effective); err != nil {
		a.logger.Warn("decisions of this configuration can be replayed with its file only", "config_hash", r.hash, "error", err)
	}
}
