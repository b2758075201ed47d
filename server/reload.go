package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/certs"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/filewatch"
)

// reloads counts configuration reloads.
type reloads struct {
	succeeded, failed atomic.Int64
	lastFailed        atomic.Bool
}

// build reads the configuration file and builds its scheduler; previous is the scheduler in force, or nil.
func (a *App) build(previous *scheduling.Scheduler) (*running, error) {
	file, sum, err := a.readConfig()
	if err != nil {
		return nil, err
	}
	if a.options.Override != nil {
		a.options.Override(&file.Config)
	}
	scheduler, err := file.Build(a.types, previous)
	if err != nil {
		return nil, err
	}
	for _, w := range file.Warnings {
		a.logger.Warn("configuration", "warning", w.Error())
	}
	return &running{file: file, sum: sum, scheduler: scheduler, effective: file.Effective(a.types), hash: file.Hash(a.types)}, nil
}

// maxConfigBytes bounds a configuration file.
const maxConfigBytes = 1 << 20

func (a *App) readConfig() (*config.File, [sha256.Size]byte, error) {
	if a.options.ConfigPath == "" {
		file, err := config.Default()
		return file, [sha256.Size]byte{}, err
	}
	data, err := filewatch.Read(a.options.ConfigPath, maxConfigBytes)
	if err != nil {
		return nil, [sha256.Size]byte{}, err
	}
	file, err := config.Parse(a.options.ConfigPath, data, a.options.Environment)
	return file, sha256.Sum256(data), err
}

// adopt puts a configuration in force.
func (a *App) adopt(next *running) {
	next.unwatch = a.pool.Watch(next.scheduler.SnapshotChanged)
	a.current.Store(next)
	if a.options.Level != nil {
		var level slog.Level
		if err := level.UnmarshalText([]byte(next.file.Config.Telemetry.LogLevel)); err == nil { // the file was validated
			a.options.Level.Set(level)
		}
	}
}

// Reload reads the configuration file again, builds it beside the one in force and swaps them. On an error the one in
// force stays. Requests in flight end under the configuration that picked for them.
func (a *App) Reload() error {
	before := a.current.Load()
	next, err := a.build(before.scheduler)
	if err != nil {
		a.refuse(err)
		return err
	}
	a.adopt(next)
	before.unwatch()
	a.reloads.succeeded.Add(1)
	a.reloads.lastFailed.Store(false)
	select {
	case a.reloaded <- struct{}{}:
	default: // one signal is pending already
	}
	a.logger.Info("configuration reloaded", "config_hash", next.hash, "before", before.hash)
	a.warnNeedsRestart(&before.file.Config.Server, &next.file.Config.Server)
	if err := before.scheduler.Close(); err != nil {
		a.logger.Warn("closing the configuration before", "error", err)
	}
	return nil
}

func (a *App) refuse(err error) {
	a.reloads.failed.Add(1)
	a.reloads.lastFailed.Store(true)
	a.logger.Error("changed configuration refused: the one before stays in force", "error", err)
}

// warnNeedsRestart says which change waits for a restart.
func (a *App) warnNeedsRestart(before, next *config.Server) {
	b, n := *before, *next
	// These are read anew whenever they are needed.
	b.DrainDelay, b.DrainTimeout, b.MaxEndpointsInPick = n.DrainDelay, n.DrainTimeout, n.MaxEndpointsInPick
	if b != n {
		a.logger.Warn("a change in the server section (listeners, TLS, limits) takes effect at the next start only")
	}
}

// watchConfig reloads the configuration file when it changes.
func (a *App) watchConfig(ctx context.Context) error {
	if a.options.ConfigPath == "" {
		return nil
	}
	filewatch.New(a.options.ConfigPath, filewatch.Options{Logger: a.logger}).Run(ctx, func(data []byte, err error) {
		if err != nil {
			a.refuse(err)
			return
		}
		if sha256.Sum256(data) == a.current.Load().sum {
			a.reloads.lastFailed.Store(false) // what is in force is what the file says, perhaps again
			return
		}
		_ = a.Reload() // counted and logged there
	})
	return nil
}

// certificates decides how the gRPC listener is secured; nil means plaintext.
func (a *App) certificates(s *config.Server) (*certs.Keeper, error) {
	files := certs.Files{Cert: s.TLS.CertFile, Key: s.TLS.KeyFile, ClientCA: s.TLS.ClientCAFile}
	mode := s.TLS.Mode
	if mode == config.TLSAuto {
		switch {
		case files.Cert != "":
			mode = config.TLSFiles
		case loopback(s.Listen):
			mode = config.TLSPlaintext
		default:
			mode = config.TLSSelfSigned
		}
	}
	switch mode {
	case config.TLSPlaintext:
		return nil, nil //nolint:nilnil // no keeper is the documented meaning of plaintext
	case config.TLSSelfSigned:
		if files.ClientCA != "" {
			return nil, errors.New("server.tls.clientCAFile: needs certFile and keyFile")
		}
		return certs.SelfSigned()
	case config.TLSFiles:
		k, err := certs.Load(files, a.logger)
		if err != nil {
			return nil, fmt.Errorf("server.tls: %w", err)
		}
		return k, nil
	default:
		return nil, fmt.Errorf("server.tls.mode: unknown mode %q", mode)
	}
}
