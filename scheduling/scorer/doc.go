// Package scorer holds the small scorers: each reads one or two columns and says how good every candidate is, from 0
// to 1. docs/scorers.md is the page for users.
package scorer
