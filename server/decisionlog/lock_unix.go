//go:build unix

package decisionlog

import (
	"os"

	"golang.org/x/sys/unix"
)

// lock keeps a file from other processes that ask, until it is closed; an error where another one has it (flock(2)).
func lock(f *os.File) error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) }
