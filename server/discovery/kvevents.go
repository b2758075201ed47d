package discovery

import (
	"errors"
	"fmt"
	"strconv"

	"github.com/goccy/go-yaml/ast"

	"github.com/sluice-epp/sluice/scheduling"
)

const (
	kvEventsKey    = "kvEvents" // of a mapping in a file
	kvEventsPrefix = kvEventsKey + "."
	kvEventsNone   = "none" // in the place of a port
	maxKVRanks     = 256    // behind one address
)

// kvSettings are the keys of kvEvents.
var kvSettings = []setting{
	{"port", func(e *Entry, v string) (err error) { e.kv.Port, err = parseKVPort(v); return err }},
	{"replayPort", func(e *Entry, v string) (err error) { e.kv.ReplayPort, err = parseKVPort(v); return err }},
	{"ranks", func(e *Entry, v string) (err error) {
		if e.kv.Ranks, err = strconv.Atoi(v); err != nil || e.kv.Ranks < 1 || e.kv.Ranks > maxKVRanks {
			return fmt.Errorf("must be 1 to %d, got %q", maxKVRanks, clip(v))
		}
		return nil
	}},
	{"topic", func(e *Entry, v string) error { e.kv.Topic = v; return checkText(v, maxValueBytes) }},
	{"bind", func(e *Entry, v string) error { e.kv.Bind = v == "true"; return oneOf(v, truths) }},
	{"discover", func(e *Entry, v string) error { e.kv.NoDiscovery = v == "false"; return oneOf(v, truths) }},
}

var truths = []string{"true", "false"}

// parseKVPort reads a port, or "none" as a negative one.
func parseKVPort(s string) (int, error) {
	if s == kvEventsNone {
		return -1, nil
	}
	port, err := parsePort(s)
	if err != nil {
		return 0, fmt.Errorf("must be 1 to 65535 or %s, got %q", kvEventsNone, clip(s))
	}
	return int(port), nil
}

// setKV applies one key of kvEvents.
func (e *Entry) setKV(key, value string) error {
	for _, s := range kvSettings {
		if s.key != key {
			continue
		}
		if value == "" {
			return errors.New("has no value")
		}
		return s.set(e, value)
	}
	return fmt.Errorf("unknown key, %w", mustBe(key, keysOf(kvSettings)))
}

// setKVEvents applies a file's mapping.
func (a anchors) setKVEvents(e *Entry, node ast.Node) error {
	fields, err := a.fields(node)
	if err != nil {
		return nested(err)
	}
	for _, f := range fields {
		value, err := a.text(f.value)
		if err == nil {
			err = e.setKV(f.key, value)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", clip(f.key), err)
		}
	}
	return nil
}

// checkKV looks at what only the whole entry can tell of kvEvents.
func (e *Entry) checkKV() error {
	ranks, last := e.kvRanks()
	switch {
	case e.kv.Bind && e.kv.Port != 0:
		return errors.New("kvEvents.bind and kvEvents.port exclude each other: an engine that connects has no port of its own")
	case e.kv.Ranks > 1 && (len(e.ports) > 1 || e.rank > 0):
		return errors.New("kvEvents.ranks: is for one address with several ranks behind it; here every port has one rank")
	case e.kv.Port > 0 && e.kv.Port+last > 65535:
		return fmt.Errorf("kvEvents.port: rank %d would have a port above 65535", last)
	case e.kv.ReplayPort > 0 && e.kv.ReplayPort+last > 65535:
		return fmt.Errorf("kvEvents.replayPort: rank %d would have a port above 65535", last)
	case e.kv.Port > 0 && e.kv.ReplayPort > 0 && max(e.kv.Port, e.kv.ReplayPort)-min(e.kv.Port, e.kv.ReplayPort) < ranks:
		return fmt.Errorf("kvEvents.replayPort: must be %d or more away from kvEvents.port %d, got %d: every rank has a port of both",
			ranks, e.kv.Port, e.kv.ReplayPort)
	}
	return nil
}

// kvRanks is how many ranks one host publishes for, and the last of them.
func (e *Entry) kvRanks() (ranks, last int) {
	ranks = max(len(e.ports), e.kv.Ranks, 1)
	return ranks, e.rank + ranks - 1
}

// kvEvents says where the endpoint of the i-th port publishes. The ports of kvEvents are those of rank 0, as they are in
// the engine's own configuration, which is the same for all ranks.
func (e *Entry) kvEvents(i int) scheduling.KVEvents {
	kv, rank := e.kv, e.rank+i
	if kv.Port > 0 {
		kv.Port += rank
	}
	if kv.ReplayPort > 0 {
		kv.ReplayPort += rank
	}
	if len(e.ports) > 1 || rank > 0 {
		kv.Ranks = 1
	}
	return kv
}

// putKV passes the keys of kvEvents that are set to put, as the notation writes them.
func (e *Entry) putKV(put func(key, value string, isSet bool)) {
	port := func(n int) string {
		if n < 0 {
			return kvEventsNone
		}
		return strconv.Itoa(n)
	}
	put(kvEventsPrefix+"port", port(e.kv.Port), e.kv.Port != 0)
	put(kvEventsPrefix+"replayPort", port(e.kv.ReplayPort), e.kv.ReplayPort != 0)
	put(kvEventsPrefix+"ranks", strconv.Itoa(e.kv.Ranks), e.kv.Ranks != 0)
	put(kvEventsPrefix+"topic", e.kv.Topic, e.kv.Topic != "")
	put(kvEventsPrefix+"bind", "true", e.kv.Bind)
	put(kvEventsPrefix+"discover", "false", e.kv.NoDiscovery)
}
