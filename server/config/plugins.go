package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"unicode"

	"github.com/goccy/go-yaml/ast"

	"github.com/sluice-epp/sluice/scheduling"
)

// declared takes the declared plugins in.
func (p *parsing) declared() {
	declaredAt := map[string]origin{}
	for i, e := range p.root.Plugins {
		if e.At.file == "" {
			continue // an empty item, which has been reported
		}
		name := e.Name
		if name == "" {
			name = e.Type
		}
		at := func(key string) origin { return p.place(e.At.path + "." + key) }
		switch problem := nameProblem(name); {
		case p.faulted(e.At.path): // what is missing has been said
			p.broken = append(p.broken, name)
			continue
		case e.Type == "":
			p.addf(e.At, "has no type")
			p.broken = append(p.broken, name)
			continue
		case problem != "":
			p.addf(at("name"), "%s", problem)
			continue
		}
		if first, twice := declaredAt[name]; twice {
			p.duplicateName(p.root.Plugins[i], name, first)
			continue
		}
		declaredAt[name] = e.At
		if p.foreignPlugin(at("type"), name, e.Type) {
			continue
		}
		p.plugins = append(p.plugins, plugin{name: name, kind: aliasOf(e.Type), at: e.At, parameters: e.Parameters, document: p.document})
	}
	for _, pl := range p.plugins {
		p.pickerLength(pl)
	}
}

func (p *parsing) duplicateName(e pluginEntry, name string, first origin) {
	if e.Name == "" {
		p.addf(e.At, "duplicate plugin name %q (the name is the type where none is given); it is declared at %d:%d already",
			name, first.line, first.column)
		return
	}
	p.addf(p.place(e.At.path+".name"), "duplicate plugin name %q; it is declared at %d:%d already", name, first.line, first.column)
}

// nameProblem says why a name is no good. Names become metric labels and parts of messages.
func nameProblem(name string) string {
	switch {
	case len(name) > 100:
		return fmt.Sprintf("is longer than 100 bytes: %q", clip(name))
	case strings.ContainsFunc(name, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }):
		return fmt.Sprintf("must hold no spaces or control characters, got %q", clip(name))
	}
	return ""
}

// pickerLength takes the length of the ordered list from where llm-d has it, the picker, unless the server's section
// gives it. The key itself is the picker's, which bounds the list by it.
func (p *parsing) pickerLength(pl plugin) {
	node := p.document.find(pl.parameters.node, pickerLengthKey)
	if node == nil || !strings.HasSuffix(pl.kind, "-picker") {
		return
	}
	if _, set := p.places["server.maxEndpointsInPick"]; set {
		return
	}
	var f struct {
		N int `yaml:"maxNumOfEndpoints" range:"0..16"`
	}
	d := p.decoder(p.document)
	path := pl.at.path + ".parameters." + pickerLengthKey
	d.decode(path, node, reflect.ValueOf(&f.N).Elem())
	d.inRange(path, node, fieldsOf(reflect.ValueOf(&f).Elem())[0])
	p.faults = append(p.faults, d.faults...)
	if len(d.faults) == 0 && f.N > 1 {
		p.root.Server.MaxEndpointsInPick = f.N
		p.warnf(p.document.at(node, path), "is taken as server.maxEndpointsInPick: %d", f.N)
	}
}

const pickerLengthKey = "maxNumOfEndpoints"

// profile takes the profile in, or the built-in one where none is written.
func (p *parsing) profile() {
	profiles := p.root.SchedulingProfiles
	if len(profiles) == 0 {
		p.takeBuiltInProfile()
		return
	}
	first := profiles[0]
	p.profileName, p.profileAt = first.Name, first.At
	if p.profileName == "" {
		p.profileName = "default"
	}
	if first.At.file == "" { // an empty item, which has been reported
		p.profileAt = p.place("schedulingProfiles[0]")
	}
	if problem := nameProblem(p.profileName); problem != "" {
		p.addf(p.place(first.At.path+".name"), "%s", problem)
	}
	for _, extra := range profiles[1:] {
		if extra.At.file == "" {
			continue
		}
		p.addf(extra.At, "a second profile is not in this version; only the first, %q, would run", clip(p.profileName))
		for _, e := range extra.Plugins {
			p.elsewhere = append(p.elsewhere, e.PluginRef)
		}
	}
	for _, e := range first.Plugins {
		p.reference(e)
	}
}

