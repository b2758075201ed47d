package config

import (
	"fmt"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// What an llm-d EndpointPickerConfig may hold beyond the plugins that exist here. What means nothing here is accepted
// with a warning; what would have changed how requests are served is refused by name.

// ignoredTypes are plugin types that mean nothing here, and why.
var ignoredTypes = map[string]string{
	"single-profile-handler":        "there is one profile, and no handler to choose it",
	"metrics-data-source":           "engine metrics are scraped where a plugin needs them",
	"core-metrics-extractor":        "engine metrics are scraped where a plugin needs them",
	"models-data-source":            "no plugin here reads the engines' model lists",
	"models-data-extractor":         "no plugin here reads the engines' model lists",
	"endpoint-notification-source":  "endpoints come from endpoints, endpointsFile or kubernetes",
	"k8s-notification-source":       "endpoints come from endpoints, endpointsFile or kubernetes",
	"utilization-detector":          "nothing is queued here, and so nothing detects saturation",
	"concurrency-detector":          "nothing is queued here, and so nothing detects saturation",
	"openai-parser":                 "OpenAI bodies are recognised by their path",
	"anthropic-parser":              "Messages bodies are recognised by their path",
	"global-strict-fairness-policy": "nothing is queued here",
	"round-robin-fairness-policy":   "nothing is queued here",
	"fcfs-ordering-policy":          "nothing is queued here",
	"edf-ordering-policy":           "nothing is queued here",
	"slo-deadline-ordering-policy":  "nothing is queued here",
	"static-usage-limit-policy":     "nothing is queued here",
}

// refusedTypes are llm-d's plugin types that are not here, and what to do instead; an empty text says no more.
var refusedTypes = map[string]string{
	"encode-filter":                            "remove it: encode, prefill and decode are not served by different endpoints here",
	"prefill-filter":                           "remove it: encode, prefill and decode are not served by different endpoints here",
	"decode-filter":                            "remove it, or keep the endpoints by label with label-selector-filter",
	"by-label":                                 "keep the endpoints by label with label-selector-filter",
	"by-label-selector":                        "its name is label-selector-filter",
	"utilization-filter":                       "queue-scorer and kv-cache-utilization-scorer prefer engines with room, and keep the others",
	"endpoint-attribute-filter":                "label-selector-filter keeps endpoints by label",
	"topology-affinity-filter":                 "label-selector-filter keeps endpoints by label",
	"session-affinity-filter":                  "session-affinity-scorer prefers who served the session, with a weight",
	"running-requests-size-scorer":             "active-request-scorer counts the requests in flight",
	"load-aware-scorer":                        "queue-scorer scores by the engines' queues",
	"precise-prefix-cache-scorer":              "score with prefix-cache-scorer",
	"context-length-aware":                     "",
	"mm-embeddings-cache-scorer":               "",
	"topology-affinity-scorer":                 "label-selector-filter keeps endpoints by label",
	"header-label-affinity-scorer":             "label-selector-filter keeps endpoints by label, whatever the headers say",
	"endpoint-attribute-scorer":                "",
	"data-parallel-profile-handler":            "each rank is an endpoint of its own here",
	"disagg-profile-handler":                   "encode, prefill and decode are not served by different endpoints here",
	"pd-profile-handler":                       "encode, prefill and decode are not served by different endpoints here",
	"disagg-headers-handler":                   "encode, prefill and decode are not served by different endpoints here",
	"prefill-header-handler":                   "encode, prefill and decode are not served by different endpoints here",
	"header-profile-handler":                   "there is one profile",
	"always-disagg-pd-decider":                 "encode, prefill and decode are not served by different endpoints here",
	"prefix-based-pd-decider":                  "encode, prefill and decode are not served by different endpoints here",
	"always-disagg-multimodal-decider":         "encode, prefill and decode are not served by different endpoints here",
	"mm-embeddings-cache-producer":             "",
	"session-id-producer":                      "session-affinity-scorer reads a token of its own",
	"burst-prefix-cache-producer":              "simultaneous picks see one another's charges here",
	"p2p-source-producer":                      "",
	"latency-slo-admitter":                     "slo-headroom-tier-filter prefers endpoints that meet what is asked; nothing is shed here",
	"probabilistic-admitter":                   "nothing is shed here",
	"agent-identity":                           "",
	"disaggregatedset-rollout-screener":        "",
	"request-attribute-reporter":               "metrics and the decision log hold what engines count",
	"dcgm-data-source":                         "",
	"dcgm-extractor":                           "",
	"topology-extractor":                       "",
	"file-discovery":                           "list the endpoints in a file and name it in endpointsFile",
	"program-aware-fairness":                   "flow control is not supported",
	"priority-holdback-policy":                 "flow control is not supported",
	"soft-reflective-ceiling-policy":           "flow control is not supported",
	"sheddable-eviction-filter":                "flow control is not supported",
	"priority-then-time-eviction-order-policy": "flow control is not supported",
	"vllmgrpc-parser":                          "only JSON bodies over HTTP are parsed; others are routed by load",
	"vllmhttp-parser":                          "only OpenAI and Messages bodies are parsed; others are routed by load",
	"sglanggrpc-parser":                        "only JSON bodies over HTTP are parsed; others are routed by load",
	"sglanghttp-parser":                        "only OpenAI and Messages bodies are parsed; others are routed by load",
	"vertexai-parser":                          "only OpenAI and Messages bodies are parsed; others are routed by load",
	"passthrough-parser":                       "what cannot be parsed is routed by load",
}

// aliases are other names of types.
var aliases = map[string]string{"tokenizer": "token-producer"}

func aliasOf(kind string) string {
	if to, ok := aliases[kind]; ok {
		return to
	}
	return kind
}

// refusal says why an llm-d plugin type is refused; "" for a type that is not refused.
func refusal(kind string) string {
	advice, refused := refusedTypes[kind]
	if !refused && strings.HasPrefix(kind, "multicluster-") {
		refused = true
	}
	switch {
	case !refused:
		return ""
	case advice == "":
		return fmt.Sprintf("llm-d's %s is not supported", kind)
	}
	return fmt.Sprintf("llm-d's %s is not supported: %s", kind, advice)
}

// foreignPlugin warns of a type that means nothing here, or refuses one; it reports false for all others.
func (p *parsing) foreignPlugin(at origin, name, kind string) bool {
	if why, ok := ignoredTypes[kind]; ok {
		p.warnf(at, "llm-d's %s means nothing here and is left out: %s", kind, why)
		p.ignored = append(p.ignored, name)
		return true
	}
	if why := refusal(kind); why != "" {
		p.addf(at, "%s", why)
		p.broken = append(p.broken, name)
		return true
	}
	return false
}

// foreignSections judges llm-d's top-level sections.
func (p *parsing) foreignSections() {
	p.featureGates()
	p.dataLayer()
	p.parsers()
	for _, s := range []struct {
		raw  raw
		text string
	}{
		{p.root.FlowControl, "llm-d's flowControl means nothing here and is left out: without its feature gate it is off"},
		{p.root.SaturationDetector, "llm-d's saturationDetector means nothing here and is left out: nothing is queued or shed here"},
	} {
		if s.raw.node != nil {
			p.warnf(s.raw.at, "%s", s.text)
		}
	}
}

func (p *parsing) featureGates() {
	var gates []string
	if !p.foreignList(p.root.FeatureGates, &gates) {
		return
	}
	for i, gate := range gates {
		at := p.document.at(p.root.FeatureGates.node.(*ast.SequenceNode).Values[i], fmt.Sprintf("featureGates[%d]", i))
		name, value, _ := strings.Cut(gate, "=")
		if strings.EqualFold(name, "flowControl") && value != "false" {
			p.addf(at, "llm-d's flowControl is not supported: nothing is queued or shed here")
			continue
		}
		p.warnf(at, "llm-d's feature gate %q means nothing here and is left out", clip(gate))
	}
}

// foreignList decodes a foreign list; false where there is none.
func (p *parsing) foreignList(r raw, into *[]string) bool {
	if r.node == nil {
		return false
	}
	d := p.decoder(p.document)
	d.decode(r.at.path, r.node, reflect.ValueOf(into).Elem())
	p.faults = append(p.faults, d.faults...)
	return len(d.faults) == 0
}

// dataLayer accepts sources of metrics, which are scraped here without being asked for.
func (p *parsing) dataLayer() {
	entries, ok := p.document.entries(p.root.DataLayer.node)
	if !ok {
		if p.root.DataLayer.node != nil {
			p.addf(p.root.DataLayer.at, "must be a mapping of keys to values, got %s", kindOf(p.root.DataLayer.node))
		}
		return
	}
	for _, e := range entries {
		key := keyText(e)
		at := p.document.at(e.Key, "dataLayer."+clip(key))
		switch key {
		case "sources", "injectDefaults":
			p.warnf(at, "llm-d's dataLayer.%s means nothing here and is left out: engine metrics are scraped where a plugin needs them", key)
		case "discovery":
			p.addf(at, "llm-d's dataLayer.discovery is not supported: name them under endpoints, endpointsFile or kubernetes")
		case "peerDiscovery", "crossReplicaSyncerPluginRef", "crossReplicaSyncInterval":
			p.addf(at, "llm-d's dataLayer.%s is not supported: each replica counts its own picks", key)
		default:
			p.addf(at, "unknown key%s", hint(key, []string{"sources", "injectDefaults", "discovery", "peerDiscovery",
				"crossReplicaSyncerPluginRef", "crossReplicaSyncInterval"}))
		}
		p.unsupportedRefs(at.path, e.Value)
	}
}

// unsupportedRefs refuses references to plugin types that are refused and were not declared.
func (p *parsing) unsupportedRefs(path string, n ast.Node) {
	switch v := p.document.resolve(n).(type) {
	case *ast.SequenceNode:
		for i, item := range v.Values {
			p.unsupportedRefs(fmt.Sprintf("%s[%d]", path, i), item)
		}
	case *ast.MappingNode:
		for _, e := range v.Values {
			at := join(path, keyText(e))
			if keyText(e) == "pluginRef" {
				if why := refusal(nodeText(p.document.resolve(e.Value))); why != "" {
					p.addf(p.document.at(e.Value, at), "%s", why)
				}
				continue
			}
			p.unsupportedRefs(at, e.Value)
		}
	}
}

// parsers accepts the parsers of the bodies that are read here anyway.
func (p *parsing) parsers() {
	node := p.root.RequestHandler.node
	if node == nil {
		return
	}
	if _, ok := p.document.entries(node); !ok {
		p.addf(p.root.RequestHandler.at, "must be a mapping of keys to values, got %s", kindOf(node))
		return
	}
	p.warnf(p.root.RequestHandler.at, "llm-d's requestHandler means nothing here and is left out: bodies are recognised by their path")
	p.unsupportedRefs("requestHandler", node)
}

// fallbackScore is why the weights of llm-d's score for want of predictions mean nothing.
const fallbackScore = "predictions are there from the first request on"

// foreignValues are the only values, by parameter, with which one of the foreignKeys means nothing: another one would have changed how
// requests are served.
var foreignValues = map[string]string{"headroomSelectionStrategy": "least", "algorithm": "encoded_endpoint_header"}

// foreignKeys are parameters of llm-d's plugins that mean nothing here, by type.
var foreignKeys = map[string]map[string]string{
	"inflight-load-producer": {
		"syncCrossReplicaState": "each replica counts its own picks",
	},
	"predicted-latency-producer": {
		"contextTTL":              "what a request holds ends with its stream",
		"endpointRoleLabel":       "endpoints have no roles here",
		"useEncoderCacheFeatures": "there is no encoder cache here",
		"predictInProduce":        "predictions are made at the pick, of what is in flight then",
	},
	latencyType: {
		"headroomSelectionStrategy": "the endpoint with the least room to spare is picked, as with least",
		"compositeKVWeight":         fallbackScore,
		"compositeQueueWeight":      fallbackScore,
		"compositePrefixWeight":     fallbackScore,
	},
	sessionType: {
		"algorithm":            "the token names the endpoint, as with encoded_endpoint_header",
		"evictionTtlSeconds":   "nothing is kept of sessions; tokenLifetime is how long a token counts",
		"evictionSweepSeconds": "nothing is kept of sessions",
		"missThreshold":        "nothing is kept of sessions",
	},
	"precise-prefix-cache-producer": {
		"indexerConfig": "the index is in memory and bounds itself",
	},
}

// movedKeys are retired parameters of llm-d's plugins and where they went, by type.
var movedKeys = map[string]map[string]string{
	"approx-prefix-cache-producer": {
		"hashBlockSize": "it is called blockSizeTokens", "blockSize": "it is called blockSizeTokens",
	},
	"prefix-cache-scorer": {
		"hashBlockSize":          "blockSizeTokens of approx-prefix-cache-producer has its place",
		"blockSize":              "blockSizeTokens of approx-prefix-cache-producer has its place",
		"autoTune":               "it belongs to approx-prefix-cache-producer",
		"maxPrefixBlocksToMatch": "it belongs to approx-prefix-cache-producer",
		"lruCapacityPerServer":   "it belongs to approx-prefix-cache-producer",
	},
}

// dropForeign is a decoder's drop for the parameters of a plugin.
func (f *File) dropForeign(pl plugin, d *decoder) func(origin, string, ast.Node) bool {
	return func(at origin, key string, value ast.Node) bool {
		if at.path != pl.at.path+".parameters."+key {
			return false
		}
		if why, ok := foreignKeys[pl.kind][key]; ok {
			if only, ok := foreignValues[key]; ok && nodeText(pl.document.resolve(value)) != only {
				d.addf(at, "only llm-d's %s is supported, and need not be set", only)
				return true
			}
			f.warnf(at, "llm-d's %s means nothing here and is left out: %s", key, why)
			return true
		}
		if why, ok := movedKeys[pl.kind][key]; ok {
			d.addf(at, "is retired: %s", why)
			return true
		}
		return false
	}
}

// IgnoredTypes lists, sorted, the llm-d plugin types that are accepted and left out.
func IgnoredTypes() []string { return sortedKeys(ignoredTypes) }

// RefusedTypes lists, sorted, the llm-d plugin types that are refused by name.
func RefusedTypes() []string { return sortedKeys(refusedTypes) }

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
