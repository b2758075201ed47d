package page

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"
)

// reader is a browser that follows the page.
type reader struct {
	events *bufio.Scanner
	lists  map[string]map[string]string // HTML by list and key
	orders map[string][]string
	id     string
	beats  int
	bytes  int
	end    func()
	ended  chan struct{}
	code   chan int
}

// follow opens an event stream on the stage's page.
func (s *stage) follow(t *testing.T, query string, headers ...string) *reader {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	from, to := io.Pipe()
	f := &reader{events: bufio.NewScanner(from), lists: map[string]map[string]string{}, orders: map[string][]string{}, ended: make(chan struct{}), code: make(chan int, 1)}
	f.events.Buffer(nil, 1<<22)
	f.events.Split(splitEvents)
	r := httptest.NewRequestWithContext(ctx, http.MethodGet, "http://localhost/ui/events"+query, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	go func() {
		defer close(f.ended)
		defer to.Close()
		s.page.ServeHTTP(&stream{header: http.Header{}, to: to, code: f.code}, r)
	}()
	f.end = sync.OnceFunc(func() { cancel(); _ = from.Close(); <-f.ended })
	t.Cleanup(f.end)
	return f
}

// splitEvents splits a stream at empty lines.
func splitEvents(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := strings.Index(string(data), "\n\n"); i >= 0 {
		return i + 2, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return 0, nil, nil
}

// stream is a response that is read while it is written.
type stream struct {
	header http.Header
	to     io.Writer
	code   chan int
	begun  bool
	broken error
}

func (s *stream) Header() http.Header { return s.header }
func (s *stream) WriteHeader(code int) {
	s.begun = true
	s.code <- code
}
func (s *stream) Flush() {}
func (s *stream) Write(b []byte) (int, error) {
	if !s.begun {
		s.WriteHeader(http.StatusOK)
	}
	if s.broken != nil {
		return 0, s.broken
	}
	return s.to.Write(b)
}

// next reads until an update comes, applies it as the script does and returns it; nil at the end.
func (f *reader) next(t *testing.T) map[string]change {
	t.Helper()
	for f.events.Scan() {
		id, data := "", ""
		f.bytes = len(f.events.Bytes())
		for line := range strings.SplitSeq(f.events.Text(), "\n") {
			switch name, value, _ := strings.Cut(line, ": "); name {
			case "id":
				id = value
			case "data":
				data = value
			case "retry":
			case "":
				f.beats++
			default:
				t.Fatalf("a line %q", line)
			}
		}
		if data == "" {
			continue
		}
		var all map[string]change
		if err := json.Unmarshal([]byte(data), &all); err != nil {
			t.Fatalf("%v in %.300s", err, data)
		}
		f.id = id
		f.apply(t, all)
		return all
	}
	return nil
}

func (f *reader) apply(t *testing.T, all map[string]change) {
	t.Helper()
	for name, c := range all {
		if f.lists[name] == nil {
			f.lists[name] = map[string]string{}
		}
		for key, html := range c.HTML {
			f.lists[name][key] = html
		}
		if c.Order != nil {
			f.orders[name] = c.Order
		}
		for _, key := range f.orders[name] {
			if f.lists[name][key] == "" {
				t.Fatalf("%s: there is nothing for %q", name, key)
			}
		}
	}
}

// html is a list as the reader has it.
func (f *reader) html(name string) string {
	var b strings.Builder
	for _, key := range f.orders[name] {
		b.WriteString(f.lists[name][key])
	}
	return b.String()
}

// A reader that has nothing gets all, then what changes, once a second at most.
func TestEvents(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 3)
		s.decide(t, "m", "one", false)
		f := s.follow(t, "")
		if all := f.next(t); len(all) < 6 || <-f.code != http.StatusOK {
			t.Fatalf("at first %d lists", len(all))
		}
		began := time.Now()
		s.decide(t, "m", "two", true)
		all := f.next(t)
		if took := time.Since(began); took != period {
			t.Errorf("after %v", took)
		}
		if diff := cmp.Diff([]string{"d2", "d1"}, all[listDecisions].Order); diff != "" || len(all[listDecisions].HTML) != 1 {
			t.Error(diff)
		}
		if _, ok := all[listEndpoints]; ok {
			t.Error("endpoints that did not change are sent")
		}
		s.change(func() { s.known[1].InFlight.Tokens = 77 })
		if all = f.next(t); len(all[listEndpoints].HTML) != 1 || all[listEndpoints].Order != nil || !strings.Contains(all[listEndpoints].HTML["e1"], "77 tokens") {
			t.Errorf("%v", all)
		}
		for _, l := range s.page.live.now().lists {
			if got := f.html(l.name); got != s.page.live.now().html(l.name) {
				t.Errorf("%s: the reader has %s", l.name, got)
			}
		}
	})
}

// While nothing changes there is a sign of life now and then.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 1)
		f := s.follow(t, "")
		f.next(t)
		go func() {
			time.Sleep(4*heartbeat + time.Second)
			s.change(func() { s.process.OpenStreams = 99 })
		}()
		f.next(t)
		if f.beats != 4 {
			t.Errorf("%d heartbeats", f.beats)
		}
	})
}

