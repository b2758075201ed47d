// Package fit finds the costs of a real engine's steps from measured times, for [sim.StepCost].
//
// A request that comes alone to an engine that decodes d sequences with ctx tokens of context together, and that has U of its P
// tokens to compute, gets its first token after
//
//	steps·Base + PrefillToken·U + Attention·(P²−(P−U)²)/2 + steps·(DecodeSeq·d + DecodeContext·ctx),  steps = ⌈U/(budget−d)⌉
//
// with half a step more where d > 0: it comes in the middle of one, on average. Each further token then takes
//
//	Base + DecodeSeq·(d+1) + DecodeContext·(ctx + P + (d+1)·half of its output)
//
// Both are linear in the costs, which cannot be negative. They are fitted together to relative errors, robustly: first to the
// median, then with Tukey's weights, so that requests that waited for others, which no term describes, lose their say.
package fit
