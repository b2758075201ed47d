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
	usualBody      = 16 << 10
	usualEndpoints = 64
	usualChunks    = 3
)

// way is a setup on a way.
type way struct{ setup, via string }

// load is what a setup has to do.
type load struct{ body, endpoints, chunks int }

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
	return fmt.Sprintf("%s bodies, %d endpoints, answers of %d chunks, %s",
		report.Size(g.body), g.endpoints, g.chunks, strings.Join(names, " and "))
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

// The default run. The stream has every body and every number of endpoints once and answers of many chunks; what goes over
// HTTP has two bodies.
var (
	streamLoads = []load{
		{1 << 10, usualEndpoints, usualChunks}, {16 << 10, usualEndpoints, usualChunks}, {64 << 10, usualEndpoints, usualChunks},
		{256 << 10, usualEndpoints, usualChunks}, {1 << 20, usualEndpoints, usualChunks},
		{16 << 10, 8, usualChunks}, {16 << 10, 512, usualChunks},
		{16 << 10, usualEndpoints, 200},
	}
	httpLoads = []load{{16 << 10, usualEndpoints, usualChunks}, {256 << 10, usualEndpoints, usualChunks}}
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
	if product := b.product(); len(product) > 0 {
		stream, http = product, product
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

// product is every combination of the dimensions that are asked for; without any there is none.
func (b *bench) product() (loads []load) {
	if len(b.bodies)+len(b.endpoints)+len(b.chunks) == 0 {
		return nil
	}
	or := func(values []int, usual int) []int {
		if len(values) == 0 {
			return []int{usual}
		}
		return values
	}
	for _, body := range or(b.bodies, usualBody) {
		for _, endpoints := range or(b.endpoints, usualEndpoints) {
			for _, chunks := range or(b.chunks, usualChunks) {
				loads = append(loads, load{body, endpoints, chunks})
			}
		}
	}
	return loads
}
