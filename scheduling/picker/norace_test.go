//go:build !race

package picker_test

const raceEnabled = false
