package vllm

import "syscall"

// ownGroup makes a child the first of a process group, and has the kernel end it when its parent dies.
func ownGroup() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// A group that is gone already is no error here.
func killGroup(pid int) { _ = syscall.Kill(-pid, syscall.SIGKILL) }
func terminate(pid int) { _ = syscall.Kill(pid, syscall.SIGTERM) }
