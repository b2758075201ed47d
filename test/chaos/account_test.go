//go:build linux

package chaos

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/sluice-epp/sluice/test/lab"
)

// slack is what clocks of different processes and the ways between them may differ by.
const slack = 100 * time.Millisecond

// account is what clients have sent and what came of it.
type account struct {
	mu      sync.Mutex
	sent    map[string]sent
	open    int
	broken  int // by the client
	answers map[int]int
}

// sent is a request that has ended. Of the body only the hash is kept.
type sent struct {
	draft
	outcome
	sum string
}

func newAccount() *account { return &account{sent: map[string]sent{}, answers: map[int]int{}} }

// opens notes that a request begins.
func (a *account) opens(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open += n
}

func (a *account) add(d draft, o outcome) {
	sum := lab.SHA256(d.body)
	d.body = nil
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent[d.id] = sent{d, o, sum}
	a.answers[o.status]++
	if d.ending != wholly {
		a.broken++
	}
}

func (a *account) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return fmt.Sprintf("%d requests, %d broken off, %d open, statuses %v", len(a.sent), a.broken, a.open, a.answers)
}

// hop is a line of Envoy's access log: how a request ended.
type hop struct {
	ID      string `json:"request_id"`
	Status  int    `json:"status"`
	Flags   string `json:"flags"`
	Details string `json:"details"`
	Tries   int    `json:"attempts"`
	Picked  string `json:"picked"`
	Served  string `json:"served"`
}

// evidence is what engines and Envoy noted.
type evidence struct {
	engines []map[string][]entry // by engine and request; a beginning and an end for each attempt
	hops    map[string]hop
}

// gather reads all that was noted.
func (s *stage) gather() (evidence, error) {
	ev := evidence{hops: map[string]hop{}}
	for _, e := range s.engines {
		of := map[string][]entry{}
		err := eachLine(e.args.Record, func(n entry) { of[n.ID] = append(of[n.ID], n) })
		if err != nil {
			return ev, err
		}
		ev.engines = append(ev.engines, of)
	}
	return ev, eachLine(s.accessLog(), func(h hop) { ev.hops[h.ID] = h })
}

func eachLine[T any](path string, take func(T)) error {
	b, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var v T
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			return fmt.Errorf("%s: %w in %q", path, err, lines.Bytes())
		}
		take(v)
	}
	return lines.Err()
}

// verdict is what an account comes to.
type verdict struct {
	excused    int // failures that the death of an engine explains
	unknown    int // answers whose engine was killed before it had noted them
	bodies     int // bodies of requests that were compared
	answers    int // bodies of answers that were compared
	violations []string
	causes     map[string]int // of what was excused: status, Envoy's flags, and its details up to the first parenthesis
}

// judge holds what clients saw against what engines and Envoy noted.
func (a *account) judge(s *stage, ev evidence) (v verdict) {
	v.causes = map[string]int{}
	for i, of := range ev.engines {
		for id, entries := range of {
			for _, n := range entries {
				if !n.Ended || !n.Whole {
					continue
				}
				v.bodies++
				if meant, ok := a.sent[id]; !ok || meant.sum != n.Body {
					v.wrong("engine-%d got another body than %s meant to send (%s): %+v", i, id, meant.ending, n)
				}
			}
		}
	}
	for id, r := range a.sent {
		h := ev.hops[id]
		switch {
		case r.ending == wholly && (r.err != nil || r.status != r.want), r.status >= http.StatusInternalServerError:
			if s.excuses(r, h, ev) {
				v.excused++
				details, _, _ := strings.Cut(h.Details, "{")
				v.causes[fmt.Sprintf("%d %s %s", r.status, h.Flags, details)]++
			} else {
				v.wrong("%s (%s %s, HTTP/2 %t) from %s on for %s: status %d, want %d, error %v, decision %q, reason %q; Envoy: %+v; engines: %s",
					id, r.ending, r.path, r.http2, r.begun.Format("15:04:05.000"), r.ended.Sub(r.begun).Round(time.Millisecond), r.status, r.want,
					r.err, r.decision, r.reason, h, ev.of(id))
			}
		case r.answer != "" && r.status == http.StatusOK:
			s.compare(&v, r, ev)
		}
	}
	return v
}

func (v *verdict) wrong(format string, args ...any) {
	v.violations = append(v.violations, fmt.Sprintf(format, args...))
}

// compare looks for an engine that wrote the answer which the client read.
func (s *stage) compare(v *verdict, r sent, ev evidence) {
	ended := false
	for _, of := range ev.engines {
		for _, n := range of[r.id] {
			ended = ended || n.Ended
			if n.Ended && n.Answer == r.answer {
				v.answers++
				return
			}
		}
	}
	if !ended && s.diedWith(r, ev) {
		v.unknown++
		return
	}
	v.wrong("%s (%s) read an answer that no engine wrote: %s; engines: %s", r.id, r.ending, r.answer, ev.of(r.id))
}

// excuses reports whether the death of an engine, or its end of a connection, explains that a request failed.
func (s *stage) excuses(r sent, h hop, ev evidence) bool {
	for _, e := range s.engines {
		if e.address == h.Served && e.cutWithin(r.begun.Add(-slack), r.ended.Add(slack)) {
			return true
		}
	}
	return s.diedWith(r, ev)
}

// diedWith reports whether an engine that had begun on a request died before its end.
func (s *stage) diedWith(r sent, ev evidence) bool {
	for i, e := range s.engines {
		begun, ended := 0, 0
		for _, n := range ev.engines[i][r.id] {
			if n.Ended {
				ended++
			} else {
				begun++
			}
		}
		if begun > ended && e.cutWithin(r.begun.Add(-slack), r.ended.Add(slack)) {
			return true
		}
	}
	return false
}

// of is what engines noted of a request.
func (ev evidence) of(id string) string {
	var all []string
	for i, of := range ev.engines {
		for _, n := range of[id] {
			all = append(all, fmt.Sprintf("engine-%d %+v", i, n))
		}
	}
	return strings.Join(all, "; ")
}
