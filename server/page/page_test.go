package page

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"golang.org/x/net/html"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// parse reads a page and checks what holds for all of them.
func parse(t *testing.T, w *httptest.ResponseRecorder) *html.Node {
	t.Helper()
	if kind := w.Header().Get("Content-Type"); kind != "text/html; charset=utf-8" {
		t.Fatalf("%d %s: %s", w.Code, kind, w.Body)
	}
	root, err := html.Parse(strings.NewReader(w.Body.String()))
	if err != nil {
		t.Fatal(err)
	}
	if strings.ContainsFunc(w.Body.String(), func(r rune) bool { return hidden(r) && r != '\n' }) {
		t.Error("characters that do not show are on the page")
	}
	ids := map[string]bool{}
	for n := range root.Descendants() {
		checkElement(t, n)
		if id := attribute(n, "id"); id != "" {
			if ids[id] {
				t.Errorf("two elements have the id %q", id)
			}
			ids[id] = true
		}
	}
	return root
}

// checkElement checks that an element brings nothing that the policy forbids, and leads nowhere else.
func checkElement(t *testing.T, n *html.Node) {
	t.Helper()
	if n.Type != html.ElementNode {
		return
	}
	for _, a := range n.Attr {
		if a.Key == "style" || strings.HasPrefix(a.Key, "on") {
			t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
		}
		switch a.Key {
		case "href", "src", "action":
			if u, err := url.Parse(a.Val); err != nil || u.Host != "" || u.Scheme != "" {
				t.Errorf("<%s %s=%q> leads elsewhere", n.Data, a.Key, a.Val)
			}
		}
	}
	switch n.Data {
	case "script":
		if n.FirstChild != nil || !strings.HasPrefix(attribute(n, "src"), "/ui/page.js?v=") {
			t.Errorf("a script of its own: %v", n.Attr)
		}
	case "style", "iframe", "object", "embed", "base":
		t.Errorf("there is a <%s>", n.Data)
	}
}

func attribute(n *html.Node, key string) string {
	for _, a := range n.Attr {
		if a.Key == key {
			return a.Val
		}
	}
	return ""
}

// find is the element with an id.
func find(t *testing.T, root *html.Node, id string) *html.Node {
	t.Helper()
	for n := range root.Descendants() {
		if n.Type == html.ElementNode && attribute(n, "id") == id {
			return n
		}
	}
	t.Fatalf("there is no #%s", id)
	return nil
}

// children are the child elements.
func children(n *html.Node) []*html.Node {
	var all []*html.Node
	for c := range n.ChildNodes() {
		if c.Type == html.ElementNode {
			all = append(all, c)
		}
	}
	return all
}

var spaces = regexp.MustCompile(`\s+`)

// content is the text of a node.
func content(n *html.Node) string {
	var b strings.Builder
	for c := range n.Descendants() {
		if c.Type == html.TextNode {
			b.WriteString(c.Data)
			b.WriteByte(' ')
		}
	}
	return strings.TrimSpace(spaces.ReplaceAllString(b.String(), " "))
}

func contains(t *testing.T, n *html.Node, want ...string) {
	t.Helper()
	for _, w := range want {
		if got := content(n); !strings.Contains(got, w) {
			t.Errorf("%q is not in %.1500q", w, got)
		}
	}
}

