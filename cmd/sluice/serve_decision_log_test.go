package main

import (
	"testing"

	"github.com/sluice-epp/sluice/server/config"
)

func TestDecisionLogFlag(t *testing.T) {
	var c config.Config
	c.Telemetry.DecisionLog.Path = "/of/the/file"
	(&ServeCommand{}).override(&c)
	if got := c.Telemetry.DecisionLog.Path; got != "/of/the/file" {
		t.Errorf("without the flag: %q", got)
	}
	(&ServeCommand{DecisionLog: "/of/the/flag"}).override(&c)
	if got := c.Telemetry.DecisionLog.Path; got != "/of/the/flag" {
		t.Errorf("with the flag: %q", got)
	}
}
