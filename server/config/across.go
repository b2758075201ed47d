package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// TierWeigher is a producer whose prefix matches weigh the tiers that blocks lie on. configured reports whether the
// file, rather than a default, sets the weights.
type TierWeigher interface {
	TierWeights() (weights map[string]float64, configured bool)
}

const (
	affinityType    = "prefix-cache-affinity-filter"
	prefixScoreType = "prefix-cache-scorer"
	thresholdKey    = "affinityThreshold"
	sourceKey       = "ttftSource"
	latencyType     = "latency-scorer"
	outlierType     = "outlier-detection-filter"
	sessionType     = "session-affinity-scorer"
)

// warnAcross warns of what no plugin can see by itself.
func (f *File) warnAcross(types []scheduling.PluginType, s *scheduling.Scheduler) {
	f.warnUndone()
	f.warnFailing()
	f.warnUnpredicted()
	f.warnTiers(types, s)
	f.warnBudget(s)
	f.warnTokens(s)
	f.warnSessions(s)
}

// firstTokenTaker is a gate that may take a producer's predictions for times to a first token, and responsePredictor a producer
// whose predictions may be of whole responses.
type (
	firstTokenTaker   interface{ FirstTokensOf() (producer string) }
	responsePredictor interface{ WholeResponses() bool }
)

// wholeResponses is what messages of unlike hold.
const wholeResponses = "predicts whole responses"

// unlike are the gates that compare times to a first token with predictions of something else.
func (f *File) unlike(s *scheduling.Scheduler) (faults Faults) {
	for name, plugin := range s.Plugins() {
		taker, ok := plugin.(firstTokenTaker)
		if !ok || taker.FirstTokensOf() == "" {
			continue
		}
		producer := taker.FirstTokensOf()
		if p, ok := s.Plugin(producer).(responsePredictor); ok && p.WholeResponses() {
			faults = append(faults, f.atName(name).fault("%s takes its times from %s, which "+wholeResponses+" (streamingMode: false): its bounds are "+
				"of times to a first token; leave streamingMode out, or set ttftSource: prefillThroughput", name, producer))
		}
	}
	return faults.sorted()
}

// tokenNeeder is a producer whose knowledge is of use for prompts only whose tokens are known exactly, and tokenCounter
// one that may know them: within a time, 0 where it only estimates.
type (
	tokenNeeder  interface{ NeedsTokens() }
	tokenCounter interface{ ExactWithin() time.Duration }
)

// warnTokens warns of a producer that needs exact tokens where nobody counts any.
func (f *File) warnTokens(s *scheduling.Scheduler) {
	exact := false
	for _, plugin := range s.Plugins() {
		if c, ok := plugin.(tokenCounter); ok && c.ExactWithin() > 0 {
			exact = true
		}
	}
	for name, plugin := range s.Plugins() {
		if _, ok := plugin.(tokenNeeder); ok && !exact {
			f.warnf(f.atName(name), "%s knows caches by exact tokens, and nobody counts any: only prompts that come as token ids are "+
				"looked up in it; give token-producer a vllm", name)
		}
	}
}

// ownKeyer is a plugin that signs with a key of this process's own unless it is given one.
type ownKeyer interface{ OwnKey() bool }

// warnSessions warns of answers to which no plugin can add its header, and of a key that no other process has.
func (f *File) warnSessions(s *scheduling.Scheduler) {
	for name, plugin := range s.Plugins() {
		if _, ok := plugin.(scheduling.Answerer); ok && f.Config.Server.EndStream == EndAfterPick {
			f.warnf(f.place("server.endStream"), "with afterPick, calls end before answers begin where that is safe, and %s cannot add its header to "+
				"them; use afterFirstToken or afterResponse", name)
		}
		if k, ok := plugin.(ownKeyer); ok && k.OwnKey() {
			f.warnf(f.atRef(name), "%s signs its tokens with a key that is drawn at each start: other replicas do not know its sessions, nor does it after a "+
				"restart; set key or keyFile", name)
		}
	}
}

// atName is where a plugin is declared.
func (f *File) atName(name string) origin {
	for _, pl := range f.allPlugins() {
		if pl.name == name {
			return pl.at
		}
	}
	return origin{}
}

// atRef is where a plugin is declared, or else where the profile refers to its type.
func (f *File) atRef(name string) origin {
	if at := f.atName(name); at.file != "" {
		return at
	}
	for _, r := range f.refs {
		if _, path, written := strings.Cut(r.Path, ": "); written && r.Name == name {
			return f.place(path)
		}
	}
	return origin{file: f.Name}
}

// warnBudget warns of look-ups that may take longer than what they are part of.
func (f *File) warnBudget(scheduler *scheduling.Scheduler) {
	if s := f.Config.Server; s.ProduceTimeout >= s.PickTimeout {
		f.warnf(f.place("server.produceTimeout"), "%v is not below pickTimeout (%v): slow look-ups would cost the request, not "+
			"their knowledge; keep it below the proxy's message timeout too", s.ProduceTimeout, s.PickTimeout)
	}
	for name, plugin := range scheduler.Plugins() {
		c, ok := plugin.(tokenCounter)
		if produce := f.Config.Server.ProduceTimeout; ok && c.ExactWithin() > produce {
			f.warnf(f.atName(name), "%s may take %v for tokens and server.produceTimeout allows %v: it waits no longer than that allows; "+
				"raise server.produceTimeout too", name, c.ExactWithin(), produce)
		}
	}
}

