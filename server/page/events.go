package page

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"
)

// maxSearch is the length of the longest search, in bytes.
const maxSearch = 128

// searchOf are the words by which a request searches the endpoints.
func searchOf(r *http.Request) string {
	q := strings.ToLower(r.URL.Query().Get("q"))
	q = strings.ToValidUTF8(q[:min(len(q), maxSearch)], "")
	return strings.TrimSpace(strings.Map(func(c rune) rune {
		if hidden(c) {
			return -1
		}
		return c
	}, q))
}

// serveEvents sends what changes, until the reader goes or the page is closed. A reader that comes back, or has just been
// served the page, says which state it has and gets what has changed since; where that is not known any more, it gets all.
func (p *Page) serveEvents(w http.ResponseWriter, r *http.Request) {
	if fromElsewhere(r) {
		http.Error(w, "another site may not read this", http.StatusForbidden)
		return
	}
	if p.readers.Add(1) > MaxReaders {
		p.readers.Add(-1)
		p.refused.Add(1)
		w.Header().Set("Retry-After", "5")
		http.Error(w, fmt.Sprintf("%d browsers follow the page already", MaxReaders), http.StatusServiceUnavailable)
		return
	}
	defer p.readers.Add(-1)
	since := r.Header.Get("Last-Event-ID")
	if since == "" {
		since = r.URL.Query().Get("since")
	}
	f := follower{page: p, words: searchOf(r), out: w, control: http.NewResponseController(w)}
	if s := p.live.find(since); s != nil {
		f.last, f.err = s.search(f.words)
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	w.Header().Set("X-Accel-Buffering", "no") // a proxy's hint
	f.write([]byte("retry: 2000\n\n"))
	f.follow(r)
}

// follower is one reader of the events.
type follower struct {
	page    *Page
	words   string
	out     io.Writer
	control *http.ResponseController
	last    *state // that it has; nil for none
	wrote   time.Time
	err     error
}

func (f *follower) follow(r *http.Request) {
	next := time.NewTimer(0)
	defer next.Stop()
	for f.err == nil {
		select {
		case <-next.C:
		case <-r.Context().Done():
			return
		case <-f.page.over.Done():
			return
		}
		s := f.page.live.now()
		f.send(s)
		next.Reset(time.Until(s.at.Add(period))) // so that all readers come at the same time
	}
}

// send sends what makes a state of the last one.
func (f *follower) send(base *state) {
	s, err := base.search(f.words)
	if err != nil {
		f.err = err
		return
	}
	step, err := s.step(f.last)
	switch {
	case err != nil:
		f.err = err
	case step != nil:
		var b bytes.Buffer
		b.Grow(len(step) + 64)
		fmt.Fprintf(&b, "id: %s\ndata: ", f.page.live.id(s))
		b.Write(step)
		b.WriteString("\n\n")
		f.write(b.Bytes())
	case time.Since(f.wrote) >= heartbeat:
		f.write([]byte(": still here\n\n"))
	}
	f.last = s
}

// write sends bytes. A reader that takes none is cut off.
func (f *follower) write(b []byte) {
	if f.err != nil {
		return
	}
	f.wrote = time.Now()
	_ = f.control.SetWriteDeadline(f.wrote.Add(writeTimeout)) // a writer without deadlines is a test's
	if _, f.err = f.out.Write(b); f.err == nil {
		f.err = f.control.Flush()
	}
}
