package tokens

import (
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

// What configuration files hold under parameters, and what becomes of it.
func TestParametersFromYAML(t *testing.T) {
	for file, want := range map[string]string{
		"modelName: m":                              "",
		"estimate: {}":                              "",
		"estimate: {charactersPerToken: 4}":         "",
		"backend: estimate":                         "",
		"bytesPerToken: 3.5":                        "",
		"vllm:":                                     "",
		"vllm: {url: 'http://localhost:8000'}":      "not in this version",
		"vllm: {}":                                  "not in this version",
		"{modelName: m, backend: vllm}":             "not in this version",
		"backend: tiktoken":                         `must be "estimate"`,
		"bytesPerToken: 100":                        "must be 0.5 to 16, got 100",
		"{bytesPerToken: -1, backend: 'estimates'}": "did you mean",
	} {
		p := Parameters{BytesPerToken: defaultBytesPerToken}
		err := yaml.UnmarshalWithOptions([]byte(file), &p, yaml.Strict())
		if err != nil {
			t.Errorf("%s: %v", file, err)
			continue
		}
		err = p.complete()
		if (err == nil) != (want == "") || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: error %v, want %q", file, err, want)
		}
	}
}
