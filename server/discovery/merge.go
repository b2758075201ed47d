package discovery

import (
	"slices"

	"github.com/sluice-epp/sluice/scheduling"
)

// summary says what a merge left out.
type summary struct {
	duplicates, refused, invalid               int
	firstDuplicate, firstRefused, firstInvalid string // addresses
}

// merge joins the sets of all sources into one of at most limit endpoints with distinct, normalised addresses. Earlier
// ones win over later ones with their address, and endpoints that the pool holds win a place over new ones. With keep,
// what the pool holds beyond the sets stays.
func merge(sets [][]scheduling.EndpointSpec, held *scheduling.Snapshot, limit int, keep bool) ([]scheduling.EndpointSpec, summary) {
	var sum summary
	size := 0
	for _, set := range sets {
		size += len(set)
	}
	merged := make([]scheduling.EndpointSpec, 0, size)
	seen := make(map[string]bool, size)
	for _, set := range sets {
		for _, spec := range set {
			address, err := NormalizeAddress(spec.Address)
			switch {
			case err != nil:
				note(&sum.invalid, &sum.firstInvalid, spec.Address)
				continue
			case seen[address]:
				note(&sum.duplicates, &sum.firstDuplicate, address)
				continue
			}
			seen[address] = true
			spec.Address = address
			merged = append(merged, spec)
		}
	}
	if keep {
		for _, e := range held.Endpoints {
			if e != nil && !seen[e.Address] {
				merged = append(merged, e.EndpointSpec)
			}
		}
	}
	if len(merged) <= limit {
		return merged, sum
	}
	slices.SortStableFunc(merged, func(a, b scheduling.EndpointSpec) int { return rankIn(held, &a) - rankIn(held, &b) })
	for _, spec := range merged[limit:] {
		note(&sum.refused, &sum.firstRefused, spec.Address)
	}
	return merged[:limit], sum
}

// rankIn is 0 for an instance that is held and 1 for another.
func rankIn(held *scheduling.Snapshot, spec *scheduling.EndpointSpec) int {
	if e := held.ByAddress(spec.Address); e != nil && e.UID == spec.UID {
		return 0
	}
	return 1
}

func note(count *int, first *string, address string) {
	if *count == 0 {
		*first = clip(address)
	}
	*count++
}
