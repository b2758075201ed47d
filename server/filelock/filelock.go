// Package filelock keeps a file for one process at a time, among those that ask.
package filelock

import "errors"

// ErrHeld is the error for a file that somebody else has.
var ErrHeld = errors.New("another process has it open")
