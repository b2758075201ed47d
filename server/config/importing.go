package config

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sluice-epp/sluice/scheduling"
)

// Standing is what becomes of a part of a file that was written for llm-d.
type Standing string

// The standings.
const (
	// Maps is what means the same here.
	Maps Standing = "maps"
	// Differs is what is here, and not all the same.
	Differs Standing = "differs"
	// Missing is what is not here.
	Missing Standing = "missing"
	// NotNeeded is what means nothing here.
	NotNeeded Standing = "not needed"
)

// rank orders the standings: what was found once is not taken back by what means less.
var rank = map[Standing]int{Maps: 0, NotNeeded: 0, Differs: 1, Missing: 2}

// Part is a plugin, a profile or a section of a file that was written for llm-d.
type Part struct {
	// Line is where the file has it, from 1.
	Line int
	// Name is the plugin's name, the profile's, or the section's key; Type is the plugin's where that is another word.
	Name, Type string
	// Standing is what becomes of it.
	Standing Standing
	// Notes say why, and what was done instead; the nearest thing here among it.
	Notes []string
}

func (p *Part) note(s Standing, format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(p.Notes, text) {
		p.Notes = append(p.Notes, text)
	}
	if rank[s] > rank[p.Standing] {
		p.Standing = s
	}
}

// Imported is what was made of a file that was written for llm-d.
type Imported struct {
	// Plugins are its plugins, in the file's order, and Rest are its profiles and sections.
	Plugins, Rest []*Part
	// Text is a configuration of Sluice's that does the same, as far as there is the same. It is valid.
	Text string
	// Warnings are those of Text.
	Warnings []Warning
}

// Import reads the text of an EndpointPickerConfig that was written for llm-d, and makes of it what runs here. Unlike Parse, it does
// not stop at what is not here: it leaves that out and says so. The error is of what is no such file at all. lookup and types are
// those of CheckText.
func Import(name string, text []byte, lookup func(string) (string, bool), types []scheduling.PluginType) (*Imported, error) {
	doc, faults := parseDocument(name, text)
	if len(faults) > 0 {
		return nil, faults.err()
	}
	im := &importing{name: name, source: text, document: doc, types: types, lookup: lookup}
	var root yaml.MapSlice
	shielded := shieldReferences(strings.TrimPrefix(string(text), "\ufeff"))
	if err := yaml.UnmarshalWithOptions([]byte(shielded), &root, yaml.UseOrderedMap()); err != nil {
		return nil, fmt.Errorf("%s: cannot be read as YAML: %w", name, err)
	}
	if kind := nameOf(root, "kind"); kind != "" && kind != Kind {
		return nil, fmt.Errorf("%s: its kind is %q, not %s", name, clip(kind), Kind)
	}
	im.sections(root)
	if err := im.readPlugins(root); err != nil {
		return nil, err
	}
	if err := im.readProfiles(root); err != nil {
		return nil, err
	}
	f, err := im.settle()
	if err != nil {
		return nil, err
	}
	out := &Imported{Rest: im.rest, Text: im.text(), Warnings: f.Warnings}
	for _, p := range im.plugins {
		if !p.made {
			out.Plugins = append(out.Plugins, p.part)
		}
	}
	return out, nil
}

// importing is an import under way.
type importing struct {
	name     string
	source   []byte
	document *document
	types    []scheduling.PluginType
	lookup   func(string) (string, bool)

	plugins []*importedPlugin
	profile string
	refs    []importedRef
	rest    []*Part
	head    yaml.MapSlice // the file's sections that are Sluice's own
}

// importedPlugin is a plugin of the file, or one that was made for one.
type importedPlugin struct {
	name, kind string
	parameters yaml.MapSlice
	part       *Part // what is said of it
	made       bool  // the file does not have it: it was made for another one, whose part it shares
	implied    bool  // the profile refers to its type, and the file does not declare it
	gone       bool  // it is left out
}

type importedRef struct {
	name   string
	weight any // nil: 1
}

// line is where the file has a path of keys and indices.
func (im *importing) line(path ...any) int {
	n, at := im.document.root, im.document.root
	for _, step := range path {
		switch s := step.(type) {
		case string:
			n = im.document.find(n, s)
		case int:
			n = im.document.item(n, s)
		}
		if n != nil {
			at = n
		}
	}
	return im.document.at(at, "").line
}

