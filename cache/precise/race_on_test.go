//go:build race

package precise

const raceEnabled = true
