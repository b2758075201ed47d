package page

import (
	"maps"
	"slices"
	"strconv"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
)

// indexRow is a prefix index.
type indexRow struct {
	Producer, Type  string
	Entries, Shared string
	Bytes, Evicted  string
	Sources         []chip
	Audit           string
	AuditKnown      bool
}

func indexRows(all []*schedulerv1.IndexStats) []piece {
	pieces := make([]piece, 0, len(all))
	for place, i := range all {
		row := indexRow{
			Producer: short(i.GetProducer()), Entries: count(i.GetEntries()), Shared: count(i.GetHolderEntries()),
			Bytes: "not counted", Evicted: count(i.GetEvicted()),
		}
		if i.GetType() != i.GetProducer() {
			row.Type = short(i.GetType())
		}
		if i.GetBytes() > 0 {
			row.Bytes = size(i.GetBytes())
		}
		for _, state := range slices.Sorted(maps.Keys(i.GetSources())) {
			text, class := eventState(state)
			row.Sources = append(row.Sources, chip{text, class, count(i.GetSources()[state])})
		}
		row.Audit, row.AuditKnown = audit(i.FalseHitRate, i.MissRate, i.GetAudited(), i.GetUnconfirmed())
		pieces = append(pieces, piece{"i" + strconv.Itoa(place), row})
	}
	return pieces
}
