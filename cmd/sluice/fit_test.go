//go:build linux

package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/sim"
)

// measuredTable is a table of an engine twice as slow as the default one.
func measuredTable(t *testing.T) string {
	t.Helper()
	c := sim.DefaultParams().Cost
	var b strings.Builder
	b.WriteString("prompt_tokens,cached_tokens,ttft_ms\n")
	for i := range 60 {
		p := float64(100 + 120*i)
		fmt.Fprintf(&b, "%g,0,%g\n", p, 2e3*(c.Base+c.PrefillToken*p+c.Attention*p*p/2)*(1+0.002*float64(i%5-2)))
	}
	return fitFile(t, "measured.csv", b.String())
}

func fitFile(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// What fit writes is what engine and simulate take: half the speed is half the speed.
func TestFitMakesAProfile(t *testing.T) {
	out, page := filepath.Join(t.TempDir(), "engine.yaml"), filepath.Join(t.TempDir(), "fit.html")
	code, stdout, stderr := captured(t, "fit", measuredTable(t), "--out", out, "--html", page)
	if code != 0 || !strings.Contains(stdout, "60 samples") || !strings.Contains(stdout, "prefillToken") {
		t.Fatalf("exit %d, said %q, printed\n%s", code, stderr, stdout)
	}
	if b, err := os.ReadFile(page); err != nil || strings.Count(string(b), "<circle") != 60 {
		t.Errorf("%v: the page has not 60 points", err)
	}
	p, err := openProfile(out)
	if err != nil {
		t.Fatal(err)
	}
	params := sim.DefaultParams()
	if p.Apply(&params); params.Cost.PrefillToken < 1.9*sim.DefaultParams().Cost.PrefillToken {
		t.Errorf("%+v", params.Cost)
	}
	ttft := func(args ...string) float64 {
		args = append([]string{"simulate", "--trace", "b2b", "--b2b-requests", "100", "--b2b-rate", "1", "--endpoints", "4", "--json", "-"}, args...)
		code, stdout, stderr := captured(t, args...)
		if code != 0 {
			t.Fatalf("exit %d: %s", code, stderr)
		}
		_, rest, _ := strings.Cut(stdout, `"ttft_mean_s"`)
		_, rest, _ = strings.Cut(rest, `"mean":`)
		var v float64
		if _, err := fmt.Sscan(rest, &v); err != nil {
			t.Fatalf("%v in %s", err, stdout)
		}
		return v
	}
	if fast, slow := ttft(), ttft("--profile", out); slow < 1.8*fast {
		t.Errorf("TTFT %.3f s, and with the profile %.3f s", fast, slow)
	}
}

func TestFitFaults(t *testing.T) {
	few := fitFile(t, "few.csv", "prompt_tokens,cached_tokens,ttft_ms,in_flight\n10,0,5,0\n10,0,5,1\n")
	bad := fitFile(t, "bad.yaml", "cost: {bass: 1}")
	for args, want := range map[string]string{
		"":                              "name a table of samples, or a decision log with --log",
		few:                             "too few measured times: 1, and a fit needs 8; 1: came while other requests waited",
		few + " --max-batched-tokens 0": "--max-batched-tokens: must be from 1",
		few + " --resamples 1":          "--resamples: must be from 10 to 10000, got 1",
		few + " --model m":              "--endpoint, --model: mean something with --log only",
		few + " --profile " + bad:       `unknown field "bass"`,
		"/nowhere.csv":                  "/nowhere.csv: ",
		"--log /nowhere":                "--log: ",
		bad:                             "bad.yaml: line 1: prompt_tokens is missing",
		measuredTable(t) + " --out /nowhere/at/all/x.yaml": "--out: ",
	} {
		if code, stdout, stderr := captured(t, strings.Fields("fit "+args)...); code == 0 || !strings.Contains(stderr, want) {
			t.Errorf("%s: exit %d, said %q, printed %q; want %q", args, code, stderr, stdout, want)
		}
	}
	if code, _, stderr := captured(t, "engine", "--profile", bad); code == 0 || !strings.Contains(stderr, `--profile: `+bad) {
		t.Errorf("engine: exit %d, said %q", code, stderr)
	}
}

// A file that is no profile is named in a line, and a table of samples for what it is.
func TestNoProfile(t *testing.T) {
	for text, want := range map[string]string{
		"prompt_tokens,cached_tokens,ttft_ms\n1,0,5\n": "(this looks like a table of samples: give it to sluice fit)",
		"package main\n\tfunc\n":                       "--profile: ",
	} {
		code, stdout, stderr := captured(t, "simulate", "--trace", "b2b", "--profile", fitFile(t, "none.csv", text))
		if code != exitFailure || stdout != "" || !strings.Contains(stderr, want) || strings.Count(stderr, "\n") != 1 {
			t.Errorf("exit %d, said %q, want %q", code, stderr, want)
		}
	}
}
