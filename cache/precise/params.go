package precise

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/scheduling"
)

// Parameters are the plugin's parameters.
type Parameters struct {
	// BlockSizeTokens is the size of an engine's KV blocks in tokens, 4 to 65536, for endpoints that have told
	// theirs neither in events nor in metrics; 0 means 16. Events always win; one that differs is counted.
	BlockSizeTokens int `yaml:"blockSizeTokens"`
	// MaxPrefixTokens is how far into a prompt the index looks, in tokens: 1 to 16777216, or 0 for the default.
	MaxPrefixTokens int `yaml:"maxPrefixTokens"`
	// MaxBlocksPerEndpoint bounds what is kept of one engine (endpoint and data-parallel rank), in blocks: 1 to
	// 67108864, or 0 for the default.
	MaxBlocksPerEndpoint int `yaml:"maxBlocksPerEndpoint"`
	// MaxParkedBlocks bounds what is kept of one engine (endpoint and data-parallel rank) of blocks whose parent has not been
	// heard of, in blocks: 1 to 1048576, or 0 for the default. The oldest go for new ones.
	MaxParkedBlocks int `yaml:"maxParkedBlocks"`
	// SpeculativeIndexing counts a picked prompt as present on its endpoint until the engine's events say so, for at most
	// speculativeTTL.
	SpeculativeIndexing bool `yaml:"speculativeIndexing"`
	// SpeculativeTTL is that time: at most 1m; 0 means the default.
	SpeculativeTTL time.Duration `yaml:"speculativeTTL"`
	// Tiers are the weights of blocks by the kind of memory that they are in, 0 to 1; names as engines write them, in
	// any case. gpu, cpu and cpu_pinned have defaults.
	Tiers map[string]float64 `yaml:"tiers"`
	// OtherTier is the weight of blocks in any other kind of memory.
	OtherTier float64 `yaml:"otherTier"`
	// HashSeed is a secret that keys the block hashes; empty means one that is drawn when the process starts.
	HashSeed string `yaml:"hashSeed"`
	// TokenProducerName is the token producer to use; empty means the only one.
	TokenProducerName string `yaml:"tokenProducerName"`
	// KVEvents says where engines publish their events, for endpoints that do not say so themselves.
	KVEvents KVEvents `yaml:"kvEvents"`

	// TokenProcessorConfig is another spelling of BlockSizeTokens and HashSeed.
	TokenProcessorConfig *TokenProcessorConfig `yaml:"tokenProcessorConfig"`
	// KVEventsConfig is another spelling of KVEvents.
	KVEventsConfig *KVEventsConfig `yaml:"kvEventsConfig"`
}

// KVEvents says where engines publish their events.
type KVEvents struct {
	// Port is the TCP port of the publisher of rank 0; rank r has port + r. 0 means the default.
	Port int `yaml:"port"`
	// ReplayPort is the TCP port of the replay socket of rank 0; rank r has replayPort + r. 0 means none, unless the
	// engine names one.
	ReplayPort int `yaml:"replayPort"`
	// Ranks is the number of data-parallel ranks behind an endpoint that does not name them; 0 means 1.
	Ranks int `yaml:"ranks"`
	// Topic is the prefix of the topics to read; empty means all.
	Topic string `yaml:"topic"`
	// Bind is an address to listen on for engines that connect by themselves; empty means that none does.
	Bind string `yaml:"bind"`
	// Discover asks engines where they publish first.
	Discover bool `yaml:"discover"`
	// MaxMessageBytes bounds one message of an engine, which is a batch of events with its topic: 64KiB to 1GiB, or 0 for
	// the default. A connection on which a larger one begins is closed and opened again, and what was in it counts as missed.
	MaxMessageBytes scheduling.Size `yaml:"maxMessageBytes"`
}

// TokenProcessorConfig is another spelling of some parameters.
type TokenProcessorConfig struct {
	// BlockSizeTokens is the parameter of the same name.
	BlockSizeTokens int `yaml:"blockSizeTokens"`
	// BlockSize is blockSizeTokens too.
	BlockSize int `yaml:"blockSize"`
	// HashSeed is the parameter of the same name.
	HashSeed string `yaml:"hashSeed"`
	// HashAlgorithm is read and not used: the index's hashes are its own.
	HashAlgorithm string `yaml:"hashAlgorithm"`
}

