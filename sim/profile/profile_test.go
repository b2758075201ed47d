package profile_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/profile"
)

func TestApply(t *testing.T) {
	p, err := profile.Read(strings.NewReader("maxBatchedTokens: 128\ncost:\n  base: 0.5 # s\n  attention: 0\n"))
	if err != nil {
		t.Fatal(err)
	}
	got, want := sim.DefaultParams(), sim.DefaultParams()
	p.Apply(&got)
	want.MaxBatchedTokens, want.MaxSeqs, want.Cost.Base, want.Cost.Attention = 128, 128, 0.5, 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// What is written of one engine makes another one the same.
func TestWholeProfile(t *testing.T) {
	want := sim.DefaultParams()
	want.MaxBatchedTokens, want.MaxSeqs = 2048, 17
	want.Cost = sim.StepCost{Base: 1, PrefillToken: 2, Attention: 3e-9, DecodeSeq: 4, DecodeContext: 5, LoadToken: 6}
	text, err := yaml.Marshal(profile.Of(want))
	if err != nil {
		t.Fatal(err)
	}
	p, err := profile.Read(bytes.NewReader(text))
	if err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	got := sim.DefaultParams()
	p.Apply(&got)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestFaults(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "is empty",
		"maxBatchedToken: 1":       `unknown field "maxBatchedToken"`,
		"cost: {base: -1}":         "cost.base: must be a finite number of seconds >= 0, got -1",
		"cost: {attention: .nan}":  "cost.attention: must be a finite",
		"maxSeqs: 0":               "maxSeqs: must be > 0, got 0",
		"cost: {base: x}":          "profile: ",
		strings.Repeat("#", 1<<17): "longer than",
	} {
		if _, err := profile.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.30q: %v, want %q", text, err, want)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("maxBatchedTokens: 8192\ncost:\n  base: 0.012\n  prefillToken: 5.27e-05\n"))
	f.Add([]byte("cost: {attention: 2.1e-9, decodeSeq: 5e-05, decodeContext: 4.85e-8, loadToken: 0}\nmaxSeqs: 256"))
	f.Fuzz(func(t *testing.T, text []byte) {
		p, err := profile.Read(bytes.NewReader(text))
		if err != nil {
			return
		}
		params := sim.DefaultParams()
		p.Apply(&params)
		if err := params.Validate(); err != nil && !strings.Contains(err.Error(), "maxSeqs: must be <= maxBatchedTokens") {
			t.Fatal(err)
		}
	})
}