// A reader that says what it has gets what changed since; one whose state is not known any more gets all.
func TestComingBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 2)
		f := s.follow(t, "")
		f.next(t)
		f.end()
		s.decide(t, "m", "one", true)
		time.Sleep(period)
		for name, tc := range map[string]struct {
			query   string
			headers []string
			part    bool
		}{
			"header":   {"", []string{"Last-Event-ID", f.id}, true},
			"query":    {"?since=" + f.id, nil, true},
			"search":   {"?q=10.0.0.2&since=" + f.id, nil, true},
			"stranger": {"?since=00000000-1", nil, false},
			"nonsense": {"?since=x", nil, false},
		} {
			g := s.follow(t, tc.query, tc.headers...)
			all := g.next(t)
			if _, whole := all[listStatus]; whole == tc.part && all[listStatus].Order != nil {
				t.Errorf("%s: %d lists", name, len(all))
			}
			if (all[listEndpoints].HTML == nil) != tc.part {
				t.Errorf("%s: the endpoints are %v", name, all[listEndpoints])
			}
			g.end()
		}
		for range keptStates + 1 {
			s.decide(t, "m", "more", true)
			time.Sleep(period)
			s.page.live.now()
		}
		if n := len(s.page.live.states); n != keptStates {
			t.Errorf("%d states are kept", n)
		}
		if g := s.follow(t, "?since="+f.id); g.next(t)[listEndpoints].HTML == nil {
			t.Error("a reader that was away for long has no endpoints")
		}
	})
}

// The number of readers is bounded; all that there are share one state a second.
func TestReadersAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 3)
		var all []*reader
		for range MaxReaders {
			f := s.follow(t, "")
			f.next(t)
			all = append(all, f)
		}
		over := s.follow(t, "")
		if code := <-over.code; code != http.StatusServiceUnavailable {
			t.Errorf("one too many: %d", code)
		}
		over.end()
		metric := func(name string, want float64) {
			t.Helper()
			families, err := s.registry.Gather()
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range families {
				if f.GetName() == name {
					if got := f.GetMetric()[0].GetGauge().GetValue() + f.GetMetric()[0].GetCounter().GetValue(); got != want {
						t.Errorf("%s is %v, want %v", name, got, want)
					}
					return
				}
			}
			t.Errorf("there is no %s", name)
		}
		metric("sluice_page_readers", MaxReaders)
		metric("sluice_page_readers_refused_total", 1)
		before := s.rendered()
		const seconds = 20
		for i := range seconds {
			s.change(func() { s.process.OpenStreams = int64(100 + i) })
			var group sync.WaitGroup
			for _, f := range all {
				group.Go(func() { f.next(t) })
			}
			for range 50 {
				s.get(t, "/ui/")
			}
			group.Wait()
		}
		if n := s.rendered() - before; n > seconds+1 {
			t.Errorf("%d states in %d seconds", n, seconds)
		}
		for _, f := range all {
			f.end()
		}
		metric("sluice_page_readers", 0)
		before = s.rendered()
		time.Sleep(time.Minute)
		if n := s.rendered() - before; n != 0 {
			t.Errorf("%d states that nobody saw", n)
		}
	})
}

func (s *stage) rendered() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.renders
}

// The streams end when the page is closed, and no new one stays open.
func TestStreamsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 1)
		f := s.follow(t, "")
		f.next(t)
		s.page.Close()
		began := time.Now()
		f.next(t)
		<-f.ended
		g := s.follow(t, "")
		for g.next(t) != nil {
			continue
		}
		<-g.ended
		if took := time.Since(began); took > period/2 {
			t.Errorf("it took %v", took)
		}
	})
}

// A reader that takes nothing is cut off, and holds nobody up meanwhile.
func TestSlowReader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newStage(t, 1)
		w := &stalled{stream: stream{header: http.Header{}, to: io.Discard, code: make(chan int, 1)}}
		done := make(chan struct{})
		go func() {
			defer close(done)
			s.page.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "http://localhost/ui/events", nil))
		}()
		synctest.Wait()
		began := time.Now()
		f := s.follow(t, "")
		f.next(t)
		s.decide(t, "m", "one", true)
		f.next(t)
		if took := time.Since(began); took > period {
			t.Errorf("another reader waited %v", took)
		}
		<-done
		if took := time.Since(began); took != writeTimeout {
			t.Errorf("it was cut off after %v", took)
		}
	})
}

// stalled is a reader that takes nothing until its deadline.
type stalled struct {
	stream
	deadline time.Time
}

func (s *stalled) SetWriteDeadline(at time.Time) error {
	s.deadline = at
	return nil
}

func (s *stalled) Write([]byte) (int, error) {
	if s.deadline.IsZero() {
		return 0, errors.New("no deadline")
	}
	time.Sleep(time.Until(s.deadline))
	return 0, os.ErrDeadlineExceeded
}

// TestSteps: whatever becomes of a list, a reader that applies every step has what the server has.
func TestSteps(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		lists := func(label string) *state {
			keys := rapid.SliceOfNDistinct(rapid.IntRange(0, 9), 0, 8, rapid.ID).Draw(r, label)
			l := list{name: "l"}
			for _, k := range keys {
				l.items = append(l.items, fragment{fmt.Sprint(k), fmt.Sprint("<p>", k, rapid.IntRange(0, 2).Draw(r, "version"))})
			}
			return &state{lists: []list{l}, steps: map[uint64][]byte{}}
		}
		f := &reader{lists: map[string]map[string]string{}, orders: map[string][]string{}}
		var before *state
		for i := range 6 {
			after := lists(fmt.Sprint("state ", i))
			after.seq = uint64(i + 1)
			step, err := after.step(before)
			if err != nil {
				r.Fatal(err)
			}
			if step != nil {
				var all map[string]change
				if err := json.Unmarshal(step, &all); err != nil {
					r.Fatal(err)
				}
				f.apply(t, all)
				for key := range f.lists["l"] { // the script drops what is in no order
					if !strings.Contains(" "+strings.Join(f.orders["l"], " ")+" ", " "+key+" ") {
						delete(f.lists["l"], key)
					}
				}
			}
			if f.html("l") != after.html("l") {
				r.Fatalf("the reader has %s, the server %s", f.html("l"), after.html("l"))
			}
			before = after
		}
	})
}
