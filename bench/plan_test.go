package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/bench/report"
)

func parse(t *testing.T, args string) options {
	t.Helper()
	o, err := parseOptions(strings.Fields(args), &bytes.Buffer{})
	if err != nil {
		t.Fatal(err)
	}
	return o
}

func TestOptions(t *testing.T) {
	want := options{
		setups: allSetups, ways: allWays, rounds: 5, requests: 2000,
		idleEndpoints: 512, idleTime: 20 * time.Second, profileTime: 5 * time.Second,
	}
	if diff := cmp.Diff(want, parse(t, ""), cmp.AllowUnexported(options{}, dimensions{})); diff != "" {
		t.Errorf("defaults: %s", diff)
	}
	o, err := parseOptions([]string{"--bodies", "700B, 1MiB,220KB", "--endpoints=1,2", "-chunks", "3,200", "-concurrency", "1,16", "-setups", "null", "-sluice", "x"}, &bytes.Buffer{})
	want.given = " -bodies 700B,1MiB,220KB -chunks 3,200 -concurrency 1,16 -endpoints 1,2 -setups null"
	want.dimensions = dimensions{[]int{700, 1 << 20, 220_000}, []int{1, 2}, []int{3, 200}, []int{1, 16}}
	want.setups, want.sluice = []string{"null"}, "x"
	if diff := cmp.Diff(want, o, cmp.AllowUnexported(options{}, dimensions{})); err != nil || diff != "" {
		t.Errorf("%v %s", err, diff)
	}
	var help bytes.Buffer
	if _, err := parseOptions([]string{"-h"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Errorf("help: %v", err)
	}
	for _, want := range []string{"bench -via stream -bodies 16KiB", "-concurrency 20,60,150", "-concurrency numbers", "-cpuprofile folder", "(default none,null,sluice-approx"} {
		if !strings.Contains(help.String(), want) {
			t.Errorf("help does not say %q:\n%s", want, help.String())
		}
	}
}

func TestBadOptions(t *testing.T) {
	for _, tt := range []struct{ args, want string }{
		{"-rounds 0", "-rounds: must be 1 to 1000, got 0"},
		{"-requests -5", "-requests: must be 1 to 10000000, got -5"},
		{"-concurrency 0", `must be 1 to 10000 requests at once, got "0"`},
		{"-concurrency 16,,", `got ""`},
		{"-concurrency 10001", "must be 1 to 10000 requests at once"},
		{"-idle-endpoints 9999", "-idle-endpoints: must be 1 to 4096, got 9999"},
		{"-bodies 16", `size "16"`},
		{"-bodies 1KiB,,", `size ""`},
		{"-bodies 511B", "at least 512B"},
		{"-endpoints 0", "must be 1 to 4096 endpoints"},
		{"-endpoints 8,x", `got "x"`},
		{"-chunks 0", "must be 1 to 10000 chunks"},
		{"-via strean", "did you mean stream?"},
		{"-setups null,sluice", `unknown "sluice": must be one of none, null`},
		{"-profile-time 10ms", "-profile-time: must be at least 1s, got 10ms"},
		{"-idle-time 0s", "-idle-time: must be at least 1s, got 0s"},
		{"surplus", `unknown argument "surplus"`},
	} {
		if _, err := parseOptions(strings.Fields(tt.args), &bytes.Buffer{}); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want an error that says %q", tt.args, err, tt.want)
		}
	}
}

