package config

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
)

// Check reads and builds a file, or the built-in configuration where path is empty, and reports on it. The report is
// itself a configuration file: the effective configuration, with the rest as comments before it. The error holds
// everything that is wrong with the file.
func Check(path string, lookup func(string) (string, bool), types []scheduling.PluginType) (string, error) {
	if path == "" {
		return CheckText("built-in configuration", []byte(DefaultText), lookup, types)
	}
	data, err := read(path)
	if err != nil {
		return "", err
	}
	return CheckText(path, data, lookup, types)
}

// CheckText is Check for the text of a file; name is what messages call it.
func CheckText(name string, text []byte, lookup func(string) (string, bool), types []scheduling.PluginType) (string, error) {
	f, scheduler, err := open(name, text, lookup, types)
	if err != nil {
		return "", err
	}
	f.warnMissing(scheduler)
	if err := f.checkShadow(lookup, types, scheduler); err != nil {
		return "", errors.Join(err, scheduler.Close())
	}
	report := f.Report(types, scheduler)
	if err := scheduler.Close(); err != nil {
		return "", fmt.Errorf("closing what was built: %w", err)
	}
	return report, nil
}

// fileReader is a plugin whose parameters name files, by parameter, that are read where it serves.
type fileReader interface{ Files() map[string]string }

// warnMissing warns of files that the configuration names and that are not here. They may be where the server runs.
func (f *File) warnMissing(scheduler *scheduling.Scheduler) {
	t, admin := f.Config.Server.TLS, f.Config.Server.AdminTLS
	for _, named := range []struct{ key, path string }{
		{"endpointsFile", f.Config.EndpointsFile}, {"kubernetes.kubeconfig", f.Config.Kubernetes.Kubeconfig},
		{"server.tls.certFile", t.CertFile}, {"server.tls.keyFile", t.KeyFile}, {"server.tls.clientCAFile", t.ClientCAFile},
		{"server.adminTLS.certFile", admin.CertFile}, {"server.adminTLS.keyFile", admin.KeyFile}, {"server.adminTLS.clientCAFile", admin.ClientCAFile},
	} {
		f.warnUnreadable(f.place(named.key), named.path)
	}
	for _, pl := range f.allPlugins() {
		r, ok := scheduler.Plugin(pl.name).(fileReader)
		if !ok {
			continue
		}
		for key, path := range r.Files() {
			at := pl.at
			if node := pl.parameter(key); node != nil {
				at = pl.document.at(node, pl.at.path+".parameters."+key)
			}
			f.warnUnreadable(at, path)
		}
	}
}

func (f *File) warnUnreadable(at origin, path string) {
	if path == "" {
		return
	}
	if info, err := os.Stat(path); err != nil {
		f.warnf(at, "cannot be read here: %v", err)
	} else if info.IsDir() {
		f.warnf(at, "is a folder: %s", path)
	}
}

// Report describes a file and the scheduler that Build made from it.
func (f *File) Report(types []scheduling.PluginType, scheduler *scheduling.Scheduler) string {
	var b strings.Builder
	section := func(title string, lines []string) {
		if len(lines) == 0 {
			return
		}
		fmt.Fprintf(&b, "#\n# %s\n", title)
		for _, line := range lines {
			fmt.Fprintf(&b, "#   %s\n", line)
		}
	}
	fmt.Fprintf(&b, "# %s is valid; its effective configuration, %s, follows.\n", f.Name, f.Hash(types))
	section("The plugins, in the order in which they run:", scheduler.Describe())
	var warnings []string
	for _, w := range f.Warnings {
		warnings = append(warnings, w.Error())
	}
	section("Warnings:", warnings)
	section("Where the defaults are not llm-d's:", f.differences(types))
	b.WriteString("\n")
	b.WriteString(f.Effective(types))
	return b.String()
}

