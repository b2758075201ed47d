//go:build race

package fields

const raceEnabled = true
