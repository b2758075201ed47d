package server

import (
	"context"
	"crypto/sha256"
	"errors"
	"sync"
	"sync/atomic"

	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/filewatch"
	"github.com/sluice-epp/sluice/server/shadow"
)

// shadowing is what a process knows of its second configuration.
type shadowing struct {
	*shadow.Shadow
	moved chan struct{} // the file has another name, or none
	ok    atomic.Bool   // the file as it stands is what decides beside
	// Changed counts the changed files that were taken over, failed those that were not.
	changed, failed atomic.Uint64

	mu  sync.Mutex // of one change of either configuration
	sum [sha256.Size]byte
}

// newShadow makes the comparison of the first configuration with a second one, if there is one.
func (a *App) newShadow() error {
	s, err := shadow.New(shadow.Options{Logger: a.logger, Registerer: a.options.Registry})
	if err != nil {
		return err
	}
	a.shadow = &shadowing{Shadow: s, moved: make(chan struct{}, 1)}
	a.shadow.ok.Store(true)
	running := a.current.Load()
	second, err := running.file.OpenShadow(a.options.Environment, Catalogue(), running.scheduler)
	if err != nil {
		return err
	}
	return a.useShadow(running, second)
}

// checkShadow finds out whether a changed configuration goes with the second one that it names, before it is built: what is built
// takes over what the one before has learnt.
func (a *App) checkShadow(file *config.File) error {
	if file.Config.Shadow.Config == "" {
		return nil
	}
	types := Catalogue()
	trial, err := file.Build(types, nil)
	if err != nil {
		return err
	}
	second, err := file.OpenShadow(a.options.Environment, types, trial)
	if err == nil {
		err = second.Scheduler.Close()
	}
	return errors.Join(err, trial.Close())
}

// followConfig has the second configuration decide beside one that has come into force. Where its file has changed to something
// else just now, that is a fault of the file.
func (a *App) followConfig(next *running, before string) {
	a.shadow.ok.Store(true)
	second, err := next.file.OpenShadow(a.options.Environment, Catalogue(), next.scheduler)
	if err != nil {
		a.shadowFailed(err)
	}
	if err := a.useShadow(next, second); err != nil {
		a.logger.Warn("closing the shadow's configuration before", "error", err)
	}
	if next.file.Config.Shadow.Config != before {
		select {
		case a.shadow.moved <- struct{}{}:
		default:
		}
	}
}

// useShadow takes a second configuration over; nil for none.
func (a *App) useShadow(beside *running, second *config.Shadowed) error {
	if second == nil {
		a.shadow.sum = [sha256.Size]byte{}
		return a.shadow.Use(nil)
	}
	a.shadow.sum = second.Sum
	a.shadow.ok.Store(true)
	for _, warning := range second.File.Warnings {
		a.logger.Warn("configuration of the shadow", "warning", warning.Error())
	}
	if warning := second.Warning(); warning != "" {
		a.logger.Warn("configuration of the shadow", "warning", warning)
	}
	return a.shadow.Use(&shadow.Second{Bridge: second.Bridge, SampleRatio: beside.file.Config.Shadow.SampleRatio, Close: second.Scheduler.Close})
}

func (a *App) shadowFailed(err error) {
	a.shadow.ok.Store(false)
	a.shadow.failed.Add(1)
	a.logger.Error("the shadow's configuration is not taken over", "error", err)
}

// followShadow follows the second configuration's file until ctx is over.
func (a *App) followShadow(ctx context.Context) {
	for ctx.Err() == nil {
		var following sync.WaitGroup
		file, stop := context.WithCancel(ctx)
		if path := a.config().Shadow.Config; path != "" {
			w := filewatch.New(path, filewatch.Options{Logger: a.logger, MaxBytes: config.MaxFileBytes})
			following.Go(func() { w.Run(file, a.shadowChanged) })
		}
		select {
		case <-a.shadow.moved:
		case <-ctx.Done():
		}
		stop()
		following.Wait()
	}
}

// shadowChanged takes the second configuration's file over as it is now. One that cannot be changes nothing.
func (a *App) shadowChanged(data []byte, err error) {
	a.shadow.mu.Lock()
	defer a.shadow.mu.Unlock()
	if err != nil {
		a.shadowFailed(err)
		return
	}
	if sha256.Sum256(data) == a.shadow.sum {
		a.shadow.ok.Store(true)
		return
	}
	running := a.current.Load()
	second, err := running.file.OpenShadow(a.options.Environment, Catalogue(), running.scheduler)
	switch {
	case err != nil:
		a.shadowFailed(err)
		return
	case second == nil: // the configuration that names it has changed meanwhile
		return
	}
	if err := a.useShadow(running, second); err != nil {
		a.logger.Warn("closing the shadow's configuration before", "error", err)
	}
	a.shadow.changed.Add(1)
	a.logger.Info("the shadow's configuration reloaded", "file", second.File.Name)
}
