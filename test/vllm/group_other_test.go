//go:build !linux

package vllm

import (
	"os"
	"syscall"
	"testing"
)

// Only Linux has the pinned vLLM: elsewhere a program that it leaves behind is not followed.
func ownGroup() *syscall.SysProcAttr { return nil }

func guard(*testing.T, int) (end func()) { return func() {} }

func killGroup(pid int) { signal(pid, syscall.SIGKILL) }
func terminate(pid int) { signal(pid, syscall.SIGTERM) }

func signal(pid int, s os.Signal) {
	if p, err := os.FindProcess(pid); err == nil {
		_ = p.Signal(s) // it may have ended
	}
}
