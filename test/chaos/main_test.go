//go:build linux

package chaos

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"
)

// Environment variables by which the test binary starts itself as another process.
const (
	envRole = "SLUICE_CHAOS_ROLE"
	envArgs = "SLUICE_CHAOS_ARGS"
)

func TestMain(m *testing.M) {
	var err error
	switch os.Getenv(envRole) {
	case "":
		goleak.VerifyTestMain(m)
		return
	case roleEngine:
		err = runEngine([]byte(os.Getenv(envArgs)))
	case roleSluice:
		err = runSluice([]byte(os.Getenv(envArgs)))
	default:
		err = fmt.Errorf("no role is named %q", os.Getenv(envRole))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}
