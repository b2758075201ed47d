// Package ledger counts what this process has in flight on every endpoint: requests, the prompt tokens that their
// engines have still to compute, and how many are decoding.
//
// A pick is charged inside the scheduler's critical section, so that simultaneous picks see one another. What was
// charged is kept with the flight, together with the counter that was charged, and exactly that is released: from that
// counter, whatever the caches, the set of endpoints or the configuration have become meanwhile.
package ledger
