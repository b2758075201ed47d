//go:build race

package decisionlog

const raceEnabled = true
