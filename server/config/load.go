package config

import (
	"crypto/sha256"
	_ "embed"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/discovery"
	"github.com/sluice-epp/sluice/server/filewatch"
)

// DefaultText is the built-in configuration, which runs where no file is given.
//
//go:embed default.yaml
var DefaultText string

// predictedText has the profile that runs in its place where a file lists a predictor of latency.
//
//go:embed predicted.yaml
var predictedText string

// Versions are the accepted values of apiVersion, Sluice's own first.
var Versions = []string{"sluice/v1alpha1", "llm-d.ai/v1alpha1", "llm-d.ai/v1", "inference.networking.x-k8s.io/v1alpha1"}

// Kind is the only accepted value of kind.
const Kind = "EndpointPickerConfig"

// File is a configuration file that has been read: references to the environment expanded, every key known, every value
// of the server's sections in its range. Whether its plugins can be built is what Build finds out.
type File struct {
	// Name is the file's name, for messages.
	Name string
	// Config holds the server's sections. The caller may change it, for example from flags, before Build.
	Config Config
	// Warnings are what is accepted but may not do what the author expects: those of Parse, then those of Build.
	Warnings []Warning

	sum         [sha256.Size]byte // of the text
	version     string
	document    *document
	lookup      func(string) (string, bool)
	plugins     []plugin
	profileName string
	profileAt   origin
	refs        []scheduling.Ref

	parseWarnings int // how many of the warnings are Parse's
	created       []instance
	elsewhere     []string // plugins that only a profile that does not run refers to
	places        map[string]origin
	hash          string          // as last computed
	expansions    []expansion     // the scalars with references
	expanded      map[string]bool // their paths
}

// Warning is like a Fault, but the file runs all the same.
type Warning = Fault

// plugin is a declared plugin, or one of the built-in profile.
type plugin struct {
	name, kind string
	builtIn    bool
	at         origin
	parameters raw
	document   *document // that the parameters are part of
}

// instance is a plugin that a build made. Where it read its parameters, they are here as it left them: as YAML, and the
// scalars among them (then not nil) one by one.
type instance struct {
	name, kind, parameters string
	values                 []parameterValue
}

// root is the shape of the whole file.
type root struct {
	// APIVersion names the format: sluice/v1alpha1, llm-d.ai/v1alpha1, llm-d.ai/v1, inference.networking.x-k8s.io/v1alpha1 or nothing; all
	// mean the same.
	APIVersion string `yaml:"apiVersion"`
	// Kind is always EndpointPickerConfig, and may be absent.
	Kind string `yaml:"kind"`
	// Plugins are the declared plugins. What they need of one another and is not declared is made with its defaults.
	Plugins []pluginEntry `yaml:"plugins"`
	// SchedulingProfiles holds the profile that picks; absent or empty means the built-in one.
	SchedulingProfiles []profileEntry `yaml:"schedulingProfiles"`
	Config             `yaml:",inline"`

	// FeatureGates is llm-d's; it means nothing here, and flowControl in it is refused.
	FeatureGates raw `yaml:"featureGates"`
	// DataLayer is llm-d's; sources and injectDefaults mean nothing here, the rest is refused.
	DataLayer raw `yaml:"dataLayer"`
	// FlowControl is llm-d's; it means nothing here.
	FlowControl raw `yaml:"flowControl"`
	// RequestHandler is llm-d's; it means nothing here, and parsers of other bodies than OpenAI's and Anthropic's are refused.
	RequestHandler raw `yaml:"requestHandler"`
	// SaturationDetector is llm-d's; it means nothing here.
	SaturationDetector raw `yaml:"saturationDetector"`
}

type pluginEntry struct {
	// Name is what profiles and other plugins call it, unique in the file; absent means the type.
	Name string `yaml:"name"`
	// Type is one of the plugin types below.
	Type string `yaml:"type"`
	// Parameters configure it, each type with its own; absent or empty means the defaults.
	Parameters raw    `yaml:"parameters"`
	At         origin `yaml:"-"`
}

type profileEntry struct {
	// Name is what metrics and decisions call the profile; absent means default.
	Name string `yaml:"name"`
	// Plugins are the filters, scorers and the one picker, in the order in which they run.
	Plugins []refEntry `yaml:"plugins"`
	At      origin     `yaml:"-"`
}

type refEntry struct {
	// PluginRef is the name of a declared plugin, or a plugin type, which is then made with its defaults.
	PluginRef string `yaml:"pluginRef"`
	// Weight scales a scorer's scores; absent means 1. Other plugins have none.
	Weight *float64 `yaml:"weight"`
	At     origin   `yaml:"-"`
}

// Schema is a pointer to a struct in the shape of the whole file, with its defaults, for the reference in the
// documentation.
func Schema() any { return &root{Config: defaultConfig()} }

// Load reads a file. lookup knows the environment (os.LookupEnv).
func Load(path string, lookup func(string) (string, bool)) (*File, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return Parse(path, data, lookup)
}

func read(path string) ([]byte, error) {
	data, err := filewatch.Read(path, MaxFileBytes)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return data, nil
}

// Parse reads the text of a file; name is what errors call it. The error is a Faults, with everything that is wrong.
func Parse(name string, data []byte, lookup func(string) (string, bool)) (*File, error) {
	f, faults := parse(name, data, lookup)
	if len(faults) == 0 {
		return f, nil
	}
	if f == nil {
		return nil, faults.err()
	}
	return nil, f.err(faults)
}

// Default is the built-in configuration.
func Default() (*File, error) {
	return Parse("built-in configuration", []byte(DefaultText), noEnvironment)
}

func noEnvironment(string) (string, bool) { return "", false }