// warnUndone warns of prefix scorers heavy enough, together, to undo what the affinity filter does when it lets a request leave:
// the endpoint that holds the prefix then outscores every other whatever the load.
func (f *File) warnUndone() {
	gate := slices.IndexFunc(f.refs, func(r scheduling.Ref) bool { return f.kindOf(r.Name) == affinityType })
	if gate < 0 {
		return
	}
	weight, others := 0.0, 0.0
	var prefix []string
	var at string
	for _, r := range f.refs {
		switch kind := f.kindOf(r.Name); {
		case kind == prefixScoreType:
			if prefix == nil {
				at = r.Path
			}
			prefix, weight = append(prefix, r.Name), weight+r.Weight
		case strings.HasSuffix(kind, "-scorer"):
			others += r.Weight
		}
	}
	if prefix == nil || weight < others {
		return
	}
	have := "has"
	if len(prefix) > 1 {
		have = "have together"
	}
	_, path, _ := strings.Cut(at, ": ")
	f.warnf(f.place(path), "%s %s weight %v and the other scorers together %v: when %s lets a request leave the endpoint "+
		"that holds its prefix, the prefix score sends it back; lower the weight", strings.Join(prefix, " and "), have, weight, others, f.refs[gate].Name)
}

// warnFailing warns of a scorer by time without the filter that leaves out who fails: failures teach no times, and an endpoint that
// refuses everything at once has no queue, so that it seems to be the fastest.
func (f *File) warnFailing() {
	if slices.ContainsFunc(f.refs, func(r scheduling.Ref) bool { return f.kindOf(r.Name) == outlierType }) {
		return
	}
	for _, r := range f.refs {
		if kind := f.kindOf(r.Name); kind != latencyType && kind != costScorerType {
			continue
		}
		_, path, _ := strings.Cut(r.Path, ": ")
		f.warnf(f.place(path), "%s draws requests to an endpoint that fails fast: failures teach no times, and nothing waits there; "+
			"put %s first in the profile", r.Name, outlierType)
	}
}

// warnUnpredicted warns of an affinity filter that is declared for the profile by predicted latency and has what its type has by
// default, which is not what that profile has.
func (f *File) warnUnpredicted() {
	if !f.builtInProfile() || !slices.ContainsFunc(f.refs, func(r scheduling.Ref) bool { return f.kindOf(r.Name) == latencyType }) {
		return
	}
	for _, pl := range f.allPlugins() {
		if pl.kind == affinityType && !pl.builtIn && !pl.sets(sourceKey) {
			f.warnf(pl.at, "%s does not compare predicted times, by which %s goes: declared, it has its type's defaults and not the profile's; "+
				"set ttftSource: latencyPredictor with penaltyMode: breakEven and explorationProbability: 0, or ttftSource: prefillThroughput to keep to this",
				pl.name, latencyType)
		}
	}
}

func (f *File) kindOf(name string) string {
	for _, pl := range f.allPlugins() {
		if pl.name == name {
			return pl.kind
		}
	}
	return ""
}

// warnTiers warns of a tier weight at or below an affinity threshold where either is configured: a prompt that lies
// wholly on that tier is then sticky by rounding only.
func (f *File) warnTiers(types []scheduling.PluginType, s *scheduling.Scheduler) {
	for _, pl := range f.allPlugins() {
		tiers, ok := s.Plugin(pl.name).(TierWeigher)
		if !ok {
			continue
		}
		weights, configured := tiers.TierWeights()
		for _, gate := range f.allPlugins() {
			threshold, ok := f.number(types, gate, thresholdKey)
			if gate.kind != affinityType || !ok || !configured && !gate.sets(thresholdKey) {
				continue
			}
			for _, tier := range sortedKeys(weights) {
				if weights[tier] <= threshold {
					f.warnf(gate.atOr(pl), "%s weighs tier %s %v, which is not above %s %v of %s: a prompt wholly on that tier is "+
						"sticky by rounding only", pl.name, tier, weights[tier], thresholdKey, threshold, gate.name)
				}
			}
		}
	}
}

// sets reports whether the file sets a parameter, under either of its spellings.
func (pl plugin) sets(key string) bool {
	other, two := otherSpellings[key]
	return !pl.builtIn && (pl.parameter(key) != nil || two && pl.parameter(other) != nil)
}

// atOr is where a plugin is declared, or else another is.
func (pl plugin) atOr(other plugin) origin {
	if pl.builtIn {
		return other.at
	}
	return pl.at
}

// number is a plugin's effective numeric parameter.
func (f *File) number(types []scheduling.PluginType, pl plugin, key string) (float64, bool) {
	for _, p := range f.parameterValues(types, pl) {
		if p.name == key {
			n, err := strconv.ParseFloat(p.value, 64)
			return n, err == nil
		}
	}
	return 0, false
}
