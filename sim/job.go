package sim

import "time"

// Job is one sequence to compute: a prompt and the tokens that the model is going to sample. A job
// is submitted once; its exported fields must not change from then on.
type Job struct {
	Prompt  []uint32 // at least one token; may be shared between jobs
	Output  []uint32 // tokens generated, in order; none finishes at the end of prefill (embeddings)
	Adapter string   // LoRA adapter, part of every block's hash
	Salt    string   // cache salt, part of every block's hash
	Report  bool     // announce the blocks that are found in the GPU's cache too; see [Stored]

	state     jobState
	blocks    []int32  // KV blocks held, in order of position
	hashes    []uint64 // hashes of the full blocks of the text known so far
	computed  int      // tokens whose KV exists
	generated int      // output tokens sampled
	stored    int      // leading blocks that are in the index
	reused    int      // leading blocks to announce again, for Report
	loaded    int      // leading blocks that were found, on the GPU or loaded, at the latest admission
	offered   int      // leading blocks that the offload tier was offered
	chunk     int      // tokens that the current step computes
	progress  Progress
}

type jobState uint8

const (
	stateNew jobState = iota
	stateWaiting
	stateRunning
	stateDone
)

// Progress is what has become of a job. Times are those given to the engine's methods; a time
// means something once the job got there.
type Progress struct {
	Cached      int // prompt tokens found in the prefix cache, offload tier included, at first admission
	Loaded      int // of these, tokens copied back from the offload tier
	Created     int // prompt tokens in full blocks that had to be computed at first admission
	Generated   int // output tokens sampled so far
	Preemptions int

	Submitted  time.Duration
	Scheduled  time.Duration // first admission
	FirstToken time.Duration // end of prefill, for a job without output too
	Finished   time.Duration
}

// Progress reports how far the job is. Call it from where the engine is driven.
func (j *Job) Progress() Progress { return j.progress }

// known is the number of tokens of the text so far.
func (j *Job) known() int { return len(j.Prompt) + j.generated }

// decoding says that exactly the token sampled last is to be computed.
func (j *Job) decoding() bool { return j.generated > 0 && j.known()-j.computed == 1 }

// retire ends the job's life and lets go of what only a live one needs.
func (j *Job) retire() { j.state, j.blocks, j.hashes = stateDone, nil, nil }

// Kind says what an [Event] reports.
type Kind uint8

// The kinds of event, in the order in which they can occur for one job.
const (
	Preempted  Kind = iota + 1 // lost its blocks to another sequence and waits again
	FirstToken                 // the first output token
	Token                      // a further output token
	Finished                   // the last token was sampled, blocks are released
)

// String names the kind in lower case.
func (k Kind) String() string {
	switch k {
	case Preempted:
		return "preempted"
	case FirstToken:
		return "first_token"
	case Token:
		return "token"
	case Finished:
		return "finished"
	default:
		return "unknown"
	}
}

// Event is something that happened to a job in a step.
type Event struct {
	Kind  Kind
	Job   *Job
	Index int // of the token in Job.Output, for FirstToken and Token
}

// StepResult is the outcome of one step.
type StepResult struct {
	Start, End    time.Duration
	PrefillTokens int     // tokens computed in prefill chunks
	Decodes       int     // sequences that decoded
	ContextTokens int     // Σ context of those
	LoadedTokens  int     // tokens copied back from the offload tier
	Events        []Event // valid until the next call of Begin; Preempted ones come first
}