// parse returns what could be read even where there are faults; the file is nil where that is nothing.
func parse(name string, data []byte, lookup func(string) (string, bool)) (*File, Faults) {
	doc, faults := parseDocument(name, data)
	if doc == nil {
		return nil, faults
	}
	f := &File{Name: name, document: doc, lookup: lookup, sum: sha256.Sum256(data)}
	p := &parsing{File: f, root: root{Config: defaultConfig()}, faults: faults}
	d := f.decoder(doc)
	d.places = map[string]origin{}
	d.decode("", doc.root, reflect.ValueOf(&p.root).Elem())
	p.faults = append(p.faults, d.faults...)
	f.places = d.places
	p.header()
	p.sections()
	p.foreignSections()
	p.declared()
	p.profile()
	f.Config = p.root.Config
	f.Warnings = Faults(f.Warnings).sorted()
	f.parseWarnings = len(f.Warnings)
	return f, p.faults
}

func (f *File) decoder(doc *document) *decoder {
	return &decoder{document: doc, lookup: f.lookup, expanded: func(e expansion) {
		if f.expanded == nil {
			f.expanded = map[string]bool{}
		}
		if !f.expanded[e.path] {
			f.expanded[e.path], f.expansions = true, append(f.expansions, e)
		}
	}}
}

// parsing is a File in the making.
type parsing struct {
	*File
	root    root
	faults  Faults
	ignored []string // names of plugins that mean nothing here
	broken  []string // names of plugins that have been reported
}

func (p *parsing) addf(at origin, format string, args ...any) {
	p.faults = append(p.faults, at.fault(format, args...))
}

func (f *File) warnf(at origin, format string, args ...any) {
	f.Warnings = append(f.Warnings, f.redacted(at.fault(format, args...)))
}

// place is where the file sets a path; where it does not, the root.
func (f *File) place(path string) origin {
	if at, ok := f.places[path]; ok {
		return at
	}
	return origin{file: f.Name, line: 1, column: 1, path: path}
}

func (p *parsing) header() {
	if v := p.root.APIVersion; v != "" && !slices.Contains(Versions, v) {
		p.addf(p.place("apiVersion"), "unknown version %q%s; accepted are %s, or none", clip(v), scheduling.Hint(v, Versions),
			strings.Join(Versions, ", "))
	}
	if k := p.root.Kind; k != "" && k != Kind {
		p.addf(p.place("kind"), "must be %s or absent, got %q", Kind, clip(k))
	}
	p.version = p.root.APIVersion
}

// sections checks what no single key's range can.
func (p *parsing) sections() {
	p.tls("server.tls", p.root.Server.TLS)
	p.tls("server.adminTLS", TLS(p.root.Server.AdminTLS))
	s := p.root.Server
	if largest := LargestBody(s.MaxBufferedBytes); s.MaxBufferedBytes > 0 && s.MaxRequestBodyBytes > largest {
		p.warnf(p.place("server.maxBufferedBytes"), "one request body may take half of it, %v, which is below server.maxRequestBodyBytes (%v): "+
			"larger ones are answered with 413", largest, s.MaxRequestBodyBytes)
	}
	if at, given := p.places["telemetry.decisionLog"]; given && p.root.Telemetry.DecisionLog.Path == "" {
		p.warnf(at, "no decision is written: path is empty (serve's --decision-log gives one too)")
	}
	p.distinct("endpoints", p.root.Endpoints)
	p.distinct("telemetry.modelLabels", p.root.Telemetry.ModelLabels)
	for i, e := range p.root.Endpoints {
		at := p.place(fmt.Sprintf("endpoints[%d]", i))
		if _, err := discovery.ParseEntry(e); err != nil && !p.faulted(at.path) {
			p.addf(at, "%v", err)
		}
	}
	following := p.root.Kubernetes.Options()
	if at, given := p.places["kubernetes"]; given && !following.Set() {
		p.warnf(at, "nothing is followed: pool, selector and service are empty (serve's flags of these names give one too)")
	}
	for _, f := range following.Check() {
		if at := p.place("kubernetes." + f.Field); !p.faulted(at.path) {
			p.addf(at, "%v", f.Err)
		}
	}
}

// tls checks which keys of a listener's certificates go together.
func (p *parsing) tls(section string, t TLS) {
	files := t.CertFile != "" || t.KeyFile != ""
	at := func(key string) origin { return p.place(section + "." + key) }
	switch {
	case t.CertFile == "" && t.KeyFile != "":
		p.addf(at("keyFile"), "needs %s.certFile beside it", section)
	case t.CertFile != "" && t.KeyFile == "":
		p.addf(at("certFile"), "needs %s.keyFile beside it", section)
	case t.Mode == TLSFiles && !files:
		p.addf(at("mode"), "files needs %[1]s.certFile and %[1]s.keyFile", section)
	case files && (t.Mode == TLSPlaintext || t.Mode == TLSSelfSigned):
		p.addf(at("mode"), "%s does not go with %s.certFile", t.Mode, section)
	}
	switch {
	case t.ClientCAFile == "":
	case t.Mode == TLSPlaintext:
		p.addf(at("clientCAFile"), "does nothing with %s.mode plaintext", section)
	case !files && t.Mode != TLSFiles:
		p.addf(at("clientCAFile"), "needs %[1]s.certFile and %[1]s.keyFile beside it", section)
	}
}

func (p *parsing) distinct(key string, list []string) {
	seen := make(map[string]bool, len(list))
	for i, item := range list {
		at := p.place(fmt.Sprintf("%s[%d]", key, i))
		switch {
		case p.faulted(at.path):
		case strings.TrimSpace(item) == "":
			p.addf(at, "is empty")
		case seen[item]:
			p.addf(at, "%q stands in the list twice", clip(item))
		}
		seen[item] = true
	}
}
