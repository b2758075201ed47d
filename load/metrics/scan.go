package metrics

import (
	"bytes"

	"github.com/sluice-epp/sluice/scheduling"
)

// total gathers the samples of one field.
type total struct {
	sum, max float64
	n        int
	// spoilt says that a sample was there but could not be used: what the others add up to is not the whole.
	spoilt bool
}

// scanner finds the needed samples of a page that is given to it in pieces. It keeps nothing of what it is given, and
// allocates nothing once it has seen a page with as many adapters.
type scanner struct {
	dialect *dialect
	totals  [numFields]total

	block, blocks total // from cacheInfo's labels

	awake, awakeSamples, asleep int
	sleepSpoilt                 bool

	loraAt                   float64
	loraSamples              int
	loraSpoilt               bool
	loraMax                  int
	loraRunning, loraWaiting []byte

	malformed int  // samples of needed families that could not be read
	found     bool // the page has a family of the engine
	skipping  bool // inside a line that is longer than the piece
}

// reset makes the scanner ready for a page.
func (s *scanner) reset(d *dialect) {
	*s = scanner{dialect: d, loraRunning: s.loraRunning[:0], loraWaiting: s.loraWaiting[:0]}
}

// lines scans the complete lines of a piece and returns how many bytes they have; what is left, the beginning of a line,
// must begin the next piece.
func (s *scanner) lines(piece []byte) (used int) {
	if s.skipping {
		end := bytes.IndexByte(piece, '\n')
		if end < 0 {
			return len(piece)
		}
		s.skipping, used = false, end+1
	}
	for {
		end := bytes.IndexByte(piece[used:], '\n')
		if end < 0 {
			return used
		}
		if end > 0 && piece[used] != '#' {
			s.line(piece[used : used+end])
		}
		used += end + 1
	}
}

// cut is told of the beginning of a line whose rest nobody will see, for it is too long or the page ends inside it. A
// sample that cannot be read to its end is spoilt: half a number is a number as well.
func (s *scanner) cut(line []byte, more bool) {
	s.skipping = more
	for _, r := range s.rulesFor(skipBlanks(line)) {
		s.spoil(r)
	}
}

// rulesFor are the rules of a sample's name.
func (s *scanner) rulesFor(line []byte) []rule {
	d := s.dialect
	if len(line) <= len(d.prefix) {
		return nil
	}
	if string(line[:len(d.prefix)]) != d.prefix {
		if line[0] == startRule.name[0] && startRule.names(line) {
			return startRules
		}
		return nil
	}
	rules := d.byNext[line[len(d.prefix)]]
	for i := range rules {
		if rules[i].names(line) {
			n := 1
			for i+n < len(rules) && rules[i+n].name == rules[i].name {
				n++
			}
			return rules[i : i+n]
		}
	}
	return nil
}

var (
	startRules = []rule{startRule}
	noLabels   = []byte("}")
)

// names reports whether a line begins with the rule's name and ends or goes on with something else, be it a number's sign.
func (r *rule) names(line []byte) bool {
	n := len(r.name)
	if len(line) <= n {
		return string(line) == r.name
	}
	switch line[n] { // first: it is almost never one of these
	case '{', ' ', '\t', '+', '-', '.':
		return string(line[:n]) == r.name
	}
	return false
}

// line takes a line without its end.
func (s *scanner) line(line []byte) {
	if isBlank(line[0]) {
		line = skipBlanks(line)
	}
	rules := s.rulesFor(line)
	if len(rules) == 0 {
		return
	}
	if line[len(line)-1] == '\r' {
		line = line[:len(line)-1]
	}
	rest := skipBlanks(line[len(rules[0].name):])
	labels := noLabels
	if len(rest) > 0 && rest[0] == '{' {
		labels = rest[1:]
		if rest = afterLabels(labels); rest == nil {
			s.spoilAll(rules)
			return
		}
	}
	v, ok := number(rest)
	if !ok {
		s.spoilAll(rules)
		return
	}
	for i := range rules {
		s.sample(&rules[i], labels, v)
	}
}

func (s *scanner) spoilAll(rules []rule) {
	s.malformed++
	for _, r := range rules {
		s.spoil(r)
	}
}

// afterLabels skips labels; nil where they do not end.
func afterLabels(b []byte) []byte {
	for {
		_, _, rest, done, ok := nextLabel(b)
		switch {
		case !ok:
			return nil
		case done:
			return rest
		}
		b = rest
	}
}

// labelOf is the value of a label in labels that afterLabels has accepted.
func labelOf(labels []byte, name string) []byte {
	for {
		key, value, rest, done, ok := nextLabel(labels)
		if done || !ok {
			return nil
		}
		if string(key) == name {
			return value
		}
		labels = rest
	}
}

func (s *scanner) sample(r *rule, labels []byte, v float64) {
	if r.label != "" && string(labelOf(labels, r.label)) != r.value {
		return
	}
	if only := s.dialect.onlyEmpty; only != "" && len(labelOf(labels, only)) > 0 {
		return
	}
	switch r.to {
	case cacheInfo:
		s.block.add(float64(positiveInt(labelOf(labels, r.sizeLabel))))
		s.blocks.add(float64(positiveInt(labelOf(labels, r.countLabel))))
	case sleepState:
		s.sleep(labelOf(labels, "sleep_state"), v)
	case loraInfo:
		s.lora(labels, v)
	default:
		s.totals[r.to].add(v)
	}
	s.found = s.found || r.to != startTime
}

func (t *total) add(v float64) {
	if !scheduling.Finite(v) {
		t.spoilt = true
		return
	}
	t.sum += v
	t.max = max(t.max, v)
	t.n++
}

func (s *scanner) spoil(r rule) {
	switch r.to {
	case cacheInfo:
		s.block.spoilt, s.blocks.spoilt = true, true
	case sleepState:
		s.sleepSpoilt = true
	case loraInfo:
		s.loraSpoilt = true
	default:
		s.totals[r.to].spoilt = true
	}
	s.found = s.found || r.to != startTime
}

// sleep takes a sample of vLLM's sleep state: awake is 1 while the engine works, the other states are 1 while it sleeps
// so deeply.
func (s *scanner) sleep(state []byte, v float64) {
	switch {
	case !scheduling.Finite(v):
		s.sleepSpoilt = true
	case string(state) == "awake":
		s.awakeSamples++
		if v != 0 {
			s.awake++
		}
	case v != 0:
		s.asleep++
	}
}

// lora takes a sample of vLLM's adapters. Its value is the time when it was set: engines leave the older ones on the
// page, and only the newest counts.
func (s *scanner) lora(labels []byte, at float64) {
	if !scheduling.Finite(at) {
		s.loraSpoilt = true
		return
	}
	s.loraSamples++
	if s.loraSamples > 1 && at < s.loraAt {
		return
	}
	s.loraAt = at
	s.loraMax = positiveInt(labelOf(labels, "max_lora"))
	s.loraRunning = append(s.loraRunning[:0], labelOf(labels, "running_lora_adapters")...)
	s.loraWaiting = append(s.loraWaiting[:0], labelOf(labels, "waiting_lora_adapters")...)
}
