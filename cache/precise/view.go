package precise

import (
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/precise/chain"
)

// view is what a scrape shows of a hub.
type view struct {
	sizes  chain.Sizes
	states map[cursor.State]int
	tables int // bytes
	routed int // blocks
}

func (h *hub) view() view {
	v := view{sizes: h.store.Sizes(), states: map[cursor.State]int{}}
	for _, m := range h.members.Load().byOrdinal {
		if m == nil {
			continue
		}
		for _, r := range *m.ranks.Load() {
			v.states[cursor.State(r.state.Load())]++
			blocks, bytes := r.routed.size()
			v.routed += blocks
			v.tables += bytes + r.bytes()
		}
	}
	return v
}

// feedConfig is the parameters' part for a feed.
func feedConfig(p *KVEvents) kvevents.Config {
	return kvevents.Config{
		Port: p.Port, ReplayPort: p.ReplayPort, Ranks: p.Ranks, Topic: p.Topic, Bind: p.Bind != "", Discover: p.Discover,
		MaxMessageBytes: int(p.MaxMessageBytes),
	}
}
