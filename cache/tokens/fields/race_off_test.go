//go:build !race

package fields

const raceEnabled = false
