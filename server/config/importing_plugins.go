package config

import (
	"cmp"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"

	"github.com/sluice-epp/sluice/scheduling"
)

const (
	approxType    = "approx-prefix-cache-producer"
	preciseType   = "precise-prefix-cache-producer"
	loraType      = "lora-affinity-scorer"
	selectorType  = "label-selector-filter"
	queueType     = "queue-scorer"
	activeType    = "active-request-scorer"
	maxPickerType = "max-score-picker"
)

// standIn is the plugin here that comes nearest to one of llm-d's, so near that an import takes it.
type standIn struct{ kind, why string }

var standIns = map[string]standIn{
	"by-label-selector":            {selectorType, "is its name here"},
	"running-requests-size-scorer": {activeType, "takes its place: it counts the requests in flight itself, rather than read them on the engines' pages"},
	"load-aware-scorer":            {queueType, "takes its place: it compares the engines' queues with one another, rather than with a threshold"},
}

// convert makes a plugin of llm-d's one of Sluice's, or leaves it out.
func (im *importing) convert(p *importedPlugin) {
	was := p.kind
	why, ignored := ignoredTypes[was]
	to, replaced := standIns[was]
	switch {
	case ignored:
		p.leave(NotNeeded, "%s", why)
	case was == "precise-prefix-cache-scorer":
		im.unwrapPrecise(p)
	case replaced && im.ofKind(to.kind) != nil:
		p.leave(Missing, "%s, which the file has besides, comes nearest", to.kind)
	case replaced:
		p.kind = to.kind
		if to.kind != selectorType {
			p.parameters = nil
		}
		p.note(Differs, "%s %s", to.kind, to.why)
	case refusal(was) != "":
		p.leave(Missing, "%s", refusal(was))
	case !im.known(was):
		p.leave(Missing, "no plugin of this type is known%s", scheduling.Hint(was, im.typeNames()))
	default:
		im.convertParameters(p)
	}
}

func (im *importing) typeNames() []string {
	names := make([]string, len(im.types))
	for i := range im.types {
		names[i] = im.types[i].Type
	}
	return names
}

// unwrapPrecise makes the scorer that has its index in it a scorer and a producer.
func (im *importing) unwrapPrecise(p *importedPlugin) {
	producer := im.ofKind(preciseType)
	if producer == nil {
		producer = &importedPlugin{name: preciseType, kind: preciseType, parameters: p.parameters, part: p.part, made: true}
		im.plugins = append(im.plugins, producer)
		im.convertParameters(producer)
	}
	p.kind, p.parameters = prefixScoreType, nil
	p.set("prefixMatchInfoProducerName", producer.name)
	p.note(Differs, "it is %s over %s here, which has its parameters", prefixScoreType, producer.name)
}

// convertParameters takes out what means nothing here, and adds what keeps the meaning.
func (im *importing) convertParameters(p *importedPlugin) {
	for _, e := range slices.Clone(p.parameters) {
		key, _ := e.Key.(string)
		if why, ok := foreignKeys[p.kind][key]; ok {
			p.drop(key)
			if only, ok := foreignValues[key]; ok && e.Value == only {
				p.note(Maps, "%s: %s need not be said: %s", key, only, why)
			} else {
				p.note(Differs, "%s is left out: %s", key, why)
			}
		}
		if why, ok := movedKeys[p.kind][key]; ok {
			p.drop(key)
			im.move(p, key, e.Value, why)
		}
	}
	switch p.kind {
	case loraType:
		p.set("waitingScore", 0.6)
		p.set("freeSlotScore", 0.8)
		p.note(Differs, "waitingScore: 0.6 and freeSlotScore: 0.8 are llm-d's scores and are written out; here a queue that has the adapter comes before a free slot")
	case sessionType:
		p.note(Differs, "tokens are signed and hold no name: those of llm-d count as none; set key or keyFile, so that replicas know one another's")
	case predictorType:
		p.note(Differs, "it predicts in this process: its sidecars and their environment variables are not needed")
	}
}

// move puts a retired parameter where it went.
func (im *importing) move(p *importedPlugin, key string, value any, why string) {
	if strings.HasSuffix(strings.ToLower(key), "blocksize") { // whose unit has changed besides
		p.note(Differs, "%s is left out: blockSizeTokens of %s has its place, in tokens", key, approxType)
		return
	}
	producer := im.ofKind(approxType)
	if producer == nil {
		producer = &importedPlugin{name: approxType, kind: approxType, part: p.part, made: true}
		im.plugins = append(im.plugins, producer)
	}
	producer.set(key, value)
	p.note(Differs, "%s is moved: %s", key, why)
}

// sections says what becomes of the sections beside plugins and profiles.
func (im *importing) sections(root yaml.MapSlice) {
	own := names(fieldsOf(reflect.ValueOf(&Config{}).Elem()))
	f, faults := parse(im.name, im.source, im.lookup)
	for _, e := range root {
		key, _ := e.Key.(string)
		switch {
		case slices.Contains([]string{"apiVersion", "kind", "plugins", "schedulingProfiles"}, key):
			continue
		case slices.Contains(own, key):
			im.head = append(im.head, e)
			continue
		}
		part := &Part{Line: im.keyLine(key), Name: key, Standing: NotNeeded}
		for _, fault := range faults {
			if within := isWithin(fault.Path, key); within {
				part.note(Missing, "%s", fault.Message)
			}
		}
		if f != nil {
			for _, w := range f.Warnings {
				if isWithin(w.Path, key) {
					part.note(NotNeeded, "%s", w.Message)
				}
			}
		}
		if len(part.Notes) == 0 {
			part.note(NotNeeded, "it says nothing")
		}
		im.rest = append(im.rest, part)
	}
}

