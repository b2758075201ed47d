// Package gatereport says what load gates saw, what they did, and what others would have done, from a decision log.
//
// What a gate compared and decided is in the record. What another gate would have decided is decided again, by the gate's
// own code, from the matches and loads that the record holds. That is open loop: the decisions stay those that were made,
// and so do the loads that followed from them.
package gatereport