// foreignDefaults are the defaults of llm-d's plugins, by type, as its documentation has them.
var foreignDefaults = map[string]map[string]string{
	"approx-prefix-cache-producer": {
		"autoTune": "true", "blockSizeTokens": "16", "maxPrefixBlocksToMatch": "2048", "maxPrefixTokensToMatch": "131072",
		"lruCapacityPerServer": "31250",
	},
	"inflight-load-producer": {"addEstimatedOutputTokens": "false", "outputRatio": "1.5"},
	affinityType: {
		"affinityThreshold": "0.8", "explorationProbability": "0", "maxTTFTPenaltyMs": "18000",
		"ttftSource": "prefillThroughput", "peakPrefillThroughput": "15928",
	},
	"active-request-scorer": {"idleThreshold": "0", "maxBusyScore": "1"},
	"token-load-scorer":     {"queueThresholdTokens": "4194304"},
	predictorType:           {"sloBufferFactor": "1", "streamingMode": "false"},
	latencyType:             {"ttftWeight": "0.8", "tpotWeight": "0.2"},
	prefixScoreType:         {"matchLengthWeight": "0", "matchLengthScaleTokens": "8192"},
}

// otherSpellings are second names of parameters: a file that has one sets the first.
var otherSpellings = map[string]string{
	"affinityThreshold": "affinityGateTau", "explorationProbability": "epsilonExploreSticky",
	"maxTTFTPenaltyMs": "affinityMaxTTFTPenaltyMs",
}

// otherDefault is a parameter that a file leaves out, with the default here and llm-d's.
type otherDefault struct{ plugin, key, here, there string }

// otherDefaults lists the parameters that the file leaves out and whose value llm-d would have chosen otherwise.
func (f *File) otherDefaults(types []scheduling.PluginType) (all []otherDefault) {
	for _, pl := range f.allPlugins() {
		theirs, values := foreignDefaults[pl.kind], f.parameterValues(types, pl)
		if slices.Contains(values, parameterValue{"penaltyMode", "breakEven"}) {
			continue // llm-d's filter has no such mode
		}
		for _, p := range values {
			if their, known := theirs[p.name]; known && their != p.value && !pl.sets(p.name) {
				all = append(all, otherDefault{pl.name, p.name, p.value, their})
			}
		}
	}
	return all
}

// differences says where the file has Sluice's defaults and llm-d's are others.
func (f *File) differences(types []scheduling.PluginType) []string {
	var lines []string
	for _, d := range f.otherDefaults(types) {
		lines = append(lines, fmt.Sprintf("%s.%s is %s; llm-d's is %s", d.plugin, d.key, d.here, d.there))
	}
	if f.builtInProfile() && f.version != "" && f.version != Versions[0] {
		lines = append(lines, "without schedulingProfiles the built-in profile runs; "+
			"llm-d's has queue-scorer ×2, kv-cache-utilization-scorer ×2, prefix-cache-scorer ×3 and max-score-picker")
	}
	return lines
}

func (f *File) builtInProfile() bool {
	return slices.ContainsFunc(f.refs, func(r scheduling.Ref) bool { return r.Path == builtInPath })
}

// parameterValue is a parameter's name and value as the effective configuration shows it.
type parameterValue struct{ name, value string }

// parameterValues are a plugin's scalar parameters: as the build left them, or else the file's over the defaults.
func (f *File) parameterValues(types []scheduling.PluginType, pl plugin) []parameterValue {
	for _, in := range f.created {
		if in.name == pl.name && in.values != nil {
			return in.values
		}
	}
	if params := f.effectiveParameters(types, pl); params.IsValid() {
		return scalarsOf(params)
	}
	return nil
}

func scalarsOf(v reflect.Value) []parameterValue {
	var values []parameterValue
	for _, field := range fieldsOf(v) {
		if v := indirect(field.value); !isNil(v) && isScalar(v) && !isSecret(field) {
			values = append(values, parameterValue{field.name, scalarYAML(v)})
		}
	}
	return values
}