// readPlugins takes the plugins in.
func (im *importing) readPlugins(root yaml.MapSlice) error {
	list, ok := valueOf(root, "plugins").([]any)
	if !ok && valueOf(root, "plugins") != nil {
		return fmt.Errorf("%s:%d: plugins: must be a list", im.name, im.line("plugins"))
	}
	for i, entry := range list {
		m, _ := entry.(yaml.MapSlice)
		kind, name := nameOf(m, "type"), nameOf(m, "name")
		if kind == "" {
			return fmt.Errorf("%s:%d: plugins[%d]: has no type", im.name, im.line("plugins", i), i)
		}
		part := &Part{Line: im.line("plugins", i), Name: name, Standing: Maps}
		if name == "" {
			part.Name = kind
		} else if name != kind {
			part.Type = kind
		}
		p := &importedPlugin{name: part.Name, kind: aliasOf(kind), part: part}
		parameters := valueOf(m, "parameters")
		if p.parameters, ok = parameters.(yaml.MapSlice); !ok && parameters != nil {
			return fmt.Errorf("%s:%d: plugins[%d].parameters: must be a mapping of keys to values", im.name, im.line("plugins", i, "parameters"), i)
		}
		if first := im.named(p.name); first != nil {
			p.leave(Missing, "%s is the name of the plugin of line %d already", p.name, first.part.Line)
		}
		im.plugins = append(im.plugins, p)
	}
	for _, p := range im.standing() { // they may become more
		im.convert(p)
	}
	return nil
}

// named is the plugin of a name that is not left out, or nil.
func (im *importing) named(name string) *importedPlugin {
	for _, p := range im.plugins {
		if p.name == name && !p.gone {
			return p
		}
	}
	return nil
}

// ofKind is the first plugin of a type that is not left out, or nil.
func (im *importing) ofKind(kind string) *importedPlugin {
	for _, p := range im.plugins {
		if p.kind == kind && !p.gone {
			return p
		}
	}
	return nil
}

func (im *importing) known(kind string) bool {
	return slices.ContainsFunc(im.types, func(t scheduling.PluginType) bool { return t.Type == kind })
}

