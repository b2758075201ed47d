package openai

import "bytes"

// document reads JSON documents, one after the other, from pieces cut anywhere. It follows the few paths that matter
// and skips everything else; its memory does not depend on what it reads, but for the token ids that it was asked for.
type document struct {
	state   docState
	levels  [maxLevels]level // the open objects and arrays that are followed
	depth   int
	skipped int  // open brackets within a value that is not followed
	inKey   bool // in an object, before the colon
	want    want // what the value at hand means
	escaped bool // in a string, the next byte is escaped
	some    bool // in a string, there was content
	marker  int  // how much of the end marker was seen
	number  number
	text    [maxText]byte // a key, or a string that is compared
	length  int           // of text; more than maxText where it did not fit
	root    node          // what a document is
	facts   facts
	ids     promptIDs
}

// facts is what documents said.
type facts struct {
	counts    counts
	first     bool
	done      bool
	failed    bool
	documents int
	malformed int
	oversized int
}

type docState uint8

const (
	docBetween    docState = iota // before a document
	docMarker                     // in what may be the end marker
	docStructure                  // between tokens
	docString                     // in a key or a string
	docNumber                     // in a number
	docLiteral                    // in true, false, null
	docSkip                       // in a value that is not followed
	docSkipString                 // in a string within it
	docBroken                     // not JSON, up to the next event
	docIDs                        // in a list of token ids
)

const (
	maxLevels = 6
	maxText   = 32
	endMarker = "[DONE]"
)

// level is an open object or array.
type level struct {
	node   node
	object bool
}

// push reads the next piece.
func (d *document) push(p []byte) {
	for len(p) > 0 {
		switch d.state {
		case docBetween:
			p = d.start(p)
		case docMarker:
			p = d.readMarker(p)
		case docStructure:
			p = d.structure(p)
		case docString:
			p = d.readString(p)
		case docNumber:
			p = d.readNumber(p)
		case docLiteral:
			p = d.readLiteral(p)
		case docSkip:
			p = d.skip(p)
		case docSkipString:
			n, closed := d.stringTail(p)
			if closed {
				d.state = docSkip
			}
			p = p[n:]
		case docBroken:
			return
		case docIDs:
			p = d.readIDs(p)
		}
	}
}

// end closes the event whose data was pushed: what follows is another document.
func (d *document) end() {
	if d.state != docBetween {
		d.breakOff()
	}
	d.state, d.escaped = docBetween, false
}

// breakOff gives the document up.
func (d *document) breakOff() {
	if d.state != docBroken {
		d.facts.malformed++
	}
	d.state = docBroken
	d.ids.forget()
	d.facts.counts[countIndex] = 0
}

// leave gives the document up because it is larger than what is read of one.
func (d *document) leave() {
	if d.state == docBroken {
		return
	}
	d.breakOff()
	d.facts.malformed--
	d.facts.oversized++
}

func (d *document) start(p []byte) []byte {
	p = bytes.TrimLeft(p, " \t\r\n")
	if len(p) == 0 {
		return nil
	}
	d.depth, d.skipped, d.want = 0, 0, want{node: d.root}
	switch p[0] {
	case '{':
		d.open('{')
	case '[':
		d.state, d.marker = docMarker, 1
	default:
		d.breakOff()
	}
	return p[1:]
}

// readMarker compares with the end marker; what turns out to be another array is skipped.
func (d *document) readMarker(p []byte) []byte {
	if p[0] != endMarker[d.marker] {
		d.state, d.skipped = docSkip, 1
		return p
	}
	if d.marker++; d.marker == len(endMarker) {
		d.facts.done = true
		d.state = docBetween
	}
	return p[1:]
}

// structure reads brackets, commas and colons up to the first byte of a scalar.
func (d *document) structure(p []byte) []byte {
	for i, b := range p {
		switch b {
		case ' ', '\n', '\r', '\t':
			continue
		case ',':
			d.inKey, d.want = d.levels[d.depth-1].object, want{}
			continue
		case ':':
			d.inKey = false
			continue
		case '{', '[':
			d.open(b)
		case '}', ']':
			d.close(b)
		case '"':
			d.element()
			d.state, d.some, d.escaped, d.length = docString, false, false, 0
		case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
			d.element()
			d.state, d.number = docNumber, number{}
			return p[i:]
		case 't', 'f', 'n':
			d.element()
			d.state = docLiteral
		default:
			d.breakOff()
		}
		if d.state != docStructure {
			return p[i+1:]
		}
	}
	return nil
}

// element notes that the container at hand is not empty.
func (d *document) element() {
	if d.depth > 0 && d.levels[d.depth-1].node == nodeFilled {
		d.facts.first = true
	}
}

func (d *document) open(b byte) {
	d.element()
	if d.want.failure {
		d.facts.failed = true
	}
	child := d.want.node
	if d.depth > 0 && !d.levels[d.depth-1].object {
		child = d.levels[d.depth-1].node.element()
	}
	if child == nodeIDs {
		if b == '[' && d.openIDs() {
			return
		}
		child = nodeSkip
	}
	if child == nodeSkip || d.depth == maxLevels {
		d.state, d.skipped = docSkip, 1
		return
	}
	d.levels[d.depth] = level{node: child, object: b == '{'}
	d.depth++
	d.state, d.inKey, d.want = docStructure, b == '{', want{}
}

func (d *document) close(b byte) {
	if d.levels[d.depth-1].object != (b == '}') {
		d.breakOff()
		return
	}
	d.depth--
	if d.levels[d.depth].node == nodeAskedChoice {
		d.closeChoice()
	}
	d.closed()
}

// closed goes on behind a value that ended with a bracket.
func (d *document) closed() {
	d.inKey, d.want, d.state = false, want{}, docStructure
	if d.depth == 0 {
		d.facts.documents++
		d.state = docBetween
	}
}

func (d *document) readLiteral(p []byte) []byte {
	for i, b := range p {
		if b < 'a' || b > 'z' {
			d.state = docStructure
			return p[i:]
		}
	}
	return nil
}