// keyLine is where the file has a section's key.
func (im *importing) keyLine(key string) int {
	entries, _ := im.document.entries(im.document.root)
	for _, e := range entries {
		if keyText(e) == key {
			return im.document.at(e.Key, key).line
		}
	}
	return 1
}

// isWithin reports whether a path is a key's or below it.
func isWithin(path, key string) bool {
	rest, ok := strings.CutPrefix(path, key)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// readProfiles takes the one profile in that runs here.
func (im *importing) readProfiles(root yaml.MapSlice) error {
	list, ok := valueOf(root, "schedulingProfiles").([]any)
	if !ok && valueOf(root, "schedulingProfiles") != nil {
		return fmt.Errorf("%s:%d: schedulingProfiles: must be a list", im.name, im.line("schedulingProfiles"))
	}
	if len(list) == 0 {
		im.implicitProfile()
		return nil
	}
	chosen := servingProfile(list)
	for i, entry := range list {
		m, _ := entry.(yaml.MapSlice)
		part := &Part{Line: im.line("schedulingProfiles", i), Name: "profile " + nameOf(m, "name"), Standing: Maps}
		im.rest = append(im.rest, part)
		if i != chosen {
			part.note(Missing, "one profile runs here, and every request goes through it")
			continue
		}
		if im.profile = nameOf(m, "name"); im.profile == "" {
			im.profile, part.Name = "default", "profile default"
		}
		refs, _ := valueOf(m, "plugins").([]any)
		im.refer(i, refs)
		im.addPicker(part)
	}
	im.leaveUnused()
	return nil
}

// servingProfile is the profile that comes nearest to one through which every request goes: with prefill apart, that of decode.
func servingProfile(list []any) int {
	apart, decode := false, 0
	for i, entry := range list {
		m, _ := entry.(yaml.MapSlice)
		switch nameOf(m, "name") {
		case "prefill", "encode":
			apart = true
			if decode == i {
				decode = min(i+1, len(list)-1)
			}
		case "decode":
			return i
		}
	}
	if !apart {
		return 0
	}
	return decode
}

// refer takes the references of the profile in.
func (im *importing) refer(profile int, refs []any) {
	im.refs = []importedRef{}
	for i, entry := range refs {
		m, _ := entry.(yaml.MapSlice)
		name := nameOf(m, "pluginRef")
		p := im.declaredAs(name)
		if p == nil { // a type that is declared nowhere
			p = &importedPlugin{name: name, kind: aliasOf(name), implied: true, part: &Part{
				Line: im.line("schedulingProfiles", profile, "plugins", i), Name: name, Standing: Maps,
			}}
			im.plugins = append(im.plugins, p)
			im.convert(p)
		}
		weight := valueOf(m, "weight")
		switch {
		case p.gone:
		case weight != nil && sign(weight) == 0:
			p.leave(NotNeeded, "its weight in the profile is 0")
		case weight != nil && sign(weight) < 0:
			p.leave(Missing, "its weight in the profile is %v: a scorer's say cannot be turned round here", weight)
		default:
			im.refs = append(im.refs, importedRef{name, weight})
		}
	}
}

// declaredAs is the plugin of a name, left out or not, or nil.
func (im *importing) declaredAs(name string) *importedPlugin {
	for _, p := range im.plugins {
		if p.name == name {
			return p
		}
	}
	return nil
}

// sign is that of a number; what is none counts as positive, and is told of when it is built.
func sign(v any) int {
	switch n := v.(type) {
	case float64:
		return cmp.Compare(n, 0)
	case int64:
		return cmp.Compare(n, 0)
	case uint64:
		return cmp.Compare(n, 0)
	}
	return 1
}

// implicitProfile is llm-d's where a file has none: all that is declared and can stand in one.
func (im *importing) implicitProfile() {
	part := &Part{Line: 1, Name: "profile default", Standing: Maps}
	im.rest = append(im.rest, part)
	picker := false
	for _, p := range im.standing() {
		isPicker := strings.HasSuffix(p.kind, "-picker")
		if !inProfile(p.kind) || isPicker && picker {
			continue
		}
		picker = picker || isPicker
		im.refs = append(im.refs, importedRef{name: p.name})
	}
	if im.refs == nil {
		part.note(Differs, "the file has no profile, nor anything for one: the built-in profile runs, which weighs cached prefixes against load")
		return
	}
	im.profile = "default"
	part.note(Maps, "the file has none: all its filters, scorers and pickers are in it, with weight 1, as llm-d has it")
	im.addPicker(part)
	im.leaveUnused()
}

func inProfile(kind string) bool {
	return strings.HasSuffix(kind, "-filter") || strings.HasSuffix(kind, "-scorer") || strings.HasSuffix(kind, "-picker")
}

// addPicker adds the picker that llm-d adds.
func (im *importing) addPicker(part *Part) {
	for _, r := range im.refs {
		if p := im.named(r.name); p != nil && strings.HasSuffix(p.kind, "-picker") {
			return
		}
	}
	name := maxPickerType
	if p := im.ofKind(maxPickerType); p != nil {
		name = p.name
	}
	im.refs = append(im.refs, importedRef{name: name})
	part.note(Maps, "%s is added, as llm-d does where a profile has no picker", name)
}

// leaveUnused leaves out what no profile that runs refers to.
func (im *importing) leaveUnused() {
	for _, p := range im.standing() {
		used := slices.ContainsFunc(im.refs, func(r importedRef) bool { return r.name == p.name })
		if inProfile(p.kind) && !used {
			p.leave(NotNeeded, "the profile that runs does not refer to it")
		}
	}
}
