package subject

import (
	"fmt"
	"os"
	"syscall"
	"time"
)

// Usage is what a process used in its life, as getrusage counts it.
type Usage struct {
	// CPU is user and system time.
	CPU time.Duration
	// PeakRSS is the largest resident set in bytes.
	PeakRSS int64
}

// usageOf reads the counts that the kernel hands over with the end of a process.
func usageOf(s *os.ProcessState) (Usage, error) {
	if s == nil {
		return Usage{}, fmt.Errorf("the process was not waited for")
	}
	r, ok := s.SysUsage().(*syscall.Rusage)
	if !ok {
		return Usage{}, fmt.Errorf("no resource usage of a process here: %T", s.SysUsage())
	}
	peak := int64(r.Maxrss) * maxRSSUnit //nolint:unconvert // ru_maxrss is 32 bits wide on 32-bit systems
	return Usage{CPU: s.UserTime() + s.SystemTime(), PeakRSS: peak}, nil
}
