//go:build !race

package rates

const raceEnabled = false
