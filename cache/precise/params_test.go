package precise

import (
	"fmt"
	"strings"
	"testing"
)

// Fewer tokens a block are more entries than memory holds.
func TestC24_BlocksOfOneTokenAreRefused(t *testing.T) {
	h := newHarness(t, nil)
	const want = "parameters.blockSizeTokens: must be 4 to 65536 tokens"
	for _, size := range []int{-1, 1, 3, 65537} {
		if _, err := h.build(func(p *Parameters) { p.BlockSizeTokens = size }); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%d tokens: error %v, want one with %q", size, err, want)
		}
	}
	s, err := h.build(func(p *Parameters) { p.BlockSizeTokens = 4 })
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestParameterErrors(t *testing.T) {
	h := newHarness(t, nil)
	for name, tc := range map[string]struct {
		change func(*Parameters)
		want   string
	}{
		"reach":        {func(p *Parameters) { p.MaxPrefixTokens = -1 }, "parameters.maxPrefixTokens: must be 1 to"},
		"bound":        {func(p *Parameters) { p.MaxBlocksPerEndpoint = 1 << 30 }, "parameters.maxBlocksPerEndpoint: must be 1 to"},
		"orphans":      {func(p *Parameters) { p.MaxParkedBlocks = 1<<20 + 1 }, "parameters.maxParkedBlocks: must be 1 to 1048576 blocks"},
		"message":      {func(p *Parameters) { p.KVEvents.MaxMessageBytes = 1000 }, "parameters.kvEvents.maxMessageBytes: must be 64KiB to 1GiB, or 0 for the default, got 1000"},
		"weight":       {func(p *Parameters) { p.Tiers = map[string]float64{"cpu": 1.5} }, "parameters.tiers.cpu: must be a weight from 0 to 1, got 1.5"},
		"other weight": {func(p *Parameters) { p.OtherTier = -1 }, "parameters.otherTier: must be a weight from 0 to 1"},
		"port":         {func(p *Parameters) { p.KVEvents.Port = 70000 }, "parameters.kvEvents.port: must be 1 to 65535"},
		"ranks":        {func(p *Parameters) { p.KVEvents.Ranks = -1 }, "parameters.kvEvents.ranks: must be 1 to 256"},
		"two spellings": {func(p *Parameters) {
			p.KVEvents.Port, p.KVEventsConfig = 6000, &KVEventsConfig{SocketPort: 6001}
		}, "kvEvents.port (6000) and kvEventsConfig.socketPort"},
		"token producer": {func(p *Parameters) { p.TokenProducerName = "token-producr" }, `(did you mean "token-producer"?)`},
		"many tiers": {func(p *Parameters) {
			p.Tiers = map[string]float64{}
			for i := range 20 {
				p.Tiers[fmt.Sprint("tier", i)] = 0.5
			}
		}, "parameters.tiers: at most 16 tiers"},
	} {
		if _, err := h.build(tc.change); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", name, err, tc.want)
		}
	}
	// What could not be built leaves nothing: the metrics are those of what serves.
	h.endpoints("a:1")
	h.serve(text("m", strings.Repeat("x", 640)), "a:1", -1)
	if n := h.metric("sluice_prefix_index_entries"); n != 10 {
		t.Errorf("%v entries in the metrics, want 10", n)
	}
}

// Other spellings of the parameters mean the same.
func TestParameterSpellings(t *testing.T) {
	h := newHarness(t, func(p *Parameters) {
		p.TokenProcessorConfig = &TokenProcessorConfig{BlockSizeTokens: 32, HashSeed: "s"}
		p.KVEventsConfig = &KVEventsConfig{TopicFilter: "kv@", PodDiscoveryConfig: &PodDiscoveryConfig{SocketPort: 6000, ReplaySocketPort: 6001}}
	})
	h.endpoints("a:1")
	c := h.site.at("a:1").config
	if c.Port != 6000 || c.ReplayPort != 6001 || c.Topic != "kv@" {
		t.Errorf("followed with %+v", c)
	}
	if p := h.producer().params; p.BlockSizeTokens != 32 || p.HashSeed != "s" {
		t.Errorf("parameters %+v", p)
	}
}
