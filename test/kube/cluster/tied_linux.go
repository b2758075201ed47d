package cluster

import "syscall"

// tied has the kernel end a child when the test's process dies.
func tied() *syscall.SysProcAttr { return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