func TestOverview(t *testing.T) {
	s := newStage(t, 3)
	first := s.decide(t, "llama", "request-1", true)
	s.decide(t, "llama", "request-2", false)
	root := parse(t, s.get(t, "/ui/"))

	contains(t, find(t, root, "status"), "ready", "v1.2.3", "abc", "1 h 0 min", "Open streams 7", "Requests/s 0.2")
	endpoints := children(find(t, root, "endpoints"))
	if len(endpoints) != 3 {
		t.Fatalf("%d endpoints", len(endpoints))
	}
	contains(t, endpoints[2], "10.0.0.3:8000", "2,000 tokens", "2 requests, 1 decoding", "4 running", "2 waiting", "42 %", "102 blocks", "estimated",
		"prediction: not yet known", "prefill not yet known", "break-even not yet known")
	contains(t, find(t, root, "endpoints-note"), "3 ready.", "2,000 tokens in flight and 2,000 cached tokens")
	rows := children(find(t, root, "decisions"))
	if len(rows) != 2 || attribute(rows[1], "data-key") != fmt.Sprint("d", first) {
		t.Fatalf("%d decisions", len(rows))
	}
	contains(t, rows[1], "10.0.0.1:8000", "held", "90 % held", "llama", "request-1", "first token 20 ms, 1.0 s in all, 1,440 of 1,600 tokens cached",
		"10.0.0.1:8000 holds 90 of 100 blocks of the prompt (90 %)")
	contains(t, rows[0], "request-2", "in flight")
	plots := find(t, root, "gates")
	contains(t, plots, "held 2", "Gap in tokens", "The bar is 1,440 tokens", "Break-even: not yet known")
	contains(t, find(t, root, "indices"), "approx", "1,234", "2,345 over all endpoints", "3 MiB", "17", "not yet known")
	if n := len(children(find(t, root, "grid"))); n != 0 {
		t.Errorf("%d cells beside the rows", n)
	}
}

func TestOverviewOfNothing(t *testing.T) {
	s := newStage(t, 0)
	s.change(func() { s.known, s.indices, s.process.State = nil, nil, "starting" })
	root := parse(t, s.get(t, "/ui/"))
	contains(t, root, "No endpoint is known.", "No decision has been made yet.", "No gate has run yet.", "No gate has compared two endpoints yet.", "starting")
}

// What has been learnt, audited and heard is shown where it is known.
func TestOverviewOfAllThatIsKnown(t *testing.T) {
	s := newStage(t, 2)
	s.change(func() {
		e := s.known[0]
		e.Name, e.Asleep, e.MetricsStale = "engine-a", true, true
		e.Caches = []*schedulerv1.CacheKnowledge{
			{Producer: "precise", Blocks: 1, BlockSizeTokens: 16, Events: "live", Audited: 200, FalseHitRate: ref(0.015), MissRate: ref(0.25)},
			{Producer: "other", Blocks: 2, Events: "silent", Unconfirmed: 12},
		}
		e.Rates = &schedulerv1.LearntRates{PrefillTokensPerSecond: ref(15928.0), WaitMsPerToken: ref(0.063), BreakEven: ref(1.25)}
		s.known[1].State, s.known[1].InFlight, s.known[1].EngineMetrics, s.known[1].Caches = decisionv1.EndpointState_ENDPOINT_STATE_DRAINING, nil, nil, nil
		s.indices[0].Sources = map[string]uint32{"live": 3, "degraded": 1}
		s.indices[0].Audited, s.indices[0].MissRate, s.indices[0].Bytes = 1, ref(0.5), 0
	})
	root := parse(t, s.get(t, "/ui/"))
	rows := children(find(t, root, "endpoints"))
	contains(t, rows[0], "engine-a", "10.0.0.1:8000", "asleep", "too old to count", "precise", "events live", "1 % false hits, 25 % misses of 200 answers", "events silent",
		"no engine has told what was cached, in 12 answers",
		"prefill 15,928 tokens/s", "wait 0.063 ms/token", "break-even 1.25")
	contains(t, rows[1], "draining", "no index", "not yet known")
	contains(t, find(t, root, "endpoints-note"), "1 ready, 1 draining, 1 asleep")
	contains(t, find(t, root, "gates"), "Known of 1 of 2 endpoints: from 1.25 to 1.25")
	contains(t, find(t, root, "indices"), "events degraded 1", "events live 3", "50 % misses of 1 answer", "not counted")
}

