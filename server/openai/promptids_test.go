package openai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/server/openai"
)

// collectedIDs is what a Response that was asked for token ids says of them.
type collectedIDs struct {
	Tokens  []uint32
	Dropped bool
}

// collect reads like read, asking for the prompt's token ids.
func collect(contentType string, pieces ...[]byte) (answer, collectedIDs) {
	var r openai.Response
	r.Start(200, []byte(contentType), nil)
	r.CollectPromptTokens(nil)
	for _, p := range pieces {
		r.Push(p)
	}
	return answer{r.Usage(), r.FirstToken(), r.Done(), r.Failed(), r.Malformed()},
		collectedIDs{r.PromptTokens(), r.PromptTokensDropped()}
}

// chatPrompt is the first prompt of the recorded chats with return_token_ids.
var chatPrompt = []uint32{
	1, 85, 2704, 201, 59, 1234, 562, 1093, 2098, 16, 2, 201, 1, 3557, 201, 1029, 904, 14, 2727, 310, 499, 33, 2, 201, 1, 4071, 75, 1632, 201,
}

// idRecordings are the recorded answers that hold token ids. Two streams of completions are derived from a recorded one,
// whose events have the fields with null in them.
func idRecordings(tb testing.TB) map[string]struct {
	body []byte
	want []uint32
} {
	tb.Helper()
	stream := string(recorded(tb, "completion_stream.sse"))
	fields := `"prompt_token_ids":null,"token_ids":null`
	first := strings.Replace(stream, fields, `"prompt_token_ids":[465,2962,839,201,260],"token_ids":[3503]`, 1)
	event, rest, _ := strings.Cut(stream, "\n\n")
	other := strings.Replace(strings.Replace(event, fields, `"prompt_token_ids":[7,8],"token_ids":[9]`, 1), `"index":0`, `"index":1`, 1)
	main := strings.Replace(event, fields, `"prompt_token_ids":[465,2962,839,201,260],"token_ids":[3503]`, 1)
	return map[string]struct {
		body []byte
		want []uint32
	}{
		"chat_return_token_ids.json":       {recorded(tb, "chat_return_token_ids.json"), chatPrompt},
		"chat_stream_return_token_ids.sse": {recorded(tb, "chat_stream_return_token_ids.sse"), chatPrompt},
		"completion_return_token_ids.json": {recorded(tb, "completion_return_token_ids.json"), []uint32{465, 2962, 839, 201, 260}},
		"a completion stream.sse":          {[]byte(first), []uint32{465, 2962, 839, 201, 260}},
		"a batch's stream.sse":             {[]byte(other + "\n\n" + main + "\n\n" + rest), []uint32{465, 2962, 839, 201, 260}},
	}
}

func TestPromptTokensOfRecordedAnswers(t *testing.T) {
	for name, c := range idRecordings(t) {
		plain := read(typeOf(name), c.body)
		got, ids := collect(typeOf(name), c.body)
		if diff := cmp.Diff(collectedIDs{Tokens: c.want}, ids); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if got != plain {
			t.Errorf("%s: %+v, but without asking for ids %+v", name, got, plain)
		}
	}
	for name := range recordings {
		if strings.Contains(name, "return_token_ids") {
			continue
		}
		if _, ids := collect(typeOf(name), recorded(t, name)); ids.Tokens != nil || ids.Dropped {
			t.Errorf("%s has no ids, but %+v were read", name, ids)
		}
	}
}

func TestC31_PromptTokensCutAnywhere(t *testing.T) {
	stride := 1
	if raceEnabled {
		stride = 7
	}
	for name, c := range idRecordings(t) {
		plain, want := read(typeOf(name), c.body), collectedIDs{Tokens: c.want}
		original := bytes.Clone(c.body)
		for cut := 0; cut < len(c.body); cut += stride {
			got, ids := collect(typeOf(name), c.body[:cut], c.body[cut:])
			if got != plain || !cmp.Equal(ids, want) {
				t.Fatalf("%s cut at %d: %+v, %+v", name, cut, got, ids)
			}
		}
		single := make([][]byte, len(c.body))
		for i := range c.body {
			single[i] = []byte{c.body[i]}
		}
		if got, ids := collect(typeOf(name), single...); got != plain || !cmp.Equal(ids, want) {
			t.Errorf("%s byte by byte: %+v, %+v", name, got, ids)
		}
		if !bytes.Equal(c.body, original) {
			t.Errorf("%s: the bytes were changed", name)
		}
		if typeOf(name) != eventStream {
			continue
		}
		for kind, vary := range variants {
			if _, ids := collect(eventStream, []byte(vary(string(c.body)))); !cmp.Equal(ids, want) {
				t.Errorf("%s, %s: %+v", name, kind, ids)
			}
		}
	}
}

