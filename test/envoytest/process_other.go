//go:build !linux

package envoytest

import "syscall"

// tied can promise nothing here: only Linux ends a child with its parent.
func tied() *syscall.SysProcAttr { return nil }