// settle builds what has been made and takes out what is at fault, one thing after the other, until it builds; then it writes
// llm-d's defaults where Sluice's differ.
func (im *importing) settle() (*File, error) {
	written := map[string]bool{}
	for range maxFaults {
		f, s, err := open(im.name, []byte(im.text()), im.lookup, im.types)
		if faults := (Faults)(nil); errors.As(err, &faults) {
			if !im.repair(faults[0]) {
				return nil, fmt.Errorf("what was made of %s is not valid:\n%w", im.name, err)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := s.Close(); err != nil {
			return nil, fmt.Errorf("closing what was built: %w", err)
		}
		if !im.writeDefaults(f, written) {
			return f, nil
		}
	}
	return nil, fmt.Errorf("%s: more than %d things in it are not as they are here", im.name, maxFaults)
}

// repair takes out what a fault is about; false where that is nothing of the file's.
func (im *importing) repair(fault Fault) bool {
	var i int
	if rest, ok := strings.CutPrefix(fault.Path, "plugins["); ok {
		if _, err := fmt.Sscanf(rest, "%d]", &i); err != nil {
			return false
		}
		if i >= len(im.declared()) {
			return false
		}
		p := im.declared()[i]
		if predictor := im.ofKind(predictorType); strings.Contains(fault.Message, wholeResponses) && predictor != nil && predictor.drop(streamingKey) {
			predictor.note(Differs, "%s: false is left out: times to a first token are compared with its predictions", streamingKey)
			return true
		}
		if parameter, _, ok := strings.Cut(fault.Message, several); ok && im.nameProducer(p, parameter, fault.Message) {
			return true
		}
		_, key, ok := strings.Cut(rest, "].parameters.")
		key, _, _ = strings.Cut(key, ".")
		key, _, _ = strings.Cut(key, "[")
		if ok && p.drop(key) {
			p.note(Differs, "%s is left out: %s", key, fault.Message)
			return true
		}
		p.leave(Missing, "%s", fault.Message)
		im.unrefer(p.name)
		return true
	}
	if rest, ok := strings.CutPrefix(fault.Path, "schedulingProfiles[0].plugins["); ok {
		if _, err := fmt.Sscanf(rest, "%d]", &i); err != nil || i >= len(im.refs) {
			return false
		}
		return im.repairReference(i, fault.Path, fault.Message)
	}
	return false
}

// repairReference takes out what a fault of the profile's reference is about.
func (im *importing) repairReference(i int, path, message string) bool {
	name := im.refs[i].name
	p := im.named(name)
	same := func(r importedRef) bool { return r.name == name }
	switch first := slices.IndexFunc(im.refs, same); {
	case p == nil:
		return false
	case first < i:
		p.note(Differs, "it stands in the profile twice: the first counts")
		im.refs = slices.Delete(im.refs, i, i+1)
	case strings.HasSuffix(path, ".weight") && im.refs[i].weight != nil:
		p.note(Differs, "its weight is left out: %s", message)
		im.refs[i].weight = nil
	default:
		p.leave(Missing, "%s", message)
		im.unrefer(name)
	}
	return true
}

// declared are the plugins that stand in what is made. One without parameters that the file does not declare need not.
func (im *importing) declared() []*importedPlugin {
	return slices.DeleteFunc(im.standing(), func(p *importedPlugin) bool { return p.implied && p.name == p.kind && len(p.parameters) == 0 })
}

// nameProducer names the producer that llm-d takes where a parameter names none and there are several; false where it cannot.
func (im *importing) nameProducer(p *importedPlugin, parameter, message string) bool {
	_, list, ok := strings.Cut(message, "name one of ")
	names := strings.Split(list, ", ")
	if !ok || valueOf(p.parameters, parameter) != nil {
		return false
	}
	producer := names[0]
	for _, name := range names {
		if q := im.named(name); q != nil && q.kind == approxType {
			producer = name
		}
	}
	p.set(parameter, producer)
	p.note(Differs, "%s: %s is written out: with several, the producer has to be named", parameter, producer)
	return true
}

// standing are the plugins that are not left out.
func (im *importing) standing() []*importedPlugin {
	return slices.DeleteFunc(slices.Clone(im.plugins), func(p *importedPlugin) bool { return p.gone })
}

func (im *importing) unrefer(name string) {
	im.refs = slices.DeleteFunc(im.refs, func(r importedRef) bool { return r.name == name })
}

// keptDefaults are Sluice's defaults that an import keeps although llm-d's are others: what they are about is not the same.
var keptDefaults = map[string]bool{streamingKey: true}

// writeDefaults sets parameters that the file leaves to llm-d's defaults, where Sluice's are others; false where there are none.
func (im *importing) writeDefaults(f *File, written map[string]bool) (changed bool) {
	for _, d := range f.otherDefaults(im.types) {
		p := im.named(d.plugin)
		if p == nil || p.made || written[d.plugin+"."+d.key] {
			continue
		}
		written[d.plugin+"."+d.key] = true
		if keptDefaults[d.key] {
			p.note(Differs, "%s is %s here, where llm-d's default is %s", d.key, d.here, d.there)
			continue
		}
		p.set(d.key, scalarOf(d.there))
		p.note(Differs, "%s: %s is llm-d's default and is written out; it is %s here", d.key, d.there, d.here)
		changed = true
	}
	return changed
}

// scalarOf is a scalar as a file has it.
func scalarOf(text string) any {
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		return text
	}
	return v
}

func (p *importedPlugin) note(s Standing, format string, args ...any) {
	p.part.note(s, format, args...)
}

// leave leaves the plugin out; of what is not needed, only why matters.
func (p *importedPlugin) leave(s Standing, format string, args ...any) {
	p.gone = true
	if s == NotNeeded && !p.made {
		p.part.Standing, p.part.Notes = s, nil
	}
	p.part.note(s, format, args...)
}

// drop removes a parameter; false where it is not set.
func (p *importedPlugin) drop(key string) bool {
	before := len(p.parameters)
	p.parameters = slices.DeleteFunc(p.parameters, func(e yaml.MapItem) bool { return e.Key == key })
	return len(p.parameters) < before
}

// set sets a parameter, unless it is set.
func (p *importedPlugin) set(key string, value any) {
	if valueOf(p.parameters, key) == nil {
		p.parameters = append(p.parameters, yaml.MapItem{Key: key, Value: value})
	}
}

// whole writes a number without decimals where it has none.
func whole(v any) any {
	if f, ok := v.(float64); ok && f == math.Trunc(f) && math.Abs(f) < 1<<53 {
		return int64(f)
	}
	return v
}

// text is the configuration as it stands.
func (im *importing) text() string {
	root := yaml.MapSlice{{Key: "apiVersion", Value: Versions[0]}, {Key: "kind", Value: Kind}}
	root = append(root, im.head...)
	var plugins []yaml.MapSlice
	for _, p := range im.declared() {
		entry := yaml.MapSlice{{Key: "type", Value: p.kind}}
		if p.name != p.kind {
			entry = append(yaml.MapSlice{{Key: "name", Value: p.name}}, entry...)
		}
		if len(p.parameters) > 0 {
			entry = append(entry, yaml.MapItem{Key: "parameters", Value: p.parameters})
		}
		plugins = append(plugins, entry)
	}
	if len(plugins) > 0 {
		root = append(root, yaml.MapItem{Key: "plugins", Value: plugins})
	}
	if im.refs != nil {
		refs := []yaml.MapSlice{}
		for _, r := range im.refs {
			ref := yaml.MapSlice{{Key: "pluginRef", Value: r.name}}
			if r.weight != nil {
				ref = append(ref, yaml.MapItem{Key: "weight", Value: whole(r.weight)})
			}
			refs = append(refs, ref)
		}
		profile := yaml.MapSlice{{Key: "name", Value: im.profile}, {Key: "plugins", Value: refs}}
		root = append(root, yaml.MapItem{Key: "schedulingProfiles", Value: []yaml.MapSlice{profile}})
	}
	out, err := yaml.MarshalWithOptions(root, yaml.IndentSequence(true))
	if err != nil { // what was read can be written
		return ""
	}
	return unshield(string(out))
}