func TestPromptTokensAreWholeOrNone(t *testing.T) {
	for name, c := range idRecordings(t) {
		for cut := range len(c.body) {
			_, ids := collect(typeOf(name), c.body[:cut])
			if ids.Dropped || ids.Tokens != nil && !slices.Equal(ids.Tokens, c.want) {
				t.Fatalf("%s, of which %d bytes came: %+v", name, cut, ids)
			}
		}
	}
}

func TestPromptTokensAreCollectedOnlyWhereAsked(t *testing.T) {
	var r openai.Response
	for name, c := range idRecordings(t) {
		r.Start(200, []byte(typeOf(name)), nil)
		r.CollectPromptTokens(nil)
		r.Push(c.body)
		if len(r.PromptTokens()) == 0 {
			t.Fatalf("%s: no ids", name)
		}
		r.Start(200, []byte(typeOf(name)), nil)
		r.Push(c.body)
		if ids := r.PromptTokens(); ids != nil || r.PromptTokensDropped() || r.ReleasePromptTokens() != nil {
			t.Errorf("%s: nobody asked, but %v was collected", name, ids)
		}
		r.Start(200, []byte(typeOf(name)), []byte("gzip"))
		r.CollectPromptTokens(nil)
		r.Push(c.body)
		if ids := r.PromptTokens(); ids != nil {
			t.Errorf("%s: %v was read from what is encoded", name, ids)
		}
	}
}

func TestPromptTokensReleasedAmidAnAnswer(t *testing.T) {
	stride := 1
	if raceEnabled {
		stride = 7
	}
	for name, c := range idRecordings(t) {
		plain := read(typeOf(name), c.body)
		for cut := 0; cut < len(c.body); cut += stride {
			var r openai.Response
			r.Start(200, []byte(typeOf(name)), nil)
			r.CollectPromptTokens(make([]uint32, 0, 100))
			r.Push(c.body[:cut])
			memory := r.ReleasePromptTokens()
			memory = append(memory, slices.Repeat([]uint32{99}, 100)...)
			r.Push(c.body[cut:])
			got := answer{r.Usage(), r.FirstToken(), r.Done(), r.Failed(), r.Malformed()}
			if got != plain || r.PromptTokens() != nil || r.PromptTokensDropped() || r.ReleasePromptTokens() != nil {
				t.Fatalf("%s, released at %d: %+v, want %+v and no ids", name, cut, got, plain)
			}
			if slices.ContainsFunc(memory, func(id uint32) bool { return id != 99 }) {
				t.Fatalf("%s, released at %d: memory that was given back was written to", name, cut)
			}
		}
	}
}

