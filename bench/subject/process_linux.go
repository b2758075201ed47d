package subject

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// maxRSSUnit is the unit of ru_maxrss in bytes.
const maxRSSUnit = 1 << 10

// tied has the kernel end the child when its parent dies, so that a killed benchmark leaves nothing behind.
func tied() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// processCPU reads the CPU clock of another process: the sum of user and system time that getrusage would give inside it,
// to the nanosecond and without a part in it (/proc/PID/stat has it to 10 ms only).
func processCPU(pid int) (time.Duration, error) {
	// The clock's id as clock_getcpuclockid(3) makes it: CPUCLOCK_SCHED of the process.
	const sched = 2
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^pid<<3|sched), &t); err != nil {
		return 0, err
	}
	return time.Duration(t.Nano()), nil
}
