package openai

import "bytes"

// lines cuts a stream of server-sent events into lines, by the rules of the WHATWG HTML standard, section 9.2: a line
// ends with \n, \r\n or \r, a blank line ends an event, the data of an event's lines is joined by \n. Only data fields
// are read; they are handed on as they come.
type lines struct {
	state   lineState
	matched int  // how much of "data" the line has
	filled  bool // the line has a byte
	cr      bool // the line before ended with \r: a \n now belongs to it
	begun   bool // the stream is past its byte order mark
	mark    int  // how much of the mark was seen
	limit   int  // bytes of one event's data that are read; 0 for no limit
	data    int  // bytes of this event's data
}

type lineState uint8

const (
	lineName  lineState = iota // in the field's name
	lineSpace                  // behind the colon
	lineData                   // in the value of a data field
	lineSkip                   // in anything else
)

const (
	dataField     = "data"
	byteOrderMark = "\ufeff"
)

var lineFeed = []byte{'\n'}

func (l *lines) push(p []byte, d *document) {
	p = l.begin(p)
	feed := -1 // the next \n in p, so that each byte is searched once; len(p) where there is none
	for pos := 0; pos < len(p); {
		if l.cr {
			l.cr = false
			if p[pos] == '\n' {
				pos++
				continue
			}
		}
		if feed < pos {
			if feed = bytes.IndexByte(p[pos:], '\n'); feed < 0 {
				feed = len(p)
			} else {
				feed += pos
			}
		}
		end := feed
		if cr := bytes.IndexByte(p[pos:feed], '\r'); cr >= 0 {
			end = pos + cr
		}
		l.line(p[pos:end], d)
		if end == len(p) {
			return
		}
		l.cr = p[end] == '\r'
		l.endLine(d)
		pos = end + 1
	}
}

// begin drops the stream's byte order mark, which may come in pieces.
func (l *lines) begin(p []byte) []byte {
	for len(p) > 0 && !l.begun {
		if l.mark == len(byteOrderMark) || p[0] != byteOrderMark[l.mark] {
			l.begun = true
			if l.mark%len(byteOrderMark) > 0 { // a piece of a mark is a piece of a field's name
				l.filled, l.state = true, lineSkip
			}
			break
		}
		l.mark++
		p = p[1:]
	}
	return p
}

// line reads a piece of a line.
func (l *lines) line(p []byte, d *document) {
	if len(p) == 0 {
		return
	}
	l.filled = true
	for l.state == lineName && len(p) > 0 {
		switch {
		case l.matched < len(dataField) && p[0] == dataField[l.matched]:
			l.matched++
		case l.matched == len(dataField) && p[0] == ':':
			l.state = lineSpace
		default:
			l.state = lineSkip
		}
		p = p[1:]
	}
	if l.state == lineSpace && len(p) > 0 {
		if p[0] == ' ' {
			p = p[1:]
		}
		l.state = lineData
		d.push(lineFeed) // between two data lines; before the first it is white space
	}
	if l.state != lineData {
		return
	}
	if l.data += len(p); l.limit > 0 && l.data > l.limit {
		d.leave()
		return
	}
	d.push(p)
}

func (l *lines) endLine(d *document) {
	if !l.filled {
		d.end()
		l.data = 0
	}
	l.state, l.matched, l.filled = lineName, 0, false
}
