package tokens

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// Parameters are the plugin's parameters.
type Parameters struct {
	// ModelName is the name by which the server at vllm.url knows the model, for servers that know one name only. It takes
	// the place of a request's model in what the server is asked; empty asks for the request's.
	ModelName string `yaml:"modelName"`
	// Backend says who counts: "estimate" or "vllm"; empty means vllm where vllm is there, else estimate.
	Backend string `yaml:"backend"`
	// Estimate configures estimates; it may be empty.
	Estimate map[string]any `yaml:"estimate"`
	// VLLM configures counting by an engine. In its numbers 0 means the default.
	VLLM *VLLM `yaml:"vllm"`
	// BytesPerToken is the ratio that a model's estimates start at; 0 means 4.
	BytesPerToken float64 `yaml:"bytesPerToken"`
}

// VLLM configures counting by an engine. In all numbers 0 means the default.
type VLLM struct {
	// URL is the base URL of a server with render routes: vLLM with --enable-scale-out, or vllm launch render. Default
	// http://localhost:8000, unless endpoints is set.
	URL string `yaml:"url"`
	// Endpoints asks the endpoints themselves in place of a server, spread over those that are ready and speak vLLM's
	// dialect.
	Endpoints bool `yaml:"endpoints"`
	// Timeout is how long a request waits for its tokens; past it the request goes on with an estimate: 1ms to
	// 1m. Default 150ms. It waits no longer than the server's produceTimeout allows either.
	Timeout time.Duration `yaml:"timeout"`
	// MMTimeout is Timeout for requests with images, recordings and the like; 0 means Timeout.
	MMTimeout time.Duration `yaml:"mmTimeout"`
	// APIKey is sent as a bearer token.
	APIKey string `yaml:"apiKey" secret:"true"`
	// Concurrency is the number of calls under way that one server gets at most: 1 to 1024. Default 32.
	Concurrency int `yaml:"concurrency"`
	// MaxBodyBytes is the length of the largest request body that is sent: 1KiB to 1GiB. Default 8MiB.
	MaxBodyBytes scheduling.Size `yaml:"maxBodyBytes"`
	// MemoBytes bounds the memory for the tokens of prompts that were rendered before: 1MiB to 1024GiB. Default
	// 128MiB.
	MemoBytes scheduling.Size `yaml:"memoBytes"`
	// PrefixMemo lets a conversation that goes on be rendered without the messages between its system message and the last
	// one known, where that was found to be exact. Default true.
	PrefixMemo *bool `yaml:"prefixMemo"`
}

const (
	defaultBytesPerToken = 4
	defaultURL           = "http://localhost:8000"
	defaultTimeout       = 150 * time.Millisecond
	maxTimeout           = time.Minute
	defaultConcurrency   = 32
	maxConcurrency       = 1024
	defaultBodyBytes     = 8 << 20
	minBodyBytes         = scheduling.Size(1 << 10)
	maxBodyBytes         = scheduling.Size(1 << 30)
	defaultMemoBytes     = 128 << 20
	minMemoBytes         = scheduling.Size(1 << 20)
	maxMemoBytes         = scheduling.Size(1 << 40)
)

// The backends that configuration files name.
const (
	backendEstimate = "estimate"
	backendVLLM     = "vllm"
)

