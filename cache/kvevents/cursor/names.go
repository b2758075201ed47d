package cursor

// State says how far what is known of a source can be trusted.
type State uint8

// The states of a source.
const (
	// Initial: nothing has been heard yet.
	Initial State = iota
	// Replaying: the engine is asked for what it published before; live messages are held back.
	Replaying
	// Live: all that the engine has published in this life was applied in order.
	Live
	// Degraded: something is or may be missing; what is known stays.
	Degraded
	// Silent: nothing was ever heard of this generation, though there was time.
	Silent

	states
)

var stateNames = [states]string{"initial", "replaying", "live", "degraded", "silent"}

// String is the state's name in metrics.
func (s State) String() string { return nameOf(stateNames[:], int(s)) }

// States are all states, in order.
func States() []State { return all(states) }

// Cause says why all that was known of a source was forgotten.
type Cause uint8

// The causes of forgetting. The zero Cause forgets nothing.
const (
	_ Cause = iota
	// CauseBackwards: on one connection the numbers fell, or a number came again with other bytes.
	CauseBackwards
	// CauseReconnect: without replay, a new connection did not go on where the old one ended.
	CauseReconnect
	// CauseReplayDiffers: the engine replays other bytes under a number that was applied.
	CauseReplayDiffers
	// CauseReplayAbsent: after a new connection the engine no longer has the last number that was applied.
	CauseReplayAbsent
	// CauseRestart: something else than the events told of a restart.
	CauseRestart
	// CauseRebuild: the whole history takes the place of one with gaps.
	CauseRebuild
	// CauseSnapshot: a snapshot of the cache takes the place of what was known.
	CauseSnapshot

	// NumCauses is one more than the largest Cause.
	NumCauses
)

var causeNames = [NumCauses]string{
	"none", "backwards", "reconnect", "replay_differs", "replay_absent", "restart", "rebuild", "snapshot",
}

// String is the cause's name in metrics.
func (c Cause) String() string { return nameOf(causeNames[:], int(c)) }

// Reason says why a source came into its state.
type Reason uint8

// The reasons of state changes. The zero Reason is that of a new Cursor.
const (
	_ Reason = iota
	// ReasonConnected: a connection came up, and the history is asked for.
	ReasonConnected
	// ReasonReconnected: a further connection came up, and it has to be proved that the process is the same.
	ReasonReconnected
	// ReasonDisconnected: the connection is gone; what happens now is not heard.
	ReasonDisconnected
	// ReasonFirst: the first message of the stream came.
	ReasonFirst
	// ReasonLateStart: the first message that could be had is not the stream's first.
	ReasonLateStart
	// ReasonContinued: a new connection goes on where the old one ended.
	ReasonContinued
	// ReasonGap: numbers are missing and a replay is asked for.
	ReasonGap
	// ReasonGapLost: numbers are missing that no replay has.
	ReasonGapLost
	// ReasonReplayed: a replay ended and nothing is missing.
	ReasonReplayed
	// ReasonReplayFailed: every attempt at a replay failed.
	ReasonReplayFailed
	// ReasonUnreadable: a message could not be decoded, so that what it said is missing.
	ReasonUnreadable
	// ReasonCleared: the engine emptied its cache, so that nothing is missing any more.
	ReasonCleared
	// ReasonNewGeneration: another process speaks.
	ReasonNewGeneration
	// ReasonRestart: something else than the events told of a restart.
	ReasonRestart
	// ReasonRebuild: the engine replays its whole history after a replay had failed.
	ReasonRebuild
	// ReasonSnapshot: a snapshot of the cache was taken in.
	ReasonSnapshot
	// ReasonSilence: nothing was heard, neither live nor from a replay.
	ReasonSilence

	// NumReasons is one more than the largest Reason.
	NumReasons
)

var reasonNames = [NumReasons]string{
	"none", "connected", "reconnected", "disconnected", "first", "late_start", "continued", "gap", "gap_lost", "replayed",
	"replay_failed", "unreadable", "cleared", "new_generation", "restart", "rebuild", "snapshot", "silence",
}

// String is the reason's name in metrics.
func (r Reason) String() string { return nameOf(reasonNames[:], int(r)) }

func nameOf(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return "unknown"
}

func all[T ~uint8](end T) []T {
	list := make([]T, end)
	for i := range list {
		list[i] = T(i)
	}
	return list
}