func (p *parsing) reference(e refEntry) {
	weight := 1.0
	if e.Weight != nil {
		if weight = *e.Weight; weight <= 0 {
			p.addf(p.place(e.At.path+".weight"), "must be > 0, got %v; leave a plugin out to give it no weight", weight)
			weight = 1
		}
	}
	at := p.place(e.At.path + ".pluginRef")
	switch {
	case e.PluginRef == "":
		if e.At.file != "" && !p.faulted(e.At.path) {
			p.addf(e.At, "has no pluginRef")
		}
	case slices.Contains(p.ignored, e.PluginRef):
		p.warnf(at, "%q means nothing here and is left out", e.PluginRef)
	case slices.Contains(p.broken, e.PluginRef):
	case !p.isDeclared(e.PluginRef) && p.foreignPlugin(at, e.PluginRef, e.PluginRef):
	default:
		p.refs = append(p.refs, scheduling.Ref{Name: e.PluginRef, Weight: weight, Path: e.At.String()})
	}
}

// faulted reports whether something at or under a path is at fault already.
func (p *parsing) faulted(path string) bool {
	return slices.ContainsFunc(p.faults, func(f Fault) bool { return strings.HasPrefix(f.Path, path) })
}

func (p *parsing) isDeclared(name string) bool {
	return slices.ContainsFunc(p.plugins, func(pl plugin) bool { return pl.name == name })
}

// builtInPath is where the references of the built-in profile stand.
const builtInPath = "built-in profile"

// takeBuiltInProfile takes that of the default configuration over the plugins declared here, or the one by predicted latency: a
// declared plugin of one of its types takes that place.
func (p *parsing) takeBuiltInProfile() {
	text := DefaultText
	if p.predicts() {
		text = predictedText
	}
	doc, entries := profilePlugins(text)
	p.profileName = "default"
	p.profileAt = origin{file: p.Name, line: 1, column: 1}
	for _, e := range entries {
		name := e.Type
		if i := slices.IndexFunc(p.plugins, func(pl plugin) bool { return pl.kind == e.Type }); i >= 0 {
			name = p.plugins[i].name
		} else {
			p.plugins = append(p.plugins, plugin{name: name, kind: e.Type, builtIn: true, parameters: e.Parameters, document: doc})
		}
		p.refs = append(p.refs, scheduling.Ref{Name: name, Weight: 1, Path: builtInPath})
	}
}

// predicts reports whether times to the first token are predicted here, and nothing declared says that requests go by cost.
func (p *parsing) predicts() bool {
	i := slices.IndexFunc(p.plugins, func(pl plugin) bool { return pl.kind == predictorType })
	if i < 0 || slices.ContainsFunc(p.plugins, func(pl plugin) bool { return pl.kind == costScorerType }) {
		return false
	}
	streams := true
	pl := p.plugins[i]
	if node := pl.parameter(streamingKey); node != nil {
		// What is wrong with the value is said when the plugin reads its parameters.
		p.decoder(p.document).decode(pl.at.path+".parameters."+streamingKey, node, reflect.ValueOf(&streams).Elem())
	}
	return streams
}

const (
	predictorType  = "predicted-latency-producer"
	costScorerType = "prefill-cost-scorer"
	streamingKey   = "streamingMode"
)

// profilePlugins are the plugins of a built-in configuration's profile, with their parameters. It is part of the binary and
// valid, which a test checks.
func profilePlugins(text string) (*document, []pluginEntry) {
	doc, _ := parseDocument("built-in configuration", []byte(text))
	var r root
	d := decoder{document: doc, lookup: noEnvironment}
	d.decode("", doc.root, reflect.ValueOf(&r).Elem())
	var inProfile []pluginEntry
	for _, ref := range r.SchedulingProfiles[0].Plugins {
		i := slices.IndexFunc(r.Plugins, func(e pluginEntry) bool { return e.Type == ref.PluginRef })
		inProfile = append(inProfile, r.Plugins[i])
	}
	return doc, inProfile
}

// parameter is the node of one of a plugin's parameters, or nil where the file does not set it. key may be a path
// such as tiers[0].weight.
func (pl plugin) parameter(key string) ast.Node {
	if pl.document == nil {
		return nil
	}
	node := pl.parameters.node
	for _, part := range strings.FieldsFunc(key, func(r rune) bool { return r == '.' || r == '[' }) {
		index, isIndex := strings.CutSuffix(part, "]")
		if !isIndex {
			node = pl.document.find(node, part)
			continue
		}
		seq, ok := pl.document.resolve(node).(*ast.SequenceNode)
		var i int
		if _, err := fmt.Sscan(index, &i); !ok || err != nil || i < 0 || i >= len(seq.Values) {
			return nil
		}
		node = seq.Values[i]
	}
	return node
}
