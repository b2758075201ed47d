package config

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// Shadowed is a second configuration beside one that picks.
type Shadowed struct {
	// File is its file, and Sum the hash of the file's text.
	File *File
	Sum  [sha256.Size]byte
	// Scheduler is built of it. Its producers never run.
	Scheduler *scheduling.Scheduler
	// Bridge has it decide what the other one decided.
	Bridge *scheduling.Bridge
	// Differences are its producers with other parameters than those of the one that picks, whose values are taken.
	Differences []string
	// StandIns are its columns that take the values of a producer of another name.
	StandIns []scheduling.StandIn
}

// OpenShadow reads and builds the second configuration that f names, out of types whose plugins will not serve, for picks, the
// scheduler of f; nil where f names none. The error names what it needs and f's configuration does not produce.
func (f *File) OpenShadow(lookup func(string) (string, bool), types []scheduling.PluginType, picks *scheduling.Scheduler) (*Shadowed, error) {
	path := f.Config.Shadow.Config
	if path == "" {
		return nil, nil //nolint:nilnil // the documented meaning of no path
	}
	second, s, err := Open(path, lookup, types)
	if err != nil {
		return nil, f.shadowError(err)
	}
	bridge, err := scheduling.NewBridge(picks, s)
	if err != nil {
		return nil, errors.Join(f.shadowError(fmt.Errorf("%s needs what %s does not produce: %s", path, f.Name, strings.ReplaceAll(err.Error(), "\n", "; "))), s.Close())
	}
	return &Shadowed{File: second, Sum: second.sum, Scheduler: s, Bridge: bridge, Differences: f.otherParameters(second, types, s), StandIns: bridge.StandIns()}, nil
}

// shadowError says where f names the second configuration.
func (f *File) shadowError(err error) error {
	return fmt.Errorf("%v: %w", f.place("shadow.config"), err)
}

// otherParameters are the producers that a second configuration's decisions rest on, and whose parameters are others than here.
func (f *File) otherParameters(second *File, types []scheduling.PluginType, s *scheduling.Scheduler) (all []string) {
	seen := map[string]bool{}
	for _, info := range s.Columns() {
		if !info.Decisive || seen[info.Producer] {
			continue
		}
		seen[info.Producer] = true
		if here, there := f.parametersOf(types, info.Producer), second.parametersOf(types, info.Producer); here != "" && here != there {
			all = append(all, info.Producer)
		}
	}
	return all
}

// parametersOf are the effective parameters of a plugin as YAML, after its type.
func (f *File) parametersOf(types []scheduling.PluginType, name string) string {
	for _, pl := range f.allPlugins() {
		if pl.name == name {
			return pl.kind + "\n" + f.parameterText(types, pl)
		}
	}
	return ""
}

// checkShadow checks the second configuration, as far as it is here.
func (f *File) checkShadow(lookup func(string) (string, bool), types []scheduling.PluginType, s *scheduling.Scheduler) error {
	shadow, err := f.OpenShadow(lookup, types, s)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		f.warnf(f.place("shadow.config"), "cannot be read here: %v", err)
		return nil
	case err != nil || shadow == nil:
		return err
	}
	if warning := shadow.Warning(); warning != "" {
		f.warnf(f.place("shadow.config"), "%s", warning)
	}
	return shadow.Scheduler.Close()
}

// Warning says which producers stand in for those of another name, and of which the parameters differ; empty where of none.
func (s *Shadowed) Warning() string {
	var all []string
	for _, c := range s.StandIns {
		all = append(all, fmt.Sprintf("%s: %s of %s is that of %s", s.File.Name, c.DataType, c.Producer, c.By))
	}
	if len(s.Differences) > 0 {
		all = append(all, fmt.Sprintf("%s has other parameters for %s: what these find is taken from the configuration that picks", s.File.Name, strings.Join(s.Differences, ", ")))
	}
	return strings.Join(all, "; ")
}