// What comes from outside shows as what it is: it makes no element, and nothing of it turns or hides the text around it.
func TestHostileText(t *testing.T) {
	hostile := []string{
		`<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`, `' onmouseover='alert(1)`, `</li></ol><h1>gone</h1>`, `{{.}}`, `javascript:alert(1)`,
		"evil\u202etxt.exe", "\u2066\u2067a\u200b\ufeff", "nul\x00bell\x07esc\x1b[31m", "line\u2028break\r\nid: 9\n\ndata: x", strings.Repeat("long ", 300), "עברית",
	}
	for _, text := range hostile {
		s := newStage(t, 2)
		s.version = text
		s.change(func() {
			s.known[0].Name, s.known[0].Address = text, text
			s.known[0].Caches[0].Producer, s.known[0].Caches[0].Events = text, text
			s.indices[0].Producer, s.indices[0].Type = text, text+"x"
			s.indices[0].Sources = map[string]uint32{text: 1}
		})
		id := s.decide(t, text, text, true)
		s.decide(t, text, text, true)
		for _, path := range []string{
			"/ui/", "/ui/?q=" + url.QueryEscape(text), fmt.Sprint("/ui/decisions/", id), "/ui/lookup?id=" + url.QueryEscape(text), "/ui/lookup?id=" + url.QueryEscape("no"+text),
		} {
			w := s.get(t, path)
			root := parse(t, w)
			for n := range root.Descendants() {
				if n.Type == html.ElementNode && n.Data == "img" && !strings.HasPrefix(attribute(n, "src"), "/ui/icon.svg") {
					t.Errorf("%s: an image of %q", path, attribute(n, "src"))
				}
				if n.Type == html.ElementNode && n.Data == "h1" && content(n) == "gone" {
					t.Errorf("%s: the text made a heading", path)
				}
			}
			if strings.Contains(w.Body.String(), "data: x\n") || strings.Contains(w.Body.String(), "javascript:alert(1)\"") && !strings.Contains(w.Body.String(), "value=") {
				t.Errorf("%s: %q", path, text)
			}
		}
		state := s.page.live.now()
		step, err := state.step(nil)
		if err != nil || strings.ContainsFunc(string(step), func(r rune) bool { return r == '\r' || r == '\n' || unicode.In(r, unicode.Cf, unicode.Cc) }) {
			t.Errorf("%v: %q breaks the event", err, text)
		}
	}
}

func TestVisible(t *testing.T) {
	for text, want := range map[string]string{
		"plain":      "plain",
		"a\u202eb":   `a\u202eb`,
		"a\nb\x00":   `a\u000ab\u0000`,
		"\u200bדגם":  `\u200bדגם`,
		"a\ufffdb":   `a\ufffdb`,
		"naïve 日本 😀": "naïve 日本 😀",
	} {
		if got := visible(text); got != want {
			t.Errorf("%q: %q", text, got)
		}
	}
	if got := short(strings.Repeat("ä", 81)); got != strings.Repeat("ä", 80)+"…" {
		t.Error(got)
	}
}

// However many endpoints there are, few have rows: the busiest, or those that are searched for.
func TestManyEndpoints(t *testing.T) {
	s := newStage(t, 512)
	s.change(func() {
		s.known[400].InFlight.Tokens = 50_000
		s.known[7].State = decisionv1.EndpointState_ENDPOINT_STATE_NOT_READY
		s.known[33].Name = "Blue-One"
	})
	w := s.get(t, "/ui/")
	root := parse(t, w)
	cells := children(find(t, root, "grid"))
	rows := children(find(t, root, "endpoints"))
	if len(cells) != 512 || len(rows) != shownEndpoints || attribute(rows[0], "data-key") != "e400" {
		t.Fatalf("%d cells, %d rows, the first is %v", len(cells), len(rows), rows[0].Attr)
	}
	if attribute(cells[400], "class") != "cell l8" || attribute(cells[0], "class") != "cell l0" || attribute(cells[7], "class") != "cell l2 bad" {
		t.Errorf("%v, %v, %v", cells[400].Attr, cells[0].Attr, cells[7].Attr)
	}
	if n := w.Body.Len(); n > 200_000 {
		t.Errorf("the page has %d bytes", n)
	}
	for q, want := range map[string]int{"blue": 1, "10.0.1.": shownEndpoints, "10.0.0.34:8000": 1, "nobody": 0} {
		root := parse(t, s.get(t, "/ui/?q="+q))
		if n := len(children(find(t, root, "endpoints"))); n != want {
			t.Errorf("%s finds %d, want %d", q, n, want)
		}
	}
	contains(t, find(t, parse(t, s.get(t, "/ui/?q=10.0.1.")), "endpoints-note"), "250 of 512 match", "the busiest 24 are shown")
}