func TestPromptTokensShapes(t *testing.T) {
	some, other := []uint32{1, 2}, []uint32{3}
	for _, c := range []struct {
		name, events string
		want         []uint32
		dropped      bool
	}{
		{"white space", "{\"prompt_token_ids\" :\t[ 1 ,\ndata: \t 2\ndata:] }", some, false},
		{"one", `{"prompt_token_ids":[3]}`, other, false},
		{"the largest and zero", `{"prompt_token_ids":[4294967295,0]}`, []uint32{4294967295, 0}, false},
		{"null, then ids", `{"prompt_token_ids":null}` + "\n\ndata: " + `{"prompt_token_ids":[3]}`, other, false},
		{"the first list counts", `{"prompt_token_ids":[1,2]}` + "\n\ndata: " + `{"prompt_token_ids":[3]}`, some, false},
		{"the answer's before a choice's", `{"prompt_token_ids":[1,2],"choices":[{"index":0,"prompt_token_ids":[3]}]}`, some, false},
		{"an empty list", `{"prompt_token_ids":[]}` + "\n\ndata: " + `{"prompt_token_ids":[3]}`, nil, false},
		{"choice without index", `{"choices":[{"prompt_token_ids":[1,2]},{"prompt_token_ids":[3]}]}`, some, false},
		{"choice 0 second", `{"choices":[{"index":1,"prompt_token_ids":[3]},{"index":0,"prompt_token_ids":[1,2]}]}`, some, false},
		{"index behind the ids", `{"choices":[{"prompt_token_ids":[3],"index":1},{"prompt_token_ids":[1,2],"index":0}]}`, some, false},
		{"no choice 0", `{"choices":[{"index":2,"prompt_token_ids":[3]},{"prompt_token_ids":[1,2],"index":1}]}`, nil, false},
		{"a bad list of another choice", `{"choices":[{"prompt_token_ids":["x"],"index":1},{"prompt_token_ids":[1,2],"index":0}]}`, some, false},
		{"index of another object", `{"choices":[{"index":1},{"logprobs":{"index":3},"prompt_token_ids":[1,2]}]}`, some, false},
		{"an odd index", `{"choices":[{"index":"1","prompt_token_ids":[1,2]}]}`, some, false},
		{"somewhere else", `{"message":{"prompt_token_ids":[3]},"usage":{"prompt_token_ids":[3]},"choices":[{"delta":{"prompt_token_ids":[3]}}],"a":[{"prompt_token_ids":[3]}]}`, nil, false},
		{"in generated text", `{"choices":[{"text":"\"prompt_token_ids\":[3]"}]}`, nil, false},
		{"an object", `{"prompt_token_ids":{"a":[3]},"choices":[{"prompt_token_ids":"[3]"}]}`, nil, false},
		{"generated ids", `{"choices":[{"token_ids":[3]}],"token_ids":[3]}`, nil, false},
		{"broken off amid ids", `{"prompt_token_ids":[1,2` + "\n\ndata: " + `{"prompt_token_ids":[3]}`, other, false},
		{"broken off amid a choice", `{"choices":[{"index":0,"prompt_token_ids":[1,2]` + "\n\ndata: " + `{"choices":[{"prompt_token_ids":[3]}]}`, other, false},
		{"broken off behind an index", `{"choices":[{"index":1` + "\n\ndata: " + `{"choices":[{"prompt_token_ids":[3]}]}`, other, false},
		{"a string among the ids", `{"prompt_token_ids":[1,"2"]}`, nil, true},
		{"null among the ids", `{"prompt_token_ids":[1,null,2]}`, nil, true},
		{"a list of lists", `{"prompt_token_ids":[[1,2]]}`, nil, true},
		{"an id that is too large", `{"prompt_token_ids":[4294967296]}`, nil, true},
		{"an id that is far too large", `{"prompt_token_ids":[18446744073709551617]}`, nil, true},
		{"a negative id", `{"prompt_token_ids":[1,-2]}`, nil, true},
		{"a fraction", `{"prompt_token_ids":[1,2.0]}`, nil, true},
		{"an exponent", `{"prompt_token_ids":[1e3]}`, nil, true},
		{"leading zeros", `{"prompt_token_ids":[01]}`, nil, true},
		{"a comma too many", `{"prompt_token_ids":[1,2,]}`, nil, true},
		{"a comma first", `{"prompt_token_ids":[,1]}`, nil, true},
		{"two ids without a comma", `{"prompt_token_ids":[1 2]}`, nil, true},
		{"a bad list of choice 0", `{"choices":[{"index":0,"prompt_token_ids":[1,"]"]}]}` + "\n\ndata: " + `{"prompt_token_ids":[3]}`, nil, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			body := []byte("data: " + c.events + "\n\n")
			body = append(body, `data: {"usage":{"prompt_tokens":7}}`+"\n\n"...)
			got, ids := collect(eventStream, body)
			if diff := cmp.Diff(collectedIDs{c.want, c.dropped}, ids); diff != "" {
				t.Errorf("%s (-want +got):\n%s", c.events, diff)
			}
			if plain := read(eventStream, body); got != plain || got.Usage.PromptTokens != 7 {
				t.Errorf("%s: %+v, without asking for ids %+v", c.events, got, plain)
			}
		})
	}
}

func TestPromptTokensAreBounded(t *testing.T) {
	list := func(n int) string { return "[" + strings.Repeat("12345,", n-1) + "7]" }
	for _, test := range []struct {
		n    int
		kept bool
	}{{openai.MaxTokens, true}, {openai.MaxTokens + 1, false}, {openai.MaxTokens + 70_000, false}} {
		for _, format := range []string{
			`{"prompt_token_ids":%s,"usage":{"prompt_tokens":9}}`,
			`{"choices":[{"index":0,"text":"x","prompt_token_ids":%s}],"usage":{"prompt_tokens":9}}`,
		} {
			body := fmt.Appendf(nil, format, list(test.n))
			var r openai.Response
			r.Start(200, []byte("application/json"), nil)
			r.CollectPromptTokens(nil)
			for i := 0; i < len(body); i += 1000 {
				r.Push(body[i:min(i+1000, len(body))])
			}
			if r.PromptTokensDropped() == test.kept || r.Usage().PromptTokens != 9 || !r.Done() || r.Malformed() != 0 {
				t.Errorf("%d ids: dropped %v, usage %+v, done %v, malformed %d", test.n, r.PromptTokensDropped(), r.Usage(), r.Done(), r.Malformed())
			}
			ids := r.PromptTokens()
			if test.kept && (len(ids) != test.n || ids[0] != 12345 || ids[test.n-1] != 7) {
				t.Errorf("%d ids: %d were kept", test.n, len(ids))
			}
			if !test.kept && ids != nil {
				t.Errorf("%d ids: %d were kept", test.n, len(ids))
			}
			if memory := r.ReleasePromptTokens(); !test.kept && memory != nil {
				t.Errorf("%d ids: memory for %d is kept", test.n, cap(memory))
			}
		}
	}
}

