//go:build race

package rates

const raceEnabled = true
