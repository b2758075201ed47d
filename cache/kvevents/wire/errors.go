package wire

import "errors"

// What is wrong with a message as a whole. errors.Is tells them apart.
var (
	ErrFrames    = errors.New("wrong number of frames")           // ParseFrames, ParseReply
	ErrSequence  = errors.New("sequence number is not 8 bytes")   // ParseFrames, ParseReply
	ErrTruncated = errors.New("payload ends inside a value")      // Decode
	ErrBatch     = errors.New("payload is not a batch of events") // Decode
)
