package zmtp

import "encoding/binary"

// appendHead appends a frame's flags and length, short where that will do.
func appendHead(dst []byte, flags byte, length int) []byte {
	if length <= 255 {
		return append(dst, flags, byte(length))
	}
	return binary.BigEndian.AppendUint64(append(dst, flags|flagLong), uint64(length))
}

// appendMessage appends a message as it goes over the wire.
func appendMessage(dst []byte, frames [][]byte) []byte {
	for i, frame := range frames {
		dst = appendHead(dst, moreFlag(i, frames), len(frame))
		dst = append(dst, frame...)
	}
	return dst
}

func moreFlag(i int, frames [][]byte) byte {
	if i < len(frames)-1 {
		return flagMore
	}
	return 0
}

func messageBytes(frames [][]byte) int {
	n := 0
	for _, frame := range frames {
		n += 9 + len(frame)
	}
	return n
}
