package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-epp/sluice/bench/report"
)

// The setups.
const (
	setupNone    = "none"
	setupNull    = "null"
	setupApprox  = "sluice-approx"
	setupPrecise = "sluice-precise"
	setupSGLang  = "sglang-router"
	setupVLLM    = "vllm-router"
)

var allSetups = []string{setupNone, setupNull, setupApprox, setupPrecise, setupSGLang, setupVLLM}

// viaIdle stands beside the ways for the rows without requests.
const viaIdle = "idle"

var allWays = []string{report.ViaStream, report.ViaEnvoy, report.ViaRouter, viaIdle}

// waysOf are the ways that a setup is measured on: by itself each router, and on all ways over HTTP nothing at all, to tell
// what is added.
func waysOf(setup string) []string {
	switch setup {
	case setupNone:
		return []string{report.ViaEnvoy, report.ViaRouter}
	case setupSGLang, setupVLLM:
		return []string{report.ViaRouter}
	}
	return []string{report.ViaStream, report.ViaEnvoy}
}

// What stands for a dimension that is not asked for, and the chunks that longer answers are compared with.
const (
	usualBody        = 16 << 10
	usualEndpoints   = 64
	usualChunks      = 3
	usualConcurrency = report.UsualConcurrency
)

// way is a setup on a way.
type way struct{ setup, via string }

// load is what a setup has to do; body is in bytes, and concurrency is how many requests there are at once.
type load struct{ body, endpoints, chunks, concurrency int }

// dimensions are the values of loads that are asked for, those of each by itself.
type dimensions struct {
	bodies      []int // bytes
	endpoints   []int
	chunks      []int
	concurrency []int
}

// loads is every combination, with what is usual for a dimension without values; where none has any there is no load.
func (d dimensions) loads() (all []load) {
	if len(d.bodies)+len(d.endpoints)+len(d.chunks)+len(d.concurrency) == 0 {
		return nil
	}
	or := func(values []int, usual int) []int {
		if len(values) == 0 {
			return []int{usual}
		}
		return values
	}
	for _, body := range or(d.bodies, usualBody) {
		for _, endpoints := range or(d.endpoints, usualEndpoints) {
			for _, chunks := range or(d.chunks, usualChunks) {
				for _, concurrency := range or(d.concurrency, usualConcurrency) {
					all = append(all, load{body, endpoints, chunks, concurrency})
				}
			}
		}
	}
	return all
}

// group is what is measured side by side, in turn.
type group struct {
	load
	ways []way
}

// String names the group in progress and errors.
func (g group) String() string {
	var names []string
	for _, w := range g.ways {
		if n := "via " + w.via; !slices.Contains(names, n) {
			names = append(names, n)
		}
	}
	return fmt.Sprintf("%s bodies, %d endpoints, answers of %d chunks, %d at once, %s",
		report.Size(g.body), g.endpoints, g.chunks, g.concurrency, strings.Join(names, " and "))
}

// plan is what a run measures, in this order.
type plan struct {
	groups []group
	idle   bool
}

func (p plan) steps() int {
	n := len(p.groups)
	if p.idle {
		n += len(idleSetups)
	}
	return n
}

// The default run. The stream has every body and every number of endpoints once, answers of many chunks, and long prompts
// with more and more requests at once (C49); what goes over HTTP has two bodies.
var (
	streamLoads = slices.Concat(
		dimensions{bodies: []int{1 << 10, 16 << 10, 64 << 10, 256 << 10, 1 << 20}}.loads(),
		dimensions{endpoints: []int{8, 512}}.loads(),
		dimensions{chunks: []int{200}}.loads(),
		dimensions{bodies: []int{220_000}, concurrency: []int{20, 60, 150}}.loads(),
	)
	httpLoads = dimensions{bodies: []int{16 << 10, 256 << 10}}.loads()
)

// plan chooses the loads and, for each, the setups that can be measured. It says what is left out for want of a program.
func (b *bench) plan() plan {
	missing := map[string]string{}
	if b.envoy == "" {
		missing[report.ViaEnvoy] = "no -envoy is given"
	}
	if b.routers == "" {
		missing[setupSGLang], missing[setupVLLM] = "no -routers are given", "no -routers are given"
	}
	ways := func(vias ...string) (ways []way) {
		for _, via := range vias {
			for _, setup := range b.setups {
				if !slices.Contains(waysOf(setup), via) || !slices.Contains(b.ways, via) || missing[via] != "" || missing[setup] != "" {
					continue
				}
				ways = append(ways, way{setup, via})
			}
		}
		return slices.DeleteFunc(ways, func(w way) bool { return w.setup == setupNone && !decided(ways, w.via) })
	}
	for _, name := range []string{report.ViaEnvoy, setupSGLang, setupVLLM} {
		wanted := slices.Contains(b.ways, name) || slices.Contains(b.setups, name) && slices.Contains(b.ways, report.ViaRouter)
		if wanted && missing[name] != "" {
			b.say("%s is left out: %s", name, missing[name])
		}
	}
	var p plan
	add := func(loads []load, ways []way) {
		for _, l := range loads {
			if len(ways) > 0 {
				p.groups = append(p.groups, group{l, ways})
			}
		}
	}
	stream, http := streamLoads, httpLoads
	if asked := b.loads(); len(asked) > 0 {
		stream, http = asked, asked
	}
	add(stream, ways(report.ViaStream))
	add(http, ways(report.ViaEnvoy, report.ViaRouter))
	p.idle = slices.Contains(b.ways, viaIdle)
	return p
}

// decided reports whether anything beside setupNone is measured on a way.
func decided(ways []way, via string) bool {
	return slices.ContainsFunc(ways, func(w way) bool { return w.via == via && w.setup != setupNone })
}
