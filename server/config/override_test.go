package config

import (
	"strings"
	"testing"
	"time"
)

func TestCheckOverride(t *testing.T) {
	names := map[string]string{"telemetry.logLevel": "--log-level", "endpoints": "--endpoint"}
	for want, change := range map[string]func(*Config){
		"": func(c *Config) { c.Endpoints, c.Server.Listen = []string{"10.0.0.1:8000", "10.0.0.2:8000"}, ":1" },
		`--log-level: must be one of debug, info, warn, error, got "wran" (did you mean "warn"?)`: func(c *Config) { c.Telemetry.LogLevel = "wran" },
		`server.listen: must be "host:port" or ":port" with a port from 0 to 65535, got "9002"`:   func(c *Config) { c.Server.Listen = "9002" },
		`server.drainDelay: must be from 0s to 10m, got -1s`:                                      func(c *Config) { c.Server.DrainDelay = -time.Second },
		`server.maxEndpointsInPick: must be from 1 to 16, got 17`:                                 func(c *Config) { c.Server.MaxEndpointsInPick = 17 },
		`--endpoint: "10.0.0.1:8000" stands in the list twice`:                                    func(c *Config) { c.Endpoints = []string{"10.0.0.1:8000", "10.0.0.1:8000"} },
		`--endpoint: endpoint "10.0.0.1": "10.0.0.1": port is missing; write 10.0.0.1:8000`:       func(c *Config) { c.Endpoints = []string{"10.0.0.1"} },
		// What a file names may be reached otherwise by flags.
		"\n": func(c *Config) {
			c.Kubernetes.Kubeconfig, c.Kubernetes.TargetPorts = "/etc/sluice/kubeconfig", []string{"8000"}
		},
		`kubernetes.targetPorts: an InferencePool has its own`: func(c *Config) { c.Kubernetes.Pool, c.Kubernetes.TargetPorts = "demo/pool", []string{"8000"} },
	} {
		want = strings.TrimSpace(want)
		got := ""
		if err := CheckOverride(change, names); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("got  %s\nwant %s", got, want)
		}
	}
}