func TestPromptTokensReuseMemory(t *testing.T) {
	memory := make([]uint32, 5, 64)
	var r openai.Response
	for _, name := range []string{"chat_return_token_ids.json", "completion_return_token_ids.json", "chat_stream_return_token_ids.sse", "chat_stream.sse"} {
		r.Start(200, []byte(typeOf(name)), nil)
		r.CollectPromptTokens(memory)
		r.Push(recorded(t, name))
		if ids := r.PromptTokens(); len(ids) > 0 && &ids[0] != &memory[:1][0] {
			t.Errorf("%s: the ids stand elsewhere", name)
		}
		if memory = r.ReleasePromptTokens(); len(memory) != 0 || cap(memory) != 64 {
			t.Errorf("%s: memory for %d ids, of which %d are used", name, cap(memory), len(memory))
		}
		if r.Push(recorded(t, name)); r.PromptTokens() != nil {
			t.Errorf("%s: ids are collected in memory that was given back", name)
		}
	}
	if raceEnabled {
		return // the race detector allocates
	}
	for name, c := range idRecordings(t) {
		ct := []byte(typeOf(name))
		allocs := testing.AllocsPerRun(20, func() {
			r.Start(200, ct, nil)
			r.CollectPromptTokens(memory)
			for i := 0; i < len(c.body); i += 100 {
				r.Push(c.body[i:min(i+100, len(c.body))])
			}
			memory = r.ReleasePromptTokens()
		})
		if allocs > 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// plainIDs is what encoding/json finds in events, with the rules of the reader put another way. comparable is false where
// an object says it in two places, whose order would matter.
func plainIDs(events []string) (ids collectedIDs, comparable bool) {
	if events == nil {
		return ids, false
	}
	for _, data := range events {
		if strings.TrimSpace(data) == "[DONE]" {
			continue
		}
		var v map[string]any
		d := json.NewDecoder(strings.NewReader(data))
		d.UseNumber()
		if d.Decode(&v) != nil {
			return ids, false
		}
		list, found := v["prompt_token_ids"].([]any)
		choices, _ := v["choices"].([]any)
		for _, c := range choices {
			of, given := object(c)["prompt_token_ids"].([]any)
			counts := map[string]int{}
			addUsage(counts, map[string]any{"index": object(c)["index"]})
			if !given || counts["index"] > 0 {
				continue
			}
			if _, answer := v["prompt_token_ids"].([]any); answer {
				return ids, false
			}
			if !found {
				list, found = of, true
			}
		}
		if !found {
			continue
		}
		for _, id := range list {
			number, _ := id.(json.Number)
			var n uint32
			if json.Unmarshal([]byte(number), &n) != nil || string(number) != fmt.Sprint(n) {
				return collectedIDs{Dropped: true}, true
			}
			ids.Tokens = append(ids.Tokens, n)
		}
		return ids, true
	}
	return ids, true
}

// checkPromptTokens reads whole and in pieces, asking for ids, and compares with the answer as it is read without asking
// and, where events are plain enough to compare, with encoding/json.
func checkPromptTokens(t *testing.T, contentType string, plain answer, events []string, pieces ...[][]byte) {
	t.Helper()
	want, ok := plainIDs(events)
	for i, p := range pieces {
		got, ids := collect(contentType, p...)
		if got != plain {
			t.Fatalf("asking for ids changes the answer: %+v, without %+v", got, plain)
		}
		if i == 0 && !ok {
			want = ids
		}
		if diff := cmp.Diff(want, ids, cmpopts.EquateEmpty()); diff != "" {
			t.Fatalf("%q (-want +got):\n%s", bytes.Join(p, nil), diff)
		}
	}
}

// BenchmarkPushPromptTokens reads a plain answer with a long prompt's ids, asked for and not.
func BenchmarkPushPromptTokens(b *testing.B) {
	body := []byte(`{"choices":[],"prompt_token_ids":[` + strings.Repeat("12345,", 32_000) + `7],"usage":{"prompt_tokens":32001}}`)
	for _, asked := range []bool{false, true} {
		b.Run(fmt.Sprint("asked=", asked), func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			var r openai.Response
			var memory []uint32
			for b.Loop() {
				r.Start(200, []byte("application/json"), nil)
				if asked {
					r.CollectPromptTokens(memory)
				}
				for i := 0; i < len(body); i += 1 << 16 {
					r.Push(body[i:min(i+1<<16, len(body))])
				}
				if asked {
					memory = r.ReleasePromptTokens()
				}
			}
		})
	}
}
