package decisions

// Span are the lowest and the highest id of the decisions that are kept, and how many they are; 0 where there is none. Ids
// between them may be missing: those of requests that were refused, or only tried.
func (r *Ring) Span() (oldest, newest uint64, n int) {
	slots := *r.slots.Load()
	for i := range slots {
		s := &slots[i]
		s.mu.Lock()
		id, there := s.id, s.cycle != nil
		s.mu.Unlock()
		if !there {
			continue
		}
		if n++; n == 1 || id < oldest {
			oldest = id
		}
		newest = max(newest, id)
	}
	return oldest, newest, n
}
