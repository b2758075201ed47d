//go:build !linux

package trace

import "syscall"

func tied() *syscall.SysProcAttr { return nil }
