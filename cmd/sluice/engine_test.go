package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/sim/engine"
)

func TestEngineEventFlags(t *testing.T) {
	for args, want := range map[string]*engine.KVEvents{
		"":               {Listen: "127.0.0.1:0", Replay: "127.0.0.1:0", BufferSteps: 10_000},
		"--no-kv-events": nil,
		"--listen [::1]:8000 --kv-events-port 5557 --kv-events-replay-port 5558 --kv-events-topic kv": {
			Listen: "[::1]:5557", Replay: "[::1]:5558", BufferSteps: 10_000, Topic: "kv"},
		"--kv-events-connect 10.0.0.9:5557 --kv-events-replay-port=-1 --data-parallel-rank 3 --kv-events-buffer 7 --self-describing-kv-events": {
			Connect: "10.0.0.9:5557", NoReplay: true, BufferSteps: 7, Rank: 3, SelfDescribing: true},
	} {
		var cli CLI
		if _, err := newParser(&cli).Parse(append([]string{"engine"}, strings.Fields(args)...)); err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		if diff := cmp.Diff(want, cli.Engine.Events.config(cli.Engine.Listen)); diff != "" {
			t.Errorf("%q (-want +got):\n%s", args, diff)
		}
	}
}
