package subject

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

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

// peakRSS reads the largest resident set of a running process, in bytes: VmHWM of proc(5). ru_maxrss is no use here, as it
// counts what the process was before it ran its program: a copy of its parent.
func peakRSS(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	_, after, ok := bytes.Cut(status, []byte("\nVmHWM:"))
	fields := bytes.Fields(after)
	if !ok || len(fields) == 0 {
		return 0, fmt.Errorf("/proc/%d/status: no VmHWM", pid)
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("/proc/%d/status: VmHWM: %w", pid, err)
	}
	return kib << 10, nil
}