// KVEventsConfig is another spelling of KVEvents.
type KVEventsConfig struct {
	// TopicFilter is topic.
	TopicFilter string `yaml:"topicFilter"`
	// Concurrency is read and not used: every engine has a reader of its own.
	Concurrency int `yaml:"concurrency"`
	// DiscoverPods is read and not used: endpoints are found as the configuration says.
	DiscoverPods bool `yaml:"discoverPods"`
	// PodDiscoveryConfig may hold the ports too.
	PodDiscoveryConfig *PodDiscoveryConfig `yaml:"podDiscoveryConfig"`
	// SocketPort is port.
	SocketPort int `yaml:"socketPort"`
	// ReplaySocketPort is replayPort.
	ReplaySocketPort int `yaml:"replaySocketPort"`
	// EngineType is read and not used: every dialect is understood.
	EngineType string `yaml:"engineType"`
	// ZMQEndpoint is an address to listen on, as "tcp://*:5557": bind.
	ZMQEndpoint string `yaml:"zmqEndpoint"`
}

// PodDiscoveryConfig is a part of another spelling of KVEvents.
type PodDiscoveryConfig struct {
	// SocketPort is port.
	SocketPort int `yaml:"socketPort"`
	// ReplaySocketPort is replayPort.
	ReplaySocketPort int `yaml:"replaySocketPort"`
}

// The bounds of the parameters. Blocks below 4 tokens cost more to remember than to recompute.
const (
	minBlockTokens  = 4
	maxBlockTokens  = 65536
	defaultBlock    = 16
	defaultPrefix   = 1 << 20
	maxPrefix       = 1 << 24
	defaultCapacity = 1 << 20
	maxCapacity     = 1 << 26
	minMessage      = scheduling.Size(64 << 10)
	maxMessage      = scheduling.Size(1 << 30)
	maxParked       = 1 << 20
	defaultPort     = 5557
	maxPort         = 65535
	defaultTTL      = 2 * time.Second
	maxTTL          = time.Minute
)

func defaultParameters() Parameters {
	return Parameters{
		BlockSizeTokens: defaultBlock, MaxPrefixTokens: defaultPrefix, MaxBlocksPerEndpoint: defaultCapacity,
		MaxParkedBlocks:     defaultParked,
		SpeculativeIndexing: true, SpeculativeTTL: defaultTTL, Tiers: maps.Clone(defaultTiers), OtherTier: defaultOtherTier,
		KVEvents: KVEvents{Port: defaultPort, Ranks: 1, Discover: true, MaxMessageBytes: kvevents.DefaultMaxMessageBytes},
	}
}

