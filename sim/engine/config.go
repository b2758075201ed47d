package engine

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net"
	"net/http"
	"slices"

	"github.com/sluice-epp/sluice/sim"
)

// Config says what a [Server] serves. The zero value of a field takes the default given beside it.
type Config struct {
	Listen           string     // "127.0.0.1:0": a free port on loopback
	Name             string     // the address listened on; sent as x-sim-endpoint
	Models           []string   // "sim"; the first is the model, the others are aliases of it
	Adapters         []string   // none; names of LoRA adapters, served as models of their own
	Speed            float64    // 1; how many times faster than modelled everything takes place
	Params           sim.Params // [sim.DefaultParams], field by field; MaxModelLen at most the cache, HashSeed random at each start
	DefaultMaxTokens int        // 16 tokens; output of a request that sets no limit
	MaxBodyBytes     int64      // 64 MiB; longer request bodies are answered 413
	KVEvents         *KVEvents  // nil; publishes what happens to the prefix cache
	NoRender         bool       // no render routes, as a vLLM without --enable-scale-out

	// Served is nil, or told of each request that the model worked for, once its answer is over. It must not block.
	Served func(Served)

	// Wrap is nil, or made once a life: what it returns gets every request first, and may pass it on. Its writers must
	// unwrap for [http.ResponseController].
	Wrap func(http.Handler) http.Handler
}

// withDefaults fills in what is unset and checks the rest.
func (c Config) withDefaults() (Config, error) {
	d := sim.DefaultParams()
	p := &c.Params
	c.Listen = cmp.Or(c.Listen, "127.0.0.1:0")
	if len(c.Models) == 0 {
		c.Models = []string{"sim"}
	}
	c.Speed = cmp.Or(c.Speed, 1)
	c.DefaultMaxTokens = cmp.Or(c.DefaultMaxTokens, 16)
	c.MaxBodyBytes = cmp.Or(c.MaxBodyBytes, 64<<20)
	p.BlockSize = cmp.Or(p.BlockSize, d.BlockSize)
	p.NumBlocks = cmp.Or(p.NumBlocks, d.NumBlocks)
	if p.MaxModelLen == 0 {
		p.MaxModelLen = d.MaxModelLen
		if p.NumBlocks < d.MaxModelLen && p.BlockSize < d.MaxModelLen { // else it fits, or is refused
			p.MaxModelLen = min(d.MaxModelLen, p.NumBlocks*p.BlockSize)
		}
	}
	p.MaxBatchedTokens = cmp.Or(p.MaxBatchedTokens, d.MaxBatchedTokens)
	p.MaxSeqs = cmp.Or(p.MaxSeqs, d.MaxSeqs)
	p.MaxWaiting = cmp.Or(p.MaxWaiting, d.MaxWaiting)
	p.Cost = cmp.Or(p.Cost, d.Cost)
	if c.KVEvents != nil {
		k := *c.KVEvents
		k.withDefaults()
		c.KVEvents = &k
	}
	return c, c.validate()
}

func (c Config) validate() error {
	var errs []error
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		errs = append(errs, fmt.Errorf("listen: %q: %w", c.Listen, err))
	}
	if !(c.Speed > 0) || math.IsInf(c.Speed, 1) {
		errs = append(errs, fmt.Errorf("speed: must be a finite number > 0, got %v", c.Speed))
	}
	if c.DefaultMaxTokens < 0 {
		errs = append(errs, fmt.Errorf("defaultMaxTokens: must be > 0, got %d", c.DefaultMaxTokens))
	}
	if c.MaxBodyBytes < 0 {
		errs = append(errs, fmt.Errorf("maxBodyBytes: must be > 0, got %d", c.MaxBodyBytes))
	}
	if c.KVEvents != nil {
		errs = append(errs, c.KVEvents.validate()...)
	}
	names := slices.Concat(c.Models, c.Adapters)
	for i, n := range names {
		switch {
		case n == "":
			errs = append(errs, errors.New("models, adapters: a name is empty"))
		case slices.Contains(names[:i], n):
			errs = append(errs, fmt.Errorf("models, adapters: name %q is used twice", n))
		}
	}
	return errors.Join(append(errs, c.Params.Validate())...)
}
