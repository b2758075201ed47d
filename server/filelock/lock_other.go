//go:build !unix

package filelock

import "os"

// Lock does nothing: where there is no flock(2), every process has to have files of its own.
func Lock(*os.File) error { return nil }
