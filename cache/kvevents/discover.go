package kvevents

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
)

// discover finds where the endpoint publishes: what the engine says of itself, or else what is configured. answered says
// that the engine has spoken; it may have said that it publishes nothing.
func (f *Feed) discover() (sockets []socket, answered bool) {
	if f.config.Discover && f.options.Client != nil {
		if sockets, answered = f.askVLLM(); answered {
			return sockets, true
		}
		if sockets, answered = f.askSGLang(); answered {
			return sockets, true
		}
	}
	return f.configured(), false
}

// configured are the sockets as they are configured: those of rank r lie r ports behind those of rank 0.
func (f *Feed) configured() []socket {
	host, _, err := net.SplitHostPort(f.endpoint.Address)
	if err != nil || f.config.Port == 0 {
		return nil
	}
	sockets := make([]socket, min(max(1, f.config.Ranks), maxRanks))
	for r := range sockets {
		s := &sockets[r]
		s.rank, s.topic = r, f.config.Topic
		if len(sockets) == 1 {
			s.rank = f.endpoint.Rank
		}
		s.publisher = net.JoinHostPort(host, strconv.Itoa(f.config.Port+r))
		if f.config.ReplayPort != 0 {
			s.replay = net.JoinHostPort(host, strconv.Itoa(f.config.ReplayPort+r))
		}
	}
	return sockets
}

// vllmSource is one rank in vLLM's answer.
type vllmSource struct {
	Enabled        bool   `json:"enable_kv_cache_events"`
	Publisher      string `json:"publisher"`
	Endpoint       string `json:"endpoint"`
	ReplayEndpoint string `json:"replay_endpoint"`
	Topic          string `json:"topic"`
}

// askVLLM asks GET /kv_event_sources: an object from rank to what is configured there.
func (f *Feed) askVLLM() (sockets []socket, answered bool) {
	var ranks map[string]*vllmSource
	if err := f.get("/kv_event_sources", &ranks); err != nil || len(ranks) == 0 {
		return nil, false
	}
	for name, r := range ranks {
		rank, err := strconv.Atoi(name)
		if err != nil || rank < 0 || r == nil || len(sockets) == maxRanks {
			continue
		}
		if !r.Enabled || r.Publisher != "zmq" {
			answered = true
			continue
		}
		offset := rank
		if len(ranks) == 1 {
			offset = 0
		}
		s := socket{rank: rank, topic: f.config.Topic}
		if s.publisher = f.reach(r.Endpoint, f.config.Port+offset); s.publisher == "" {
			continue
		}
		s.replay = f.reach(r.ReplayEndpoint, 0)
		if s.replay == "" && f.config.ReplayPort != 0 {
			s.replay = f.reach("tcp://*:*", f.config.ReplayPort+offset)
		}
		sockets = append(sockets, s)
	}
	slices.SortFunc(sockets, func(a, b socket) int { return a.rank - b.rank })
	return sockets, answered || len(sockets) > 0
}

// askSGLang asks GET /server_info, whose kv_events has the ports of rank 0.
func (f *Feed) askSGLang() (sockets []socket, answered bool) {
	var info struct {
		KVEvents *struct {
			Host       string `json:"endpoint_host"`
			Port       int    `json:"endpoint_port_base"`
			ReplayPort int    `json:"replay_endpoint_port_base"`
			Ranks      int    `json:"dp_size"`
		} `json:"kv_events"`
	}
	if err := f.get("/server_info", &info); err != nil || info.KVEvents == nil || info.KVEvents.Port <= 0 {
		return nil, false
	}
	k := info.KVEvents
	for rank := range min(max(1, k.Ranks), maxRanks) {
		s := socket{rank: rank, topic: f.config.Topic, publisher: f.reach("tcp://"+net.JoinHostPort(k.Host, strconv.Itoa(k.Port+rank)), 0)}
		if k.ReplayPort > 0 {
			s.replay = f.reach("tcp://"+net.JoinHostPort(k.Host, strconv.Itoa(k.ReplayPort+rank)), 0)
		}
		if s.publisher != "" {
			sockets = append(sockets, s)
		}
	}
	return sockets, len(sockets) > 0
}

// reach is a ZeroMQ address as host:port to connect to: an address of all interfaces, or of the engine's own loopback, is
// the endpoint's host, and a port that is not told is the one given. Empty where there is none, or no TCP.
func (f *Feed) reach(address string, port int) string {
	rest, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return ""
	}
	host, told, err := net.SplitHostPort(rest)
	if err != nil {
		return ""
	}
	own, _, err := net.SplitHostPort(f.endpoint.Address)
	if err != nil {
		return ""
	}
	if ip := net.ParseIP(host); host == "*" || host == "" || host == "localhost" || (ip != nil && (ip.IsUnspecified() || ip.IsLoopback())) {
		host = own
	}
	if n, err := strconv.Atoi(told); err == nil && n > 0 {
		port = n
	}
	if port <= 0 || port > 65535 {
		return ""
	}
	return net.JoinHostPort(host, strconv.Itoa(port))
}

func (f *Feed) get(path string, into any) error {
	ctx, cancel := context.WithTimeout(f.ctx, discoverTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.endpoint.Address+path, nil)
	if err != nil {
		return err
	}
	res, err := f.options.Client.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = res.Body.Close() }() // it was read to its end or is of no use
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: status %d", path, res.StatusCode)
	}
	return json.UnmarshalRead(io.LimitReader(res.Body, maxDiscovery), into)
}
