//go:build race

package approx

const raceEnabled = true
