//go:build !unix

package decisionlog

import "os"

// lock does nothing: where there is no flock(2), every process has to have a folder of its own.
func lock(*os.File) error { return nil }
