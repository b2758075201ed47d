package approx

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// Files of the field's own shape read into the parameters as they stand.
func TestParametersFromYAML(t *testing.T) {
	got := defaultParameters()
	err := yaml.UnmarshalWithOptions([]byte(strings.TrimSpace(`
autoTune: false
blockSizeTokens: 64
maxPrefixBlocksToMatch: 256
maxPrefixTokensToMatch: 0
lruCapacityPerServer: 50000
hashSeed: a secret
tokenProducerName: tokens
`)), &got, yaml.Strict())
	if err != nil {
		t.Fatal(err)
	}
	if err := got.complete(); err != nil {
		t.Fatal(err)
	}
	want := Parameters{
		BlockSizeTokens: 64, MaxPrefixBlocksToMatch: 256, MaxPrefixTokensToMatch: 131072,
		LRUCapacityPerServer: 50000, HashSeed: "a secret", TokenProducerName: "tokens",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
