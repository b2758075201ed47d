// Package policies holds other projects' routing policies, made again from what they publish, so that a simulation can put
// them beside Sluice's own: as configurations of the scheduler that serves, with small plugins that exist for simulation
// alone where a rule needs one. Each names its source and has the defaults that its project ships.
//
// They are reimplementations of the rules, not of the projects: what a rule reads comes out of Sluice's own producers (the
// ledger, the approximate and the precise index), which see the engines as the simulation lets them.
package policies
