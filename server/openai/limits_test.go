package openai_test

import (
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

// The nesting that is read is what the limit says, to the level; what is deeper is skipped and the rest of the body read.
func TestLimitNesting(t *testing.T) {
	for limit, levels := range map[int]int{8: 8, 1: 1, 0: 1, 512: 512, 5000: openai.MaxNesting} {
		s := openai.NewScanner()
		s.LimitNesting(limit)
		for _, depth := range []int{levels, levels + 1} {
			body := `{"x":` + strings.Repeat("[", depth) + strings.Repeat("]", depth) +
				`,"messages":[{"role":"user","content":"q"}],"model":"m"}`
			var r scheduling.Request
			info, err := s.Scan(chatOp, []byte(body), &r)
			if err != nil || r.Model != "m" || len(r.Prompt) != 2 {
				t.Errorf("limit %d, depth %d: model %q, %d spans, error %v", limit, depth, r.Model, len(r.Prompt), err)
			}
			if info.TooDeep != (depth > levels) {
				t.Errorf("limit %d, depth %d: too deep %v", limit, depth, info.TooDeep)
			}
		}
	}
}

// An event as large as the limit is read; of one that is a byte larger the rest passes, it is counted once however it is
// cut, and the next event is read.
func TestLimitEvents(t *testing.T) {
	event := `{"choices":[{"delta":{"content":"` + strings.Repeat("x", 1000) + `"}}],"usage":{"prompt_tokens":7,"completion_tokens":1}}`
	last := `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}` + "\n\ndata: [DONE]\n\n"
	stream := "data: " + event + "\n\n" + last
	for _, piece := range []int{1, 7, 100, len(stream)} {
		for limit, tt := range map[int]struct {
			after     scheduling.Usage // after the first event
			oversized int
		}{
			0:              {usage(7, 1, -1), 0},
			len(event):     {usage(7, 1, -1), 0},
			len(event) - 1: {usage(7, 1, -1), 1}, // all but the last bracket
			200:            {scheduling.UnknownUsage, 1},
		} {
			var r openai.Response
			r.Start(200, []byte(eventStream), nil)
			r.LimitEvents(limit)
			push := func(s string) {
				for len(s) > 0 {
					n := min(piece, len(s))
					r.Push([]byte(s[:n]))
					s = s[n:]
				}
			}
			push("data: " + event + "\n\n")
			if got := r.Usage(); got != tt.after && piece == 1 { // larger pieces pass as a whole
				t.Errorf("limit %d, pieces of %d: after the event %+v, want %+v", limit, piece, got, tt.after)
			}
			push(last)
			if got := r.Usage(); got != usage(9, 2, -1) || !r.Done() {
				t.Errorf("limit %d, pieces of %d: in the end %+v, done %v", limit, piece, got, r.Done())
			}
			if r.Oversized() != tt.oversized || r.Malformed() != 0 {
				t.Errorf("limit %d, pieces of %d: %d oversized, %d malformed, want %d and none", limit, piece, r.Oversized(), r.Malformed(), tt.oversized)
			}
		}
	}
	// An event of several lines is limited as a whole, and what is no data is not counted.
	var r openai.Response
	r.Start(200, []byte(eventStream), nil)
	r.LimitEvents(200)
	r.Push([]byte(": " + strings.Repeat("comment ", 100) + "\ndata: {\"choices\":[\ndata: ],\"usage\":{\"prompt_tokens\":3}}\n\n"))
	if r.Usage().PromptTokens != 3 || r.Oversized() != 0 {
		t.Errorf("%+v, %d oversized", r.Usage(), r.Oversized())
	}
	r.Push([]byte(strings.Repeat("data: "+strings.Repeat(" ", 90)+"\n", 3) + "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":4}}\n\n"))
	if r.Usage().PromptTokens != 3 || r.Oversized() != 1 {
		t.Errorf("%+v, %d oversized", r.Usage(), r.Oversized())
	}
	// Of one that is broken already nothing more is said.
	r.Push([]byte("data: nonsense\ndata: " + strings.Repeat("x", 300) + "\n\n"))
	if r.Oversized() != 1 || r.Malformed() != 1 {
		t.Errorf("%d oversized, %d malformed", r.Oversized(), r.Malformed())
	}
}
