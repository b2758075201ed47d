package wire

// maxTail bounds the end of an event that is remembered.
const maxTail = 256

// pivot is the last field of a kind that usually differs from the event before; what follows usually does not.
var pivot = [...]field{Stored: fieldTokens, Removed: fieldHashes, Cleared: fieldOther}

// tailFields are those that a tail may hold and that may not come before it.
const tailFields = 1<<fieldOther | 1<<fieldBlockSize | 1<<fieldLoRAID | 1<<fieldMedium | 1<<fieldLoRAName | 1<<fieldExtra |
	1<<fieldGroup | 1<<fieldSpec | 1<<fieldWindow | 1<<fieldSalt | 1<<fieldSession

// tail remembers how the last event of a kind went on after its pivot, where that held no text of its own: most events
// differ in hashes and tokens only, and comparing the bytes costs a fraction of reading them.
type tail struct {
	bytes         [maxTail]byte
	size          int
	left          int    // number of fields that the bytes hold
	before, after fields // which were there before them, and which they are

	blockSize, group, window, ends int
	hasGroup                       bool
	medium, spec                   string
}

// recall reads the rest of an event, left fields at b[p:], from the remembered tail. ok is false where it is another.
func (d *Decoder) recall(ev *Event, r *reading, left int, b []byte, p int) (next int, ok bool) {
	t := &d.tails[ev.Kind]
	next = p + t.size
	r.before |= r.has
	if t.size == 0 || left != t.left || r.before != t.before || next > len(b) || string(b[p:next]) != string(t.bytes[:t.size]) {
		r.tail, r.left, r.has = p, left, 0
		return p, false
	}
	ev.BlockSize, ev.Medium, ev.Group, ev.HasGroup = t.blockSize, t.medium, t.group, t.hasGroup
	ev.Spec, ev.Window = t.spec, t.window
	if t.ends > 0 {
		ev.ExtraEnd = d.noEnds(t.ends)
	}
	r.has, r.tail = t.after, 0
	return next, true
}

// remember keeps the tail of an event that ends at b[end], if it is one to recall.
func (d *Decoder) remember(ev *Event, r *reading, b []byte, end int) {
	size := end - r.tail
	if r.tail == 0 || size <= 0 || size > maxTail || r.before&tailFields != 0 ||
		r.has&^tailFields != 0 || len(ev.Extra) > 0 || ev.LoRA != nil || ev.Salt != nil || ev.Session != nil {
		return
	}
	t := &d.tails[ev.Kind]
	t.size = copy(t.bytes[:], b[r.tail:end])
	t.left, t.before, t.after = r.left, r.before, r.has
	t.blockSize, t.medium, t.group, t.hasGroup = ev.BlockSize, ev.Medium, ev.Group, ev.HasGroup
	t.spec, t.window, t.ends = ev.Spec, ev.Window, len(ev.ExtraEnd)
}
