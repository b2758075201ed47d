package simulate

import (
	"log/slog"
	"path/filepath"

	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/precise"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server"
	"github.com/sluice-epp/sluice/server/config"
	"github.com/sluice-epp/sluice/sim/fleet"
)

// contenders is how many configurations and policies there are: they are numbered from 0, configurations first.
func (p *Plan) contenders() int { return len(p.Configs) + len(p.Policies) }

// contender is what a configuration or policy is called.
func (p *Plan) contender(number int) string {
	if number >= len(p.Configs) {
		return p.Policies[number-len(p.Configs)].Label()
	}
	return configName(p.Configs[number])
}

func configName(path string) string {
	if path == "" {
		return "built-in"
	}
	return filepath.Base(path)
}

// newPicker is a picker, as a configuration or policy describes it, which sees a fleet.
func (p *Plan) newPicker(v *fleet.View, contender int) (fleet.Picker, error) {
	if contender < len(p.Configs) {
		_, s, err := config.Open(p.Configs[contender], nil, plugins(v))
		if err != nil {
			return nil, err
		}
		return fleet.NewScheduled(v, s), nil
	}
	open := func(name string, text []byte, lookup func(string) (string, bool), more []scheduling.PluginType) (*scheduling.Scheduler, error) {
		f, err := config.Parse(name, text, lookup)
		if err != nil {
			return nil, err
		}
		return f.Build(append(plugins(v), more...), nil)
	}
	return p.Policies[contender-len(p.Configs)].NewPicker(v, open)
}

// plugins are those that serve, with the fleet for engines.
func plugins(v *fleet.View) []scheduling.PluginType {
	return server.Plugins(server.Environment{
		Now: v.Now, Logger: slog.New(slog.DiscardHandler), Engines: v.Engines(), HashSeed: blockhash.SeedOf("simulate"), Transport: v,
		Follow: func(e *scheduling.Endpoint, c kvevents.Config, o kvevents.Options, open func(int) kvevents.Sink) precise.Feed {
			return v.Follow(e, c, o, open)
		},
	})
}