func TestDecision(t *testing.T) {
	s := newStage(t, 4)
	id := s.decide(t, "llama", "request-1", true)
	s.decide(t, "llama", "request-1", false)
	root := parse(t, s.get(t, fmt.Sprint("/ui/decisions/", id)))
	contains(t, root, "Decision 1", "10.0.0.1:8000 holds 90 of 100 blocks", "Request id request-1", "Model llama", "First token after 20 ms",
		"Of these cached 1,440", "gap 0 tokens", "bar 1,440 tokens", "best holder 10.0.0.1:8000", "What would have changed the pick", "would have been picked",
		"gate left 1 candidate; it left out 10.0.0.2:8000, 10.0.0.3:8000, 10.0.0.4:8000", "prefill-cost-scorer weight 1", "picked", "left out by gate", "90 of 100 blocks")
	for path, want := range map[string]int{
		"/ui/decisions/99": http.StatusNotFound, "/ui/decisions/x": http.StatusNotFound, "/ui/decisions/0": http.StatusNotFound,
		"/ui/lookup?id=nobody": http.StatusNotFound, "/ui/lookup?id=request-1": http.StatusOK,
	} {
		w := s.get(t, path)
		if parse(t, w); w.Code != want {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
	s.decide(t, "llama", "request-2 & \u202ex", false)
	notThere := s.get(t, "/ui/lookup?id=request")
	contains(t, parse(t, notThere), `no decision carries the x-request-id "request": 3 are kept, 1 to 3; at most`, "Near it: request-1 request-2 & \\u202ex")
	if body := notThere.Body.String(); !strings.Contains(body, `href="/ui/lookup?id=request-1"`) || !strings.Contains(body, `href="/ui/lookup?id=request-2%20%26%20%e2%80%aex"`) || strings.Contains(body, "near it") {
		t.Errorf("no links to what is near:\n%s", body)
	}
	one := s.decide(t, "llama", "alone", true)
	for path, want := range map[string]string{
		"/ui/lookup?id=alone": fmt.Sprint("/ui/decisions/", one), fmt.Sprint("/ui/lookup?id=", one): fmt.Sprint("/ui/decisions/", one), "/ui/lookup?id=+": "/ui/",
	} {
		if w := s.get(t, path); w.Code != http.StatusSeeOther || w.Header().Get("Location") != want {
			t.Errorf("%s: %d %s", path, w.Code, w.Header().Get("Location"))
		}
	}
}

// A decision about many endpoints is shown in part, unless all is asked for.
func TestDecisionAboutMany(t *testing.T) {
	s := newStage(t, 300)
	id := s.decide(t, "m", "r", false)
	w := s.get(t, fmt.Sprint("/ui/decisions/", id))
	root := parse(t, w)
	contains(t, root, "250 candidates are not shown", "In flight, as far as it is known.")
	if n := strings.Count(w.Body.String(), "<tr"); n != 1+shownCandidates {
		t.Errorf("%d rows", n)
	}
	w = s.get(t, fmt.Sprint("/ui/decisions/", id, "?all=1"))
	contains(t, parse(t, w), "it left out 10.0.0.2:8000, ", "291 more")
	if n := strings.Count(w.Body.String(), "<tr"); n != 301 {
		t.Errorf("%d rows of all", n)
	}
}

func TestTry(t *testing.T) {
	s := newStage(t, 3)
	contains(t, parse(t, s.get(t, "/ui/try")), "Try a request")
	const secret = "a prompt that nobody else may read"
	body := `{"model":"m","messages":[{"role":"user","content":"` + secret + `"}]}`
	form := func(path, body string) url.Values { return url.Values{"path": {path}, "body": {body}} }
	w := s.post(t, "/ui/try", form(trialPaths[0], body))
	contains(t, parse(t, w), "What would be decided", "No engine computed it", "10.0.0.1:8000 holds 90 of 100 blocks", "Model m")
	if strings.Contains(w.Body.String(), secret) {
		t.Error("the prompt is on the page")
	}
	if n, _, _ := s.ring.Size(); n != 0 {
		t.Error("what was tried is kept")
	}
	for _, tc := range []struct {
		form url.Values
		code int
		text string
	}{
		{form("/elsewhere", body), http.StatusBadRequest, "path: want one of"},
		{form(trialPaths[0], "{"+secret), http.StatusBadRequest, "would be refused"},
		{form(trialPaths[0], strings.Repeat("x", MaxTrialBytes+1)), http.StatusRequestEntityTooLarge, "longer than 1 MiB"},
		{form(trialPaths[0], strings.Repeat("\n", MaxTrialBytes+2000)), http.StatusRequestEntityTooLarge, "longer than 1 MiB"},
	} {
		w := s.post(t, "/ui/try", tc.form)
		contains(t, parse(t, w), tc.text)
		if w.Code != tc.code || strings.Contains(w.Body.String(), secret) {
			t.Errorf("%d: %s", w.Code, w.Body)
		}
	}
	if w := s.post(t, "/ui/try", form(trialPaths[0], body), "Content-Type", "text/plain"); w.Code != http.StatusUnsupportedMediaType {
		t.Errorf("%d", w.Code)
	}
}

// So many decisions that not all can be shown: the newest are, and how many are not is said.
func TestFastDecisions(t *testing.T) {
	s := newStage(t, 2)
	for range 60 {
		s.decide(t, "m", "r", true)
	}
	first := s.page.look(nil)
	if n := len(first.view.decisions); n != shownDecisions {
		t.Fatalf("%d decisions at first", n)
	}
	for range 100 {
		s.decide(t, "m", "r", true)
	}
	if late := s.page.look(&state{at: first.at.Add(-time.Minute), view: first.view}); strings.Contains(late.html(listDecisionsNote), "left out") {
		t.Errorf("after a minute: %s", late.html(listDecisionsNote))
	}
	second := s.page.look(first)
	var keys []string
	for _, l := range second.lists {
		if l.name == listDecisions {
			for _, f := range l.items {
				keys = append(keys, f.key)
			}
		}
	}
	if len(keys) != shownDecisions || keys[0] != "d160" || keys[19] != "d141" || keys[20] != "d60" || keys[49] != "d31" {
		t.Errorf("%d: %v", len(keys), keys)
	}
	if !strings.Contains(second.html(listDecisionsNote), "50 in all. 80 in between") {
		t.Error(second.html(listDecisionsNote))
	}
	if !slices.IsSortedFunc(keys, func(a, b string) int { return len(b) - len(a) }) {
		t.Error("not newest first")
	}
}

// TestLookupWithSeveralScorers: the list of what a look-up found needs no more of a decision than its pick.
func TestLookupWithSeveralScorers(t *testing.T) {
	s := newStage(t, 3)
	s.scheduler = s.table.Build(t, append(scorer.Types(), picker.Types()...), nil, "prefix-cache-scorer", "token-load-scorer", "max-score-picker")
	for range 2 {
		s.decide(t, "m", "twice", true)
	}
	w := s.get(t, "/ui/lookup?id=twice")
	if w.Code != http.StatusOK {
		t.Fatalf("%d: %s", w.Code, w.Body)
	}
	contains(t, parse(t, w), "of 3 candidates it had the highest total")
}
