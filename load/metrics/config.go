package metrics

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Parameters are the parameters of engine-metrics-producer.
type Parameters struct {
	// ScrapeInterval is the time from one reading of an endpoint's page to the next: 20ms to 10m, or 0 for
	// max(200ms, endpoints × 4ms).
	ScrapeInterval time.Duration `yaml:"scrapeInterval"`
	// ScrapeTimeout is how long a page may take, from the connection to its last byte: 10ms to 1m.
	ScrapeTimeout time.Duration `yaml:"scrapeTimeout"`
	// StalenessThreshold is the age from which on what an engine said counts as unknown. 0 means max(5s, 10 × interval).
	// It is raised to two intervals where the automatic interval of a large pool needs that.
	StalenessThreshold time.Duration `yaml:"stalenessThreshold"`
	// Path is where engines serve their pages; empty means the engine's usual path. An endpoint's own metrics URL goes
	// before it.
	Path string `yaml:"path"`
	// Engine is the engine that endpoints are taken for which do not say what they are.
	Engine string `yaml:"engine"`
	// MaxPageBytes bounds a page: 4KiB to 1GiB. A longer one is an error.
	MaxPageBytes scheduling.Size `yaml:"maxPageBytes"`
}

// InfoParameters are the parameters of engine-info-producer.
type InfoParameters struct {
	// ScrapeInterval is the time from one reading of an endpoint's page to the next: 20ms to 10m, or 0 for
	// max(5s, endpoints × 20ms). A page that was just read for its load is not read again.
	ScrapeInterval time.Duration `yaml:"scrapeInterval"`
	// ScrapeTimeout is how long a page may take, from the connection to its last byte: 10ms to 1m.
	ScrapeTimeout time.Duration `yaml:"scrapeTimeout"`
	// Path is where engines serve their pages; empty means the engine's usual path. An endpoint's own metrics URL goes
	// before it.
	Path string `yaml:"path"`
	// Engine is the engine that endpoints are taken for which do not say what they are.
	Engine string `yaml:"engine"`
	// MaxPageBytes bounds a page: 4KiB to 1GiB. A longer one is an error.
	MaxPageBytes scheduling.Size `yaml:"maxPageBytes"`
}

const (
	defaultTimeout  = 2 * time.Second
	defaultMaxBytes = 4 << 20

	minInterval, maxInterval = 20 * time.Millisecond, 10 * time.Minute
	minTimeout, maxTimeout   = 10 * time.Millisecond, time.Minute
	minPage, maxPage         = scheduling.Size(4 << 10), scheduling.Size(1 << 30)
)

// DefaultParameters are those of a plugin without a parameters section.
func DefaultParameters() Parameters {
	return Parameters{ScrapeTimeout: defaultTimeout, Engine: "vllm", MaxPageBytes: defaultMaxBytes}
}

// DefaultInfoParameters are those of a plugin without a parameters section.
func DefaultInfoParameters() InfoParameters {
	return InfoParameters{ScrapeTimeout: defaultTimeout, Engine: "vllm", MaxPageBytes: defaultMaxBytes}
}

// complete checks the parameters, reports everything that is wrong, and returns what to scrape by.
func (p Parameters) complete() (settings, error) {
	s, err := InfoParameters{p.ScrapeInterval, p.ScrapeTimeout, p.Path, p.Engine, p.MaxPageBytes}.complete()
	s.pace, s.stale = loadPace, p.StalenessThreshold
	interval, shown := p.ScrapeInterval, p.ScrapeInterval.String()
	if interval == 0 {
		interval, shown = loadPace.least, fmt.Sprintf("automatic, at least %v", loadPace.least)
	}
	switch {
	case s.stale < 0:
		err = errors.Join(err, fmt.Errorf("parameters.stalenessThreshold: must be >= 0, got %v", s.stale))
	case s.stale > 0 && s.stale < 2*interval:
		err = errors.Join(err, fmt.Errorf("parameters.stalenessThreshold: must be at least two scrape intervals, or endpoints that "+
			"answer every time would be unknown in between; got %v, and scrapeInterval is %s", s.stale, shown))
	}
	return s, err
}

func (p InfoParameters) complete() (settings, error) {
	var errs []error
	between := func(name string, v, low, high time.Duration) {
		if v < low || v > high {
			errs = append(errs, fmt.Errorf("parameters.%s: must be %v to %v, got %v", name, low, high, v))
		}
	}
	if p.ScrapeInterval != 0 {
		between("scrapeInterval", p.ScrapeInterval, minInterval, maxInterval)
	}
	between("scrapeTimeout", p.ScrapeTimeout, minTimeout, maxTimeout)
	if p.Path != "" && !strings.HasPrefix(p.Path, "/") {
		errs = append(errs, fmt.Errorf("parameters.path: must begin with /, got %q", p.Path))
	}
	if p.MaxPageBytes < minPage || p.MaxPageBytes > maxPage {
		errs = append(errs, fmt.Errorf("parameters.maxPageBytes: must be %v to %v, got %v", minPage, maxPage, p.MaxPageBytes))
	}
	if err := checkDialect("parameters.engine", p.Engine); err != nil {
		errs = append(errs, err)
	}
	return settings{
		pace: infoPace, interval: p.ScrapeInterval, timeout: p.ScrapeTimeout, path: p.Path,
		fallback: dialectNamed(p.Engine, dialects[0]), maxBytes: int64(p.MaxPageBytes),
	}, errors.Join(errs...)
}
