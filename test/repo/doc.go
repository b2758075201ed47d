// Package repo holds the rules of the house as tests: which package may import which, what the pure packages may not
// touch, and what every package, file and target must have. CONTRIBUTING.md gives the reasons.
package repo