// complete puts defaults in place of zeros and checks the rest. Afterwards VLLM is nil where estimates are all there is.
func (p *Parameters) complete() error {
	var errs []error
	switch p.Backend {
	case "":
	case backendEstimate:
		if p.VLLM != nil {
			errs = append(errs, fmt.Errorf("parameters.vllm: is set, and backend is %q; leave one of them out", p.Backend))
		}
	case backendVLLM:
		if p.VLLM == nil {
			p.VLLM = &VLLM{}
		}
	default:
		names := []string{backendEstimate, backendVLLM}
		errs = append(errs, fmt.Errorf("parameters.backend: must be %q or %q, got %q%s", names[0], names[1], p.Backend, scheduling.Hint(p.Backend, names)))
	}
	p.BytesPerToken = cmp.Or(p.BytesPerToken, defaultBytesPerToken)
	if !(p.BytesPerToken >= minRatio && p.BytesPerToken <= maxRatio) { // false for NaN too
		errs = append(errs, fmt.Errorf("parameters.bytesPerToken: must be %v to %v, got %v", minRatio, maxRatio, p.BytesPerToken))
	}
	if p.VLLM != nil {
		completed := *p.VLLM // what was decoded stays as it is
		p.VLLM = &completed
		errs = append(errs, p.VLLM.complete()...)
	}
	return errors.Join(errs...)
}

func (v *VLLM) complete() (errs []error) {
	switch {
	case v.URL != "" && v.Endpoints:
		errs = append(errs, fmt.Errorf("parameters.vllm.url: is set to %q, and endpoints too; leave one of them out", v.URL))
	case !v.Endpoints:
		v.URL = strings.TrimRight(cmp.Or(v.URL, defaultURL), "/")
		if fault := urlFault(v.URL); fault != "" {
			errs = append(errs, fmt.Errorf("parameters.vllm.url: %s", fault))
		}
	}
	if v.PrefixMemo == nil {
		v.PrefixMemo = new(true)
	}
	v.Timeout = cmp.Or(v.Timeout, defaultTimeout)
	v.MMTimeout = cmp.Or(v.MMTimeout, v.Timeout)
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"timeout", v.Timeout}, {"mmTimeout", v.MMTimeout}} {
		if d.value < time.Millisecond || d.value > maxTimeout {
			errs = append(errs, fmt.Errorf("parameters.vllm.%s: must be 1ms to %v, got %v", d.name, maxTimeout, d.value))
		}
	}
	v.Concurrency = cmp.Or(v.Concurrency, defaultConcurrency)
	v.MaxBodyBytes = cmp.Or(v.MaxBodyBytes, defaultBodyBytes)
	v.MemoBytes = cmp.Or(v.MemoBytes, defaultMemoBytes)
	if v.Concurrency < 1 || v.Concurrency > maxConcurrency {
		errs = append(errs, fmt.Errorf("parameters.vllm.concurrency: must be 1 to %d, or 0 for the default, got %d", maxConcurrency, v.Concurrency))
	}
	for _, n := range []struct {
		name             string
		value, low, high scheduling.Size
	}{
		{"maxBodyBytes", v.MaxBodyBytes, minBodyBytes, maxBodyBytes},
		{"memoBytes", v.MemoBytes, minMemoBytes, maxMemoBytes},
	} {
		if n.value < n.low || n.value > n.high {
			errs = append(errs, fmt.Errorf("parameters.vllm.%s: must be %v to %v, or 0 for the default, got %v", n.name, n.low, n.high, n.value))
		}
	}
	return errs
}

// urlFault says what is wrong with a base URL; empty where nothing is.
func urlFault(raw string) string {
	u, err := url.Parse(raw)
	switch {
	case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "":
		return fmt.Sprintf("must be http://HOST… or https://HOST…, got %q", raw)
	case u.User != nil:
		return fmt.Sprintf("must hold no user and password (apiKey is for a token), got %q", u.Redacted())
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return fmt.Sprintf("must hold no query and no fragment, got %q", raw)
	}
	return ""
}

// prefixMemo reports whether conversations may be joined.
func (v *VLLM) prefixMemo() bool { return v.PrefixMemo == nil || *v.PrefixMemo }

// same reports whether two configurations lead to the same tokens for the same request.
func (p *Parameters) same(o *Parameters) bool {
	return p.VLLM != nil && o.VLLM != nil && p.ModelName == o.ModelName && p.VLLM.URL == o.VLLM.URL &&
		p.VLLM.Endpoints == o.VLLM.Endpoints && p.VLLM.MemoBytes == o.VLLM.MemoBytes
}
