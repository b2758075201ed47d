// Package capture holds what a real engine said of its prefix cache: requests, one at a time or several that wait together,
// and how many tokens of each prompt the engine reported as cached. Replayed against the engine model of package sim, each of
// them has to come out the same.
//
// A capture is JSON lines. The first one describes the engine ([Engine]), each further one is a step ([Step]). Prompts are
// written as recipes, since they build on one another: see [Step].
package capture
