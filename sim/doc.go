// Package sim models one LLM inference engine in virtual time: a paged KV cache with prefix
// reuse, chunked prefill and continuous-batching decode.
//
// The model is a discrete-event core. It holds no clock, no goroutine and no socket: every call
// says what time it is, as a [time.Duration] since an origin that the caller chooses, and results
// are values. A live server drives it with wall time (package engine), a trace simulator with the
// times of its event queue:
//
//	e.Submit(now, job)
//	end, ok := e.Begin(now)   // forms a batch; the step ends at end
//	...                       // Submit and Abort are allowed meanwhile
//	step := e.Complete()      // tokens, preemptions and finished jobs of that step
//
// # Scheduling
//
// A step is formed as a vLLM V1 scheduler forms one: every running sequence that decodes gets one
// token, then sequences still in prefill get a chunk, then the waiting queue is served in order of
// arrival, all under one token budget. A sequence is admitted when the blocks of its whole known
// text fit; they are taken at once, so prefill never runs out of memory half way. A decode that
// finds no free block preempts the sequence admitted last, which starts over from the head of the
// queue (and usually finds its own blocks still cached). No sequence is admitted in a step that
// preempted one.
//
// # Prefix cache
//
// A block's hash covers its tokens and, through its parent, everything before them, the adapter
// and the cache salt. A block can be reused from the beginning of the step that computes it, by
// what is scheduled after it. The last token of a text is always computed, so at most
// ⌊(tokens−1)/blockSize⌋ blocks are reused. Blocks are not deduplicated: sequences that compute the
// same text at the same time hold, store and later remove one physical block each, as vLLM does.
// Unreferenced blocks stay cached in a free queue, least recently used first; a sequence gives its
// blocks back tail first, so prefixes outlive their continuations. Blocks that cache nothing, such as
// a text's last partial one, are taken before any that does. Every block is usable: there is no
// reserved null block. Package capture compares all this with what a real vLLM reports.
//
// # Offload tier
//
// With [Params.OffloadBlocks] full blocks are copied to the CPU's memory as they are computed, as
// vLLM's OffloadingConnector does with its LRU policy. A copy can be loaded from the end of the
// step after the one that computed the block. What the GPU lacks of a prompt is looked up there and
// counts as cached; it is loaded in the job's first step, takes GPU blocks like any other text, and
// is stored there again. Blocks that do not fit are offered again with the next block of their
// sequence. Resetting the GPU's cache leaves the tier as it is.
package sim
