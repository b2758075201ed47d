//go:build unix

package metrics

import (
	"errors"
	"net"
	"syscall"
)

// silent reports whether nothing waits to be read on an idle connection: no byte, no end and no error.
func silent(conn net.Conn) bool {
	c, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := c.SyscallConn()
	if err != nil {
		return false
	}
	var waiting error
	if err := raw.Read(func(fd uintptr) bool {
		var b [1]byte
		_, _, waiting = syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		return true
	}); err != nil {
		return false
	}
	return errors.Is(waiting, syscall.EAGAIN)
}
