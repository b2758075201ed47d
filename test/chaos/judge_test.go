//go:build linux

package chaos

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/test/lab"
)

// What is judged wrong and what is excused.
func TestJudge(t *testing.T) {
	began := time.Now()
	at := func(seconds int) time.Time { return began.Add(time.Duration(seconds) * time.Second) }
	const body, answer = "a body", "an answer"
	asked := draft{id: "r", body: []byte(body), want: http.StatusOK, ending: wholly}
	cutOff := asked
	cutOff.ending = inBody
	whole := entry{ID: "r", Ended: true, Whole: true, Body: lab.SHA256(body), Status: 200, Answer: lab.SHA256(answer)}
	good := outcome{begun: at(0), ended: at(2), status: 200, answer: lab.SHA256(answer)}
	failed := outcome{begun: at(0), ended: at(2), status: 503}
	broken := outcome{begun: at(0), ended: at(2), status: 200, err: errors.New("reset")}
	started := entry{ID: "r"}
	for name, tt := range map[string]struct {
		draft   draft
		outcome outcome
		engine  []entry // of the first engine
		served  string  // by Envoy's word
		cut     int     // second at which the first engine was killed; 0: never
		wrong   string
		want    verdict
	}{
		"a whole request":                {asked, good, []entry{started, whole}, "a:1", 0, "", verdict{bodies: 1, answers: 1}},
		"another body":                   {asked, good, []entry{started, {ID: "r", Ended: true, Whole: true, Body: lab.SHA256("a bod"), Answer: whole.Answer}}, "a:1", 0, "another body", verdict{bodies: 1, answers: 1}},
		"half a body taken for whole":    {cutOff, outcome{begun: at(0), ended: at(1)}, []entry{started, {ID: "r", Ended: true, Whole: true, Body: lab.SHA256("a b")}}, "a:1", 0, "another body", verdict{bodies: 1}},
		"half a body":                    {cutOff, outcome{begun: at(0), ended: at(1)}, []entry{started, {ID: "r", Ended: true, Body: lab.SHA256("a b")}}, "a:1", 0, "", verdict{}},
		"a request nobody sent":          {draft{id: "other", ending: inHeaders}, outcome{}, []entry{started, whole}, "", 0, "another body", verdict{bodies: 1}},
		"another answer":                 {asked, outcome{begun: at(0), ended: at(2), status: 200, answer: lab.SHA256("an answ")}, []entry{started, whole}, "a:1", 0, "no engine wrote", verdict{bodies: 1}},
		"an answer of nobody's":          {asked, good, nil, "a:1", 0, "no engine wrote", verdict{}},
		"an answer of the killed":        {asked, good, []entry{started}, "a:1", 1, "", verdict{unknown: 1}},
		"503":                            {asked, failed, nil, "a:1", 0, "status 503", verdict{}},
		"503, and another was killed":    {asked, failed, nil, "b:1", 1, "status 503", verdict{}},
		"503, killed long before":        {asked, failed, nil, "a:1", -5, "status 503", verdict{}},
		"503, killed afterwards":         {asked, failed, nil, "a:1", 5, "status 503", verdict{}},
		"503, killed meanwhile":          {asked, failed, nil, "a:1", 1, "", verdict{excused: 1}},
		"503, killed, of those it had":   {asked, failed, []entry{started}, "b:1", 1, "", verdict{excused: 1}},
		"503, of those it had ended":     {asked, failed, []entry{started, whole}, "b:1", 1, "status 503", verdict{bodies: 1}},
		"503 to a client that broke off": {cutOff, failed, nil, "", 0, "status 503", verdict{}},
		"breaks off":                     {asked, broken, []entry{started}, "a:1", 0, "error reset", verdict{}},
		"breaks off, killed":             {asked, broken, []entry{started}, "a:1", 1, "", verdict{excused: 1}},
		"400 for nothing":                {asked, outcome{begun: at(0), ended: at(2), status: 400}, nil, "", 0, "status 400", verdict{}},
	} {
		t.Run(name, func(t *testing.T) {
			s := &stage{engines: []*engineUnit{{index: 0, address: "a:1"}, {index: 1, address: "b:1"}}}
			if tt.cut != 0 {
				s.engines[0].cuts = []time.Time{at(tt.cut)}
			}
			ev := evidence{engines: []map[string][]entry{{}, {}}, hops: map[string]hop{tt.draft.id: {ID: tt.draft.id, Served: tt.served}}}
			if tt.engine != nil {
				ev.engines[0]["r"] = tt.engine
			}
			a := newAccount()
			a.add(tt.draft, tt.outcome)
			got := a.judge(s, ev)
			switch text := strings.Join(got.violations, "\n"); {
			case tt.wrong == "" && text != "", tt.wrong != "" && (len(got.violations) != 1 || !strings.Contains(text, tt.wrong)):
				t.Errorf("judged wrong: %q, want %q", text, tt.wrong)
			}
			if tt.want.excused != got.excused || tt.want.unknown != got.unknown || tt.want.bodies != got.bodies || tt.want.answers != got.answers {
				t.Errorf("%+v, want %+v", got, tt.want)
			}
		})
	}
}
