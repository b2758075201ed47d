package sim

// admit serves the waiting queue in order until its head does not fit.
func (e *Engine) admit(budget *int) {
	for len(e.waiting) > 0 && *budget > 0 && len(e.running) < e.params.MaxSeqs {
		j := e.waiting[0]
		reusable := j.hashes[:(j.known()-1)/e.params.BlockSize]
		cached, fromFree := e.pool.match(reusable)
		fresh := blocksFor(j.known(), e.params.BlockSize) - cached
		if fresh+fromFree > e.pool.nfree {
			return
		}
		e.waiting[0] = nil
		e.waiting = e.waiting[1:]
		for _, h := range reusable[:cached] {
			j.blocks = append(j.blocks, e.pool.share(h))
		}
		for range fresh {
			j.blocks = append(j.blocks, e.pool.take())
		}
		e.reuse(j, cached, e.lookUp(j, reusable[cached:]))
		j.state = stateRunning
		e.running = append(e.running, j)
		e.schedulePrefill(j, budget)
	}
}

// lookUp counts the blocks that the offload tier has of what the GPU has not.
func (e *Engine) lookUp(j *Job, missing []uint64) (loaded int) {
	if e.tier == nil {
		return 0
	}
	loaded = e.tier.match(missing)
	e.tier.touch(j.hashes)
	return loaded
}

// reuse notes what an admitted job need not compute: blocks cached on the GPU, then blocks that
// its first step loads.
func (e *Engine) reuse(j *Job, cached, loaded int) {
	size := e.params.BlockSize
	j.stored, j.loaded = cached, cached+loaded
	j.computed = j.loaded * size
	e.load.loaded += loaded * size
	if loaded > 0 { // what is loaded, and what comes before it, is in the tier
		j.offered = max(j.offered, j.loaded)
	}
	if j.progress.Preemptions > 0 {
		return
	}
	if j.Report {
		j.reused = cached
	}
	j.progress.Scheduled = e.now
	j.progress.Cached, j.progress.Loaded = j.computed, loaded*size
	j.progress.Created = max(0, len(j.Prompt)/size*size-j.computed)
	e.stats.PrefixQueries += len(j.Prompt)
	e.stats.PrefixHits += cached * size
	if e.tier != nil {
		e.stats.OffloadQueries += len(j.Prompt) - cached*size
		e.stats.OffloadHits += loaded * size
	}
}
