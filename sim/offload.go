package sim

import (
	"cmp"
	"slices"
)

// offer is the text of a job as far as it is stored on the GPU, to be copied to the offload tier.
type offer struct {
	job    *Job
	hashes []uint64
}

// copying is a block on its way to the offload tier.
type copying struct {
	job          *Job
	index        int // of the block in the text
	hash, parent uint64
}

// offload ends a step of the offload tier: it gives places to what the step stored, evicting what
// was not used for longest, and makes the copies known that an earlier step began.
func (e *Engine) offload() {
	if e.tier == nil {
		return
	}
	arrived := e.copies
	e.copies = e.spare[:0]
	for _, o := range e.offers {
		e.prepare(o)
	}
	// vLLM announces copies in no order; this one is fixed and has nothing to do with the text's.
	slices.SortFunc(e.copies, func(a, b copying) int { return cmp.Compare(a.hash, b.hash) })
	clear(e.offers)
	e.offers = e.offers[:0]
	for _, c := range arrived {
		e.tier.complete(c.hash)
		e.announce(Stored{Medium: CPU, Job: c.job, First: c.index, Parent: c.parent}, []uint64{c.hash})
	}
	clear(arrived)
	e.spare = arrived[:0]
}

// prepare begins to copy the blocks of a job that were not offered before. Where they find no room
// they are offered again with the job's next block.
func (e *Engine) prepare(o offer) {
	from := o.job.offered
	if from >= len(o.hashes) {
		return
	}
	fresh, evicted, ok := e.tier.store(o.hashes[from:])
	if !ok {
		return
	}
	o.job.offered = len(o.hashes)
	if len(evicted) > 0 && e.pool.obs != nil {
		e.pool.obs.BlocksRemoved(Removed{Medium: CPU, Hashes: evicted})
	}
	if len(fresh) == 0 {
		return
	}
	e.tier.touch(o.hashes)
	for _, i := range fresh {
		c := copying{job: o.job, index: from + i, hash: o.hashes[from+i]}
		if c.index > 0 {
			c.parent = o.hashes[c.index-1]
		}
		e.copies = append(e.copies, c)
	}
}

// ResetOffloaded forgets all blocks of the offload tier, which no event reports.
func (e *Engine) ResetOffloaded() {
	if e.tier == nil {
		return
	}
	e.tier.reset()
	clear(e.copies)
	e.copies = e.copies[:0]
}
