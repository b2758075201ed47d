package wire

// OtherName stands for a medium or a kind of attention that is not told apart: longer than 64 bytes, or one more than the
// 64 of either that a Decoder remembers beyond those it knows from the start.
const OtherName = "other"

const (
	maxNames     = 64
	maxNameBytes = 64
)

// names gives texts that come again and again as strings without allocating.
type names map[string]string

func newNames(known ...string) names {
	n := make(names, len(known))
	for _, s := range known {
		n[s] = s
	}
	return n
}

// of is the text as a string, in lower case where lower says so (ASCII only: these are identifiers).
func (n names) of(text []byte, lower bool) string {
	if len(text) > maxNameBytes {
		return OtherName
	}
	var buf [maxNameBytes]byte
	s := buf[:copy(buf[:], text)]
	if lower {
		for i, c := range s {
			if 'A' <= c && c <= 'Z' {
				s[i] = c + 'a' - 'A'
			}
		}
	}
	if name, ok := n[string(s)]; ok {
		return name
	}
	if len(n) >= maxNames {
		return OtherName
	}
	name := string(s)
	n[name] = name
	return name
}

// medium is a storage tier's name in lower case.
func (d *Decoder) medium(text []byte) string {
	switch string(text) {
	case "":
		return ""
	case "GPU", "gpu":
		return "gpu"
	case "CPU", "cpu":
		return "cpu"
	}
	if d.media == nil {
		d.media = newNames("gpu", "cpu", "storage", "cpu_pinned", "disk", "external")
	}
	return d.media.of(text, true)
}

// spec is the name of a kind of attention.
func (d *Decoder) spec(text []byte) string {
	switch string(text) {
	case "":
		return ""
	case "full_attention":
		return "full_attention"
	case "sliding_window":
		return "sliding_window"
	}
	if d.specs == nil {
		d.specs = newNames()
	}
	return d.specs.of(text, false)
}
