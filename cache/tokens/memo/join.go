package memo

// The bounds of a joint. Before it, so many tokens at least must be the same in the known prompt and in the answer; behind
// it the known prompt has at most so many, which the answer replaces: what a template writes where an answer begins.
const (
	minOverlap = 4
	maxRest    = 64
)

// Join is the tokens of a conversation out of three renderings: known is that of its first messages, anchor that of the
// system messages and the last of the known ones, answer that of the system messages, the last known one and the new ones.
//
// For a template that writes each message by itself, one behind the other, with something before the first and something
// behind the last, known without its middle is anchor, anchor without its end begins answer, and the conversation is known
// up to that end followed by what answer has there. Join checks all of that which can be seen. ok is false where it
// does not hold: where the head differs (a date that has changed, tools that stand elsewhere), where the middle is not
// only missing, or where the last known message reads otherwise once others follow.
//
// A template may still do something that cannot be seen here, such as counting turns: see Classes.
func Join(known, anchor, answer []uint32) (tokens []uint32, ok bool) {
	head, tail := commonPrefix(known, anchor), commonSuffix(known, anchor)
	if len(known) < len(anchor) || head+tail < len(anchor) {
		return nil, false
	}
	joint := commonPrefix(anchor, answer)
	rest := len(anchor) - joint
	if rest > maxRest || rest+minOverlap > tail || joint >= len(answer) {
		return nil, false
	}
	kept := known[:len(known)-rest]
	tokens = make([]uint32, 0, len(kept)+len(answer)-joint)
	return append(append(tokens, kept...), answer[joint:]...), true
}

func commonPrefix(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[i] != b[i] {
			return i
		}
	}
	return n
}

func commonSuffix(a, b []uint32) int {
	n := min(len(a), len(b))
	for i := range n {
		if a[len(a)-1-i] != b[len(b)-1-i] {
			return i
		}
	}
	return n
}
