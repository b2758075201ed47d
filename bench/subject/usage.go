package subject

import (
	"fmt"
	"os"
	"time"
)

// Usage is what a process used in its life.
type Usage struct {
	// CPU is user and system time, as getrusage counts it.
	CPU time.Duration
	// PeakRSS is the largest resident set in bytes; 0 of a process that ended by itself.
	PeakRSS int64
}

// cpuOf reads the count that the kernel hands over with the end of a process.
func cpuOf(s *os.ProcessState) (time.Duration, error) {
	if s == nil {
		return 0, fmt.Errorf("the process was not waited for")
	}
	return s.UserTime() + s.SystemTime(), nil
}
