package kvevents

import (
	"cmp"
	"context"
	"io"
	"net/http"
	"slices"
	"strconv"

	"github.com/go-json-experiment/json"
)

// ask asks the engine where it publishes: vLLM (0.32 and later) on /kv_event_sources, SGLang on /server_info. answered says
// that there was any HTTP answer; an engine that says nothing of its events is expected at the configured ports.
func (f *Feed) ask() (engine []told, answered bool) {
	var sources map[string]*vllmSource
	found, answered := f.get("/kv_event_sources", &sources)
	if found && len(sources) > 0 {
		return vllmRanks(sources), true
	}
	if !answered {
		return nil, false // nobody there, or stuck: the next question would fare no better
	}
	var info struct {
		KVEvents *sglangSource `json:"kv_events"`
	}
	if found, _ := f.get("/server_info", &info); found && info.KVEvents != nil {
		return info.KVEvents.ranks(), true
	}
	return nil, true
}

// vllmSource is one rank in the answer of vLLM: an object from the rank to its publisher's configuration, in which the
// ports are this rank's.
type vllmSource struct {
	Enabled        *bool   `json:"enable_kv_cache_events"`
	Publisher      *string `json:"publisher"`
	Endpoint       string  `json:"endpoint"`
	ReplayEndpoint string  `json:"replay_endpoint"`
}

func vllmRanks(sources map[string]*vllmSource) []told {
	list := make([]told, 0, len(sources))
	for name, s := range sources {
		rank, err := strconv.Atoi(name)
		if err != nil || rank < 0 || s == nil {
			continue
		}
		t := told{rank: rank}
		t.off = s.Enabled != nil && !*s.Enabled || s.Publisher != nil && *s.Publisher != "zmq"
		// An address that is not TCP, or cannot be read, leaves the defaults.
		t.host, t.port, _ = zmqAddress(s.Endpoint)
		t.replayHost, t.replayPort, _ = zmqAddress(s.ReplayEndpoint)
		t.noReplay = s.ReplayEndpoint == ""
		list = append(list, t)
	}
	slices.SortFunc(list, func(a, b told) int { return cmp.Compare(a.rank, b.rank) })
	return list
}

// sglangSource is kv_events in the answer of SGLang: the ports of rank 0, and the number of ranks.
type sglangSource struct {
	Host       string `json:"endpoint_host"`
	Port       int    `json:"endpoint_port_base"`
	ReplayPort int    `json:"replay_endpoint_port_base"`
	Ranks      int    `json:"dp_size"`
}

func (s *sglangSource) ranks() []told {
	if s.Port <= 0 {
		return nil
	}
	list := make([]told, min(max(s.Ranks, 1), maxRanks))
	for rank := range list {
		list[rank] = told{rank: rank, host: s.Host, port: s.Port + rank, noReplay: s.ReplayPort <= 0}
		if s.ReplayPort > 0 {
			list[rank].replayHost, list[rank].replayPort = s.Host, s.ReplayPort+rank
		}
	}
	return list
}

// get asks one question. found says that into was filled in; answered that there was an answer of some kind.
func (f *Feed) get(path string, into any) (found, answered bool) {
	f.stats.Questions.Add(1)
	ctx, cancel := context.WithTimeout(f.ctx, askTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+f.endpoint.Address+path, nil)
	if err != nil {
		return false, false
	}
	res, err := f.options.Client.Do(req)
	if err != nil {
		f.stats.Unanswered.Add(1)
		return false, false
	}
	defer func() { _ = res.Body.Close() }() // it was read, or is of no use
	if res.StatusCode != http.StatusOK {
		return false, res.StatusCode < http.StatusInternalServerError // such as it says while it starts
	}
	return json.UnmarshalRead(io.LimitReader(res.Body, maxAnswer), into) == nil, true
}
