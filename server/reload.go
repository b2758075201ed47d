package server

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/certs"
	"github.com/sluice-epp/sluice/server/config"
)

// override is what the command line changes in a file.
func (a *App) override(c *config.Config) {
	if a.options.Override != nil {
		a.options.Override(c)
	}
}

// running describes a file whose scheduler was built.
func (a *App) running(file *config.File, scheduler *scheduling.Scheduler, waiting []config.Waiting) *running {
	return &running{file: file, scheduler: scheduler, effective: file.Effective(a.types), hash: scheduler.ConfigHash(), waiting: waiting, since: time.Now()}
}

// adopt puts a configuration in force.
func (a *App) adopt(next *running) {
	next.unwatch = a.pool.Watch(next.scheduler.SnapshotChanged)
	before := a.current.Swap(next)
	if a.decisionLog != nil {
		a.decisionLog.SetSampleRatio(next.file.Config.Telemetry.DecisionLog.SampleRatio)
		a.keepConfig(next)
	}
	name := next.file.Config.Telemetry.LogLevel
	// What an operator has set since stays until the file says something else than it did.
	if a.options.Level != nil && (before == nil || before.file.Config.Telemetry.LogLevel != name) {
		var level slog.Level
		if err := level.UnmarshalText([]byte(name)); err == nil { // the file was validated
			a.options.Level.Set(level)
		}
	}
}

// apply builds a changed configuration beside the one in force and swaps them. On an error the one in force stays.
// Requests in flight end under the configuration that picked for them.
func (a *App) apply(file *config.File) error {
	before := a.current.Load()
	a.override(&file.Config)
	waiting := file.KeepStarted(&a.started)
	a.shadow.mu.Lock()
	defer a.shadow.mu.Unlock()
	if err := a.checkShadow(file); err != nil {
		return err
	}
	scheduler, err := file.Build(a.types, before.scheduler)
	if err != nil {
		return err
	}
	next := a.running(file, scheduler, waiting)
	a.adopt(next)
	before.unwatch()
	a.followConfig(next, before.file.Config.Shadow.Config)
	select {
	case a.reloaded <- struct{}{}:
	default: // one signal is pending already
	}
	a.warnWaiting(waiting)
	if err := before.scheduler.Close(); err != nil {
		a.logger.Warn("closing the configuration before", "error", err)
	}
	return nil
}

// Reload reads the configuration file again soon, changed or not. Without a file it does nothing.
func (a *App) Reload() {
	if a.watcher != nil {
		a.watcher.Reload()
	}
}

// warnWaiting says which keys of the file wait for a restart.
func (a *App) warnWaiting(waiting []config.Waiting) {
	if len(waiting) == 0 {
		return
	}
	keys := make([]string, len(waiting))
	for i, w := range waiting {
		keys[i] = w.Key
	}
	a.logger.Warn("what the file says of these keys takes effect at the next start only", "keys", strings.Join(keys, ", "))
}

// certificates decides how the gRPC listener is secured; nil means plaintext.
func (a *App) certificates(s *config.Server) (*certs.Keeper, error) {
	mode := s.TLS.Mode
	if mode == config.TLSAuto {
		switch {
		case s.TLS.CertFile != "":
			mode = config.TLSFiles
		case loopback(s.Listen):
			mode = config.TLSPlaintext
		default:
			mode = config.TLSSelfSigned
		}
	}
	return a.keeperOf("server.tls", mode, certs.Files{Cert: s.TLS.CertFile, Key: s.TLS.KeyFile, ClientCA: s.TLS.ClientCAFile})
}

// adminCertificates decides how the admin listener is secured; nil means plaintext.
func (a *App) adminCertificates(s *config.Server) (*certs.Keeper, error) {
	mode := s.AdminTLS.Mode
	if mode == config.TLSAuto {
		mode = config.TLSPlaintext
		if s.AdminTLS.CertFile != "" {
			mode = config.TLSFiles
		}
	}
	return a.keeperOf("server.adminTLS", mode, certs.Files{Cert: s.AdminTLS.CertFile, Key: s.AdminTLS.KeyFile, ClientCA: s.AdminTLS.ClientCAFile})
}

func (a *App) keeperOf(key string, mode config.TLSMode, files certs.Files) (*certs.Keeper, error) {
	switch mode {
	case config.TLSPlaintext:
		return nil, nil //nolint:nilnil // no keeper is the documented meaning of plaintext
	case config.TLSSelfSigned:
		if files.ClientCA != "" {
			return nil, errors.New(key + ".clientCAFile: needs certFile and keyFile")
		}
		return certs.SelfSigned()
	case config.TLSFiles:
		k, err := certs.Load(files, a.logger)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
		return k, nil
	default:
		return nil, fmt.Errorf("%s.mode: unknown mode %q", key, mode)
	}
}
