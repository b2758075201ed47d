//go:build linux

package chaos

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/server/telemetry"
	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
)

const (
	roleEngine = "engine"
	roleSluice = "sluice"
)

// engineArgs say what an engine process serves.
type engineArgs struct {
	Name, Listen, Events, Replay string
	Speed                        float64
	Blocks                       int
	Record                       string // path of what it notes of each request
}

// runEngine serves until it is killed or told to go.
func runEngine(args []byte) error {
	var a engineArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	out, err := os.OpenFile(a.Record, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	p := &tap{out: out}
	s, err := engine.New(engine.Config{
		Listen: a.Listen, Name: a.Name, Speed: a.Speed, Params: sim.Params{NumBlocks: a.Blocks},
		KVEvents: &engine.KVEvents{Listen: a.Events, Replay: a.Replay},
		Wrap:     p.wrap,
	})
	if err != nil {
		return err
	}
	p.server = s
	told := make(chan os.Signal, 1)
	signal.Notify(told, syscall.SIGTERM, os.Interrupt)
	if err := s.Start(); err != nil {
		return err
	}
	<-told
	return s.Close()
}

// sluiceArgs are the flags of a Sluice process.
type sluiceArgs struct{ Config, Listen, Admin string }

// flags are those of `sluice serve`.
func (a sluiceArgs) flags() []string {
	return []string{"serve", "--config", a.Config, "--listen", a.Listen, "--admin", a.Admin}
}

// runSluice is what `sluice serve` does: a first signal drains, a second ends at once, SIGHUP reads the file again.
func runSluice(args []byte) error {
	var a sluiceArgs
	if err := json.Unmarshal(args, &a); err != nil {
		return err
	}
	if _, _, err := net.SplitHostPort(a.Listen); err != nil {
		return err
	}
	signals, hangups := make(chan os.Signal, 2), make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, os.Interrupt)
	signal.Notify(hangups, syscall.SIGHUP)
	ctx, cancel := signalled(signals)
	defer cancel()
	level := &slog.LevelVar{}
	app, err := server.New(ctx, server.Options{
		ConfigPath: a.Config, Environment: os.LookupEnv, Level: level,
		Logger:   telemetry.NewLogger(os.Stderr, level, 20, time.Second),
		Registry: prometheus.NewRegistry(),
		Override: func(c *config.Config) { c.Server.Listen, c.Server.AdminListen = a.Listen, a.Admin },
	})
	if err != nil {
		return fmt.Errorf("cannot start: %w", err)
	}
	go func() {
		for range hangups {
			app.Reload()
		}
	}()
	return app.Run(ctx, ctx.force)
}
