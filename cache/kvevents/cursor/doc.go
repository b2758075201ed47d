// Package cursor follows the sequence numbers of one source of KV events (an endpoint instance's data-parallel rank) and
// decides what becomes of every message: whether it is new, whether something is missing before it, and whether it comes
// from a process that knows nothing of the ones before. It is pure: it opens no connection, starts no goroutine and reads
// no clock. A [Cursor] is told what happened and answers with a [Step] for its owner to carry out.
//
// An engine numbers its messages from 0 (some publishers from 1) anew in every process, keeps the last few thousand for
// replay if it is told to, and says nothing while it is idle. What is known of it belongs to one generation, the life of
// one process. A false miss costs one prefill and a false hit pins traffic to a cold engine, so whatever may be another
// process makes all that is known void (Step.Forget).
//
//	             first message: 0 or 1
//	        ┌────────────────────────────────────────────────────────┐
//	        │                                                        ▼
//	   ┌─────────┐  connected, and   ┌───────────┐  all is there  ┌──────┐
//	─▶ │ initial │──────────────────▶│ replaying │───────────────▶│ live │
//	   └─────────┘  can replay       └───────────┘◀───────────────└──────┘
//	        │                          ▲   │   ▲     gap              │ ▲
//	 nothing│                   nothing│   │   │gap,                  │ │ cleared,
//	   heard│                  replayed│   │   │reconnected           │ │ proven
//	        ▼                          ▼   │   │                      ▼ │
//	   ┌────────┐                (silent)  │   └───────────────────┌──────────┐
//	   │ silent │                          └──────────────────────▶│ degraded │
//	   └────────┘                           something is missing   └──────────┘
//
// Every change of state, and its [Reason]:
//
//	from      to         reasons
//	initial   replaying  connected, restart
//	initial   live       first
//	initial   degraded   late_start
//	initial   silent     silence
//	silent    replaying  connected, gap, restart
//	silent    live       first
//	silent    degraded   late_start
//	silent    initial    restart
//	replaying live       replayed, snapshot
//	replaying degraded   late_start, gap_lost, replay_failed, unreadable, disconnected
//	replaying initial    replay_failed, disconnected, snapshot
//	replaying silent     silence, replay_failed, disconnected
//	live      replaying  gap, new_generation, restart
//	live      degraded   gap_lost, late_start, unreadable, disconnected
//	live      initial    restart
//	degraded  replaying  reconnected, gap, rebuild, new_generation, restart
//	degraded  live       continued, cleared, new_generation, snapshot
//	degraded  initial    restart
//
// What a message means, by its number n, the last number applied (last), and what the connection has brought:
//
//	on one connection         n = last+1                           apply
//	                          n > last+1                           gap: replay from last+1; without: degraded, apply
//	                          the connection's last, same bytes    duplicate, ignored
//	                          n ≤ last, n rising                   a replay brought it already, ignored
//	                          otherwise (n falls, other bytes)     new generation
//	a new one, with replay    hold; replay from last, inclusive: the same bytes first: the same process, go on;
//	                          other bytes, a later number, nothing: new generation, replay from 0
//	a new one, without        n = last+1                           apply
//	                          n = last, same bytes                 duplicate, ignored
//	                          anything else                        new generation
//	after forgetting          0 or 1                               apply, live
//	                          later                                apply, degraded: the history is unknown
//
// A message that empties the cache ends all doubt about what came before it: a degraded source is live again.
//
// Where a replay failed (rather than had not what was asked for) it is tried again with growing delays. Messages that came
// since may have been applied over the gap, and events that are applied late bring removed blocks back; so the retry asks
// for everything, from 0, and replaces what is known when the first reply shows that the history is whole ("rebuild").
//
// Where one generation follows another at a stretch, a replay socket and a publisher that are not one process's, say, replay
// counts as failed too.
//
// Without replay nothing on the wire tells a process that restarted and happens to go on at the expected number. What a
// young connection brought is therefore also kept for a while (Step.Keep): a sign of a restart from elsewhere makes the
// generation void, and what was kept is applied again to the new one.
package cursor
