package envoytest

import "syscall"

// tied has the kernel end the child when its parent dies, so that a killed test leaves no Envoy behind.
func tied() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
