package trace

import (
	"net"
	"slices"
	"strconv"
	"testing"

	otel "go.opentelemetry.io/otel/attribute"

	"github.com/sluice-epp/sluice/server/telemetry/span"
)

type attribute = otel.Key

// checkRequest compares the tags of Sluice's span of a request with what is known of it.
func checkRequest(t *testing.T, s *stack, tags map[string]any, endpoint string, want map[attribute]any) {
	t.Helper()
	for key, value := range want {
		if tags[string(key)] != value {
			t.Errorf("%s is %v, want %v", key, tags[string(key)], value)
		}
	}
	host, _ := tags[string(span.ServerAddress)].(string)
	port, _ := tags[string(span.ServerPort)].(float64)
	at := slices.Index(s.pools, net.JoinHostPort(host, strconv.Itoa(int(port))))
	if at < 0 || endpoint != "engine-"+strconv.Itoa(at) {
		t.Errorf("the pick is %s:%v, and %s answered", host, port, endpoint)
	}
	// A prompt that is cached whole has its last token computed even so, and with it a block.
	blocks, _ := tags[string(span.MatchCached)].(float64)
	total, _ := tags[string(span.MatchTotal)].(float64)
	if blocks < 1 || blocks > total {
		t.Errorf("%v of %v blocks are cached", blocks, total)
	}
	if id, _ := tags[string(span.RequestID)].(float64); id < 1 {
		t.Errorf("the request's id is %v", id)
	}
	if hash, _ := tags[string(span.ConfigHash)].(string); len(hash) < 8 {
		t.Errorf("the configuration's hash is %q", hash)
	}
	if first, _ := tags[string(span.GenAIFirstChunk)].(float64); first <= 0 {
		t.Errorf("the first token came after %v s", first)
	}
	if tags["span.kind"] != "server" {
		t.Errorf("it is of the kind %v", tags["span.kind"])
	}
}