func TestPlan(t *testing.T) {
	const programs = "-envoy e -routers r "
	type groups = []string
	for _, tt := range []struct {
		args string
		want groups
		idle bool
		says string
	}{
		{programs + "-via stream -bodies 1KiB,16KiB -endpoints 8", groups{
			"1KiB 8 3 16: null/stream sluice-approx/stream sluice-precise/stream", "16KiB 8 3 16: null/stream sluice-approx/stream sluice-precise/stream"}, false, ""},
		{programs + "-via envoy,router -chunks 9", groups{
			"16KiB 64 9 16: none/envoy null/envoy sluice-approx/envoy sluice-precise/envoy none/router sglang-router/router vllm-router/router"}, false, ""},
		{"-via envoy,stream -setups none,null -bodies 1KiB", groups{"1KiB 64 3 16: null/stream"}, false, "envoy is left out: no -envoy is given"},
		{"-via stream -setups null -concurrency 1,16", groups{"16KiB 64 3 1: null/stream", "16KiB 64 3 16: null/stream"}, false, ""},
		{"-via stream -setups null -bodies 1KiB,220KB -concurrency 20,60", groups{
			"1KiB 64 3 20: null/stream", "1KiB 64 3 60: null/stream", "220KB 64 3 20: null/stream", "220KB 64 3 60: null/stream"}, false, ""},
		{"-envoy e -via router -bodies 1KiB", nil, false, "sglang-router is left out: no -routers are given"},
		{"-via idle", nil, true, ""},
		{programs + "-via envoy -setups none", nil, false, ""},
	} {
		var said bytes.Buffer
		b := bench{options: parse(t, tt.args), progress: &said}
		p := b.plan()
		var got groups
		for _, g := range p.groups {
			text := fmt.Sprintf("%s %d %d %d:", report.Size(g.body), g.endpoints, g.chunks, g.concurrency)
			for _, w := range g.ways {
				text += " " + w.setup + "/" + w.via
			}
			got = append(got, text)
		}
		if diff := cmp.Diff(tt.want, got); diff != "" || p.idle != tt.idle {
			t.Errorf("%s: idle %t %s", tt.args, p.idle, diff)
		}
		if !strings.Contains(said.String(), tt.says) || tt.says == "" && said.Len() > 0 {
			t.Errorf("%s: says %q, want %q", tt.args, said.String(), tt.says)
		}
	}
}

// The default run has every body, every number of endpoints, long answers, long prompts with more and more of them at once,
// and over HTTP what routers are compared by.
func TestDefaultPlan(t *testing.T) {
	b := bench{options: parse(t, "-envoy e -routers r"), progress: &bytes.Buffer{}}
	p := b.plan()
	bodies, endpoints, chunks := map[int]bool{}, map[int]bool{}, map[int]bool{}
	var prompts []load // C49
	over := 0
	for _, g := range p.groups {
		if g.ways[0].via == report.ViaStream {
			bodies[g.body], endpoints[g.endpoints], chunks[g.chunks] = true, true, true
			if g.concurrency != usualConcurrency {
				prompts = append(prompts, g.load)
			}
		} else {
			over++
		}
	}
	if len(bodies) != 6 || len(endpoints) != 3 || len(chunks) != 2 || over != 2 || !p.idle || p.steps() != len(p.groups)+2 {
		t.Errorf("%d bodies, %d numbers of endpoints, %d of chunks, %d loads over HTTP, idle %t", len(bodies), len(endpoints), len(chunks), over, p.idle)
	}
	if want := []load{{220_000, 64, 3, 20}, {220_000, 64, 3, 60}, {220_000, 64, 3, 150}}; !slices.Equal(prompts, want) {
		t.Errorf("long prompts: %+v, want %+v", prompts, want)
	}
}

func TestRunWithNothingToMeasure(t *testing.T) {
	err := run(t.Context(), []string{"-via", "envoy"}, &bytes.Buffer{}, &bytes.Buffer{})
	if err == nil || !strings.Contains(err.Error(), "nothing to measure") {
		t.Errorf("%v", err)
	}
}

func TestPerRound(t *testing.T) {
	b := bench{options: parse(t, "-requests 2000")}
	for l, want := range map[load]int{
		{1 << 10, 8, 3, 16}: 2000, {1 << 20, 8, 3, 16}: 512, {1 << 10, 8, 200, 16}: 500, {1 << 30, 8, 3, 1}: 1,
		{1 << 30, 8, 3, 16}: 16, {1 << 10, 8, 3, 5000}: 5000,
	} {
		if got := b.perRound(l); got != want {
			t.Errorf("%+v: %d requests a round, want %d", l, got, want)
		}
	}
}
