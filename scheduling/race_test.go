//go:build race

package scheduling_test

const raceEnabled = true
