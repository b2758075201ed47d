package scheduling

import "testing"

func TestPlain(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ got, want bool }{
		"match":    {plain[PrefixCacheMatchInfo](), true},
		"load":     {plain[InFlightLoad](), true},
		"uncached": {plain[UncachedRequestTokens](), true},
		"metrics":  {plain[EngineMetrics](), true},
		"array":    {plain[[3]struct{ a, b int8 }](), true},
		"prompt":   {plain[TokenizedPrompt](), true}, // it lets go of its tokens
		"pointer":  {plain[struct{ p *int }](), false},
		"slice":    {plain[[]int](), false},
		"string":   {plain[string](), false},
		"func":     {plain[struct{ f func() }](), false},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %v, want %v", name, tc.got, tc.want)
		}
	}
}

func TestKeptPromptHasNoTokens(t *testing.T) {
	t.Parallel()
	from := &Value[TokenizedPrompt]{}
	from.Set(TokenizedPrompt{Tokens: []uint32{1}, Count: 1, Exact: true, Features: []PromptFeature{{ID: "a"}}})
	to := &Value[TokenizedPrompt]{}
	to.copyFrom(from)
	got, ok := to.Get()
	if !ok || got.Count != 1 || !got.Exact || got.Tokens != nil || got.Features != nil {
		t.Errorf("kept as %+v, %v", got, ok)
	}
	if v, _ := from.Get(); len(v.Tokens) != 1 {
		t.Error("the original lost its tokens")
	}
}
