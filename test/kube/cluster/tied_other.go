//go:build !linux

package cluster

import "syscall"

func tied() *syscall.SysProcAttr { return nil }
