//go:build !linux

package subject

import (
	"errors"
	"syscall"
	"time"
)

// tied can promise nothing here: only Linux ends a child with its parent.
func tied() *syscall.SysProcAttr { return nil }

func processCPU(int) (time.Duration, error) {
	return 0, errors.New("the CPU clock of another process can be read on Linux only")
}

func peakRSS(int) (int64, error) {
	return 0, errors.New("the largest resident set of another process can be read on Linux only")
}
