package tokens

import (
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
)

// What configuration files hold under parameters, and what becomes of it.
func TestParametersFromYAML(t *testing.T) {
	for file, want := range map[string]string{
		"modelName: m":                            "",
		"estimate: {}":                            "",
		"estimate: {charactersPerToken: 4}":       "",
		"backend: estimate":                       "",
		"bytesPerToken: 3.5":                      "",
		"vllm:":                                   "",
		"vllm: {url: 'http://localhost:8000'}":    "",
		"vllm: {url: 'https://[::1]:8000/base/'}": "",
		"vllm: {endpoints: true}":                 "",
		"vllm: {url: 'http://x', timeout: 5s, mmTimeout: 30s}":         "",
		"{modelName: m, backend: vllm}":                                "",
		"{backend: vllm, vllm: {prefixMemo: false, apiKey: k}}":        "",
		"backend: tiktoken":                                            `must be "estimate" or "vllm", got "tiktoken"`,
		"backend: vlm":                                                 `(did you mean "vllm"?)`,
		"{backend: estimate, vllm: {}}":                                "parameters.vllm: is set, and backend is \"estimate\"",
		"bytesPerToken: 100":                                           "must be 0.5 to 16, got 100",
		"{bytesPerToken: -1, backend: 'estimates'}":                    "did you mean",
		"vllm: {url: 'http://x', endpoints: true}":                     "parameters.vllm.url: is set to \"http://x\", and endpoints too",
		"vllm: {url: 'localhost:8000'}":                                "parameters.vllm.url: must be http://HOST… or https://HOST…, got \"localhost:8000\"",
		"vllm: {url: '/v1'}":                                           "parameters.vllm.url: must be http://HOST",
		"vllm: {url: 'http://'}":                                       "parameters.vllm.url: must be http://HOST",
		"vllm: {url: 'http://a b'}":                                    "parameters.vllm.url: must be http://HOST",
		"vllm: {url: 'unix:///x'}":                                     "parameters.vllm.url: must be http://HOST",
		"vllm: {url: 'http://me:secret@x'}":                            "must hold no user and password (apiKey is for a token), got \"http://me:xxxxx@x\"",
		"vllm: {url: 'http://x?a=1'}":                                  "must hold no query",
		"vllm: {url: 'http://x#a'}":                                    "must hold no query and no fragment",
		"vllm: {timeout: -1s}":                                         "parameters.vllm.timeout: must be 1ms to 1m0s, got -1s",
		"vllm: {timeout: 1h}":                                          "parameters.vllm.timeout: must be",
		"vllm: {mmTimeout: 1us}":                                       "parameters.vllm.mmTimeout: must be 1ms to 1m0s, got 1µs",
		"vllm: {concurrency: -1}":                                      "parameters.vllm.concurrency: must be 1 to 1024, or 0 for the default, got -1",
		"vllm: {maxBodyBytes: 10}":                                     "parameters.vllm.maxBodyBytes: must be 1KiB to",
		"vllm: {memoBytes: 1000}":                                      "parameters.vllm.memoBytes: must be 1MiB to",
		"{bytesPerToken: 100, vllm: {concurrency: -1, mmTimeout: 1h}}": "got 100\nparameters.vllm.mmTimeout: must be 1ms to 1m0s, got 1h0m0s\nparameters.vllm.concurrency",
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

func TestVLLMDefaults(t *testing.T) {
	for name, tc := range map[string]struct{ given, want Parameters }{
		"backend alone": {Parameters{Backend: "vllm"}, Parameters{Backend: "vllm", BytesPerToken: 4, VLLM: &VLLM{
			URL: "http://localhost:8000", Timeout: 150 * time.Millisecond, MMTimeout: 150 * time.Millisecond,
			Concurrency: 32, MaxBodyBytes: 8 << 20, MemoBytes: 128 << 20, PrefixMemo: new(true),
		}}},
		"endpoints": {Parameters{VLLM: &VLLM{Endpoints: true, Timeout: time.Second}}, Parameters{BytesPerToken: 4, VLLM: &VLLM{
			Endpoints: true, Timeout: time.Second, MMTimeout: time.Second, Concurrency: 32, MaxBodyBytes: 8 << 20, MemoBytes: 128 << 20, PrefixMemo: new(true),
		}}},
		"estimates": {Parameters{}, Parameters{BytesPerToken: 4}},
	} {
		var decoded VLLM
		if tc.given.VLLM != nil {
			decoded = *tc.given.VLLM
		}
		before := tc.given.VLLM
		if err := tc.given.complete(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, tc.given); diff != "" {
			t.Errorf("%s: (-want +got):\n%s", name, diff)
		}
		if before != nil && *before != decoded {
			t.Errorf("%s: what the file said was changed to %+v", name, *before)
		}
	}
	off := false
	if (&VLLM{PrefixMemo: &off}).prefixMemo() || !(&VLLM{}).prefixMemo() {
		t.Error("prefixMemo is on by default, and can be turned off")
	}
}
