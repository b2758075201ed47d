package wire

import (
	"encoding/binary"
	"fmt"
	"math"
)

// ReplayEnd is the sequence number that marks the end of a replay.
const ReplayEnd uint64 = math.MaxUint64

const sequenceBytes = 8

// ParseFrames takes a published message apart: [topic] [sequence number, 8 bytes big-endian] [payload]. Topic and payload
// alias the frames. An error is ErrFrames or ErrSequence.
func ParseFrames(frames [][]byte) (topic []byte, seq uint64, payload []byte, err error) {
	if len(frames) != 3 {
		return nil, 0, nil, fmt.Errorf("kv-event message: %w: got %d, want 3", ErrFrames, len(frames))
	}
	if seq, err = parseSequence(frames[1]); err != nil {
		return nil, 0, nil, fmt.Errorf("kv-event message: %w", err)
	}
	return frames[0], seq, frames[2], nil
}

// ParseReply takes a reply of the replay socket apart as a DEALER receives it: an empty frame, then [sequence number]
// [payload] (vLLM up to 0.24) or [topic] [sequence number] [payload]. The last reply has the number ReplayEnd and no
// payload. An error is ErrFrames or ErrSequence.
func ParseReply(frames [][]byte) (seq uint64, payload []byte, err error) {
	n := len(frames)
	if n < 3 || n > 4 || len(frames[0]) != 0 {
		return 0, nil, fmt.Errorf("kv-event replay: %w: got %d, want an empty one and 2 or 3", ErrFrames, n)
	}
	if seq, err = parseSequence(frames[n-2]); err != nil {
		return 0, nil, fmt.Errorf("kv-event replay: %w", err)
	}
	return seq, frames[n-1], nil
}

func parseSequence(frame []byte) (uint64, error) {
	if len(frame) != sequenceBytes {
		return 0, fmt.Errorf("%w: got %d", ErrSequence, len(frame))
	}
	return binary.BigEndian.Uint64(frame), nil
}