// complete brings the spellings together, puts defaults in place of zeros and checks everything.
func (p *Parameters) complete() error {
	var errs []error
	one := func(path, other string, value *int, theirs int, standard int) {
		switch {
		case theirs == 0 || theirs == *value:
		case *value != standard && *value != 0:
			errs = append(errs, fmt.Errorf("parameters: %s (%d) and %s (%d) mean the same; give one", path, *value, other, theirs))
		default:
			*value = theirs
		}
	}
	t, k := cmp.Or(p.TokenProcessorConfig, &TokenProcessorConfig{}), cmp.Or(p.KVEventsConfig, &KVEventsConfig{})
	pods := cmp.Or(k.PodDiscoveryConfig, &PodDiscoveryConfig{})
	one("blockSizeTokens", "tokenProcessorConfig.blockSizeTokens", &p.BlockSizeTokens, cmp.Or(t.BlockSizeTokens, t.BlockSize), defaultBlock)
	one("kvEvents.port", "kvEventsConfig.socketPort", &p.KVEvents.Port, cmp.Or(k.SocketPort, pods.SocketPort), defaultPort)
	one("kvEvents.replayPort", "kvEventsConfig.replaySocketPort", &p.KVEvents.ReplayPort,
		cmp.Or(k.ReplaySocketPort, pods.ReplaySocketPort), 0)
	p.HashSeed = cmp.Or(p.HashSeed, t.HashSeed)
	p.KVEvents.Topic = cmp.Or(p.KVEvents.Topic, k.TopicFilter)
	p.KVEvents.Bind = cmp.Or(p.KVEvents.Bind, listenAddress(k.ZMQEndpoint))

	p.BlockSizeTokens = cmp.Or(p.BlockSizeTokens, defaultBlock)
	p.MaxPrefixTokens = cmp.Or(p.MaxPrefixTokens, defaultPrefix)
	p.MaxBlocksPerEndpoint = cmp.Or(p.MaxBlocksPerEndpoint, defaultCapacity)
	p.MaxParkedBlocks = cmp.Or(p.MaxParkedBlocks, defaultParked)
	p.KVEvents.Port = cmp.Or(p.KVEvents.Port, defaultPort)
	p.KVEvents.MaxMessageBytes = cmp.Or(p.KVEvents.MaxMessageBytes, kvevents.DefaultMaxMessageBytes)
	p.KVEvents.Ranks = cmp.Or(p.KVEvents.Ranks, 1)
	for _, b := range []struct {
		name      string
		value     int
		low, high int
		unit      string
	}{
		{"blockSizeTokens", p.BlockSizeTokens, minBlockTokens, maxBlockTokens, "tokens (an entry per fewer tokens outgrows memory)"},
		{"maxPrefixTokens", p.MaxPrefixTokens, 1, maxPrefix, "tokens, or 0 for the default"},
		{"maxBlocksPerEndpoint", p.MaxBlocksPerEndpoint, 1, maxCapacity, "blocks, or 0 for the default"},
		{"maxParkedBlocks", p.MaxParkedBlocks, 1, maxParked, "blocks, or 0 for the default"},
		{"kvEvents.port", p.KVEvents.Port, 1, maxPort, "(a TCP port)"},
		{"kvEvents.replayPort", p.KVEvents.ReplayPort, 0, maxPort, "(a TCP port, or 0 for none)"},
		{"kvEvents.ranks", p.KVEvents.Ranks, 1, maxRanks, "data-parallel ranks"},
	} {
		if b.value < b.low || b.value > b.high {
			errs = append(errs, fmt.Errorf("parameters.%s: must be %d to %d %s, got %d", b.name, b.low, b.high, b.unit, b.value))
		}
	}
	if size := p.KVEvents.MaxMessageBytes; size < minMessage || size > maxMessage {
		errs = append(errs, fmt.Errorf("parameters.kvEvents.maxMessageBytes: must be %v to %v, or 0 for the default, got %v", minMessage, maxMessage, size))
	}
	p.SpeculativeTTL = cmp.Or(p.SpeculativeTTL, defaultTTL)
	if p.SpeculativeTTL < 0 || p.SpeculativeTTL > maxTTL {
		errs = append(errs, fmt.Errorf("parameters.speculativeTTL: must be above 0 and at most %v, got %v", maxTTL, p.SpeculativeTTL))
	}
	errs = append(errs, p.KVEvents.check()...)
	p.Tiers = lowerTiers(p.Tiers)
	if _, err := newTierWeights(p.Tiers, p.OtherTier); err != nil {
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// check reports sockets of ranks that would be one another's, and an address that cannot be listened on.
func (k *KVEvents) check() (errs []error) {
	if k.ReplayPort > 0 && k.Port < k.ReplayPort+k.Ranks && k.ReplayPort < k.Port+k.Ranks {
		errs = append(errs, fmt.Errorf("parameters.kvEvents.replayPort: %d to %d for %d ranks meets port, %d to %d",
			k.ReplayPort, k.ReplayPort+k.Ranks-1, k.Ranks, k.Port, k.Port+k.Ranks-1))
	}
	if k.Bind != "" {
		if _, port, err := net.SplitHostPort(k.Bind); err != nil || port == "" {
			errs = append(errs, fmt.Errorf("parameters.kvEvents.bind: must be host:port, or :port for all addresses, got %q", k.Bind))
		}
	}
	return errs
}

// lowerTiers are weights by names in lower case, with the defaults for what is not given. A name that was written in
// another case is the user's, and wins over a default.
func lowerTiers(given map[string]float64) map[string]float64 {
	tiers := maps.Clone(defaultTiers)
	for name, w := range given {
		if strings.ToLower(name) == name {
			tiers[name] = w
		}
	}
	for name, w := range given {
		if lower := strings.ToLower(name); lower != name {
			tiers[lower] = w
		}
	}
	return tiers
}

// listenAddress is "tcp://*:5557" as a listener has it.
func listenAddress(zmq string) string {
	address := strings.TrimPrefix(zmq, "tcp://")
	if rest, ok := strings.CutPrefix(address, "*"); ok {
		return rest
	}
	return address
}
