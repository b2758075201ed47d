package demo

import "syscall"

// tied puts the child in a process group of its own, so that a Ctrl-C reaches the demo alone, and has the kernel end it
// when the demo dies.
func tied() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
