package render

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

// exchange is a captured request and its answer.
type exchange struct {
	Request  struct{ Method, Path, Body string }
	Response struct {
		Status int
		Body   string
	}
}

func captured(t testing.TB, name string) exchange {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name+".json"))
	if err != nil {
		t.Fatal(err)
	}
	var e exchange
	if err := json.Unmarshal(raw, &e); err != nil {
		t.Fatal(err)
	}
	return e
}

// What a real engine answers.
func TestCapturedAnswers(t *testing.T) {
	chat := []uint32{1, 85, 2704, 201, 59, 1234, 562, 1093, 2098, 16, 2, 201, 1, 3557, 201, 1029, 904, 14, 2727, 310, 499, 33, 2, 201, 1, 4071, 75, 1632, 201}
	for name, want := range map[string]Answer{
		"render_chat":             {Tokens: chat, Count: 29, Prompts: 1},
		"render_completion":       {Tokens: []uint32{465, 2962, 839, 201, 260}, Count: 5, Prompts: 1},
		"render_completion_list":  {Tokens: []uint32{1029, 904}, Count: 4, Prompts: 2},
		"render_messages":         {Tokens: chat[12:], Count: 17, Prompts: 1},
		"render_responses":        {Tokens: chat[12:], Count: 17, Prompts: 1},
		"tokenize_messages":       {Tokens: chat, Count: 29, Prompts: 1},
		"tokenize_messages_nogen": {Tokens: chat[:24], Count: 24, Prompts: 1},
		"tokenize_messages_tools": {Tokens: chat, Count: 29, Prompts: 1},
		"tokenize_no_model":       {Tokens: []uint32{1029, 904}, Count: 2, Prompts: 1},
		"tokenize_prompt_strs":    {Tokens: []uint32{1029, 904}, Count: 2, Prompts: 1},
		"tokenize_prompt":         {Tokens: []uint32{1029, 904, 14, 2727, 310, 499, 33, 223, 130, 123, 80, 130, 110, 223, 165, 248, 101, 165, 253, 108}, Count: 20, Prompts: 1},
	} {
		t.Run(name, func(t *testing.T) {
			read := ReadRendered
			if strings.HasPrefix(name, "tokenize") {
				read, want.Tokenized = ReadTokenized, true
			}
			body := captured(t, name).Response.Body
			for way, from := range map[string]io.Reader{"whole": strings.NewReader(body), "byte by byte": iotest.OneByteReader(strings.NewReader(body))} {
				got, err := read(from)
				if err != nil {
					t.Fatalf("%s: %v", way, err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: (-want +got):\n%s", way, diff)
				}
			}
		})
	}
}

func TestFeatures(t *testing.T) {
	answer := func(features string) string {
		return `{"token_ids":[` + strings.TrimSuffix(strings.Repeat("7,", 20), ",") + `],"features":` + features + `}`
	}
	t.Run("several modalities, by offset", func(t *testing.T) {
		got, err := ReadRendered(strings.NewReader(answer(
			`{"mm_placeholders":{"video":[{"length":3,"offset":12}],"image":[{"offset":8,"length":4},{"offset":1,"length":2}]},` +
				`"kwargs_data":null,"mm_hashes":{"image":["b","a"],"video":["v"],"audio":[]}}`)))
		if err != nil {
			t.Fatal(err)
		}
		want := []scheduling.PromptFeature{{ID: "a", Offset: 1, Length: 2}, {ID: "b", Offset: 8, Length: 4}, {ID: "v", Offset: 12, Length: 3}}
		if diff := cmp.Diff(want, got.Features); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	})
	for name, features := range map[string]string{
		"no places":           `{"mm_hashes":{"image":["a"]}}`,
		"no identifiers":      `{"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`,
		"unequal numbers":     `{"mm_hashes":{"image":["a","b"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`,
		"unequal modalities":  `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"video":[{"offset":1,"length":2}]}}`,
		"past the end":        `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":19,"length":2}]}}`,
		"one over the other":  `{"mm_hashes":{"image":["a","b"]},"mm_placeholders":{"image":[{"offset":1,"length":2},{"offset":2,"length":2}]}}`,
		"negative":            `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":-1,"length":2}]}}`,
		"no length":           `{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1}]}}`,
		"empty identifier":    `{"mm_hashes":{"image":[""]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`,
		"endless identifier":  `{"mm_hashes":{"image":["` + strings.Repeat("a", MaxFeatureID+1) + `"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`,
		"escaped identifier":  `{"mm_hashes":{"image":["\u0061"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`,
		"null identifier":     `{"mm_hashes":{"image":[null]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}`,
		"no object":           `[]`,
		"identifiers no list": `{"mm_hashes":{"image":"a"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			if a, err := ReadRendered(strings.NewReader(answer(features))); !errors.Is(err, errSyntax) || a.Count != 0 {
				t.Errorf("%+v, %v", a, err)
			}
		})
	}
}

func TestWhatIsNoAnswer(t *testing.T) {
	for _, body := range []string{
		``, `null`, `[]`, `{}`, `7`, `{"token_ids":null}`, `{"token_ids":[1,2`, `{"token_ids":[1,2]`, `{"token_ids":[1,]}`,
		`{"token_ids":[1.5]}`, `{"token_ids":[-1]}`, `{"token_ids":[1e3]}`, `{"token_ids":[4294967296]}`, `{"token_ids":["1"]}`,
		`{"token_ids":[99999999999999999999]}`, `{"token_ids":[1]}x`, `{"token_ids":[1]}{}`, `[{"token_ids":[1]}`, `{"token_ids" [1]}`,
		`{"token_ids":[1],"x":}`, `{"token_ids":[1],"x":[}`, `{"token_ids":[1],"x":"`, `{"token_ids":[1],"x":"\`, "{\"token_ids\":[1]}\x00",
		`<html>`, `[{"token_ids":[1]},{"detail":"x"}]`, `{"error":{"message":"no"}}`,
		`{"token_ids":[1],"x":` + strings.Repeat("[", maxDepth+1) + strings.Repeat("]", maxDepth+1) + `}`,
	} {
		a, err := ReadRendered(strings.NewReader(body))
		if err == nil || a.Count != 0 || a.Tokens != nil {
			t.Errorf("%.60q: %+v, %v", body, a, err)
		}
	}
	for _, body := range []string{
		`{"tokens":[1,2]}`, `{"count":2}`, `{"count":1,"tokens":[1,2]}`, `{"count":0,"tokens":[]} x`, `{"count":"2","tokens":[1,2]}`, `[]`,
	} {
		if a, err := ReadTokenized(strings.NewReader(body)); err == nil || a.Tokens != nil {
			t.Errorf("%q: %+v, %v", body, a, err)
		}
	}
	if a, err := ReadTokenized(strings.NewReader(`{"count":0,"tokens":[]}`)); err != nil || a.Prompts != 1 || a.Count != 0 {
		t.Errorf("an empty prompt: %+v, %v", a, err)
	}
}

// repeated gives the same bytes over and over, between a head and a tail.
func repeated(head, each string, times int, tail string) io.Reader {
	readers := []io.Reader{strings.NewReader(head)}
	chunk := strings.Repeat(each, 4096)
	for ; times >= 4096; times -= 4096 {
		readers = append(readers, strings.NewReader(chunk))
	}
	return io.MultiReader(append(readers, strings.NewReader(strings.Repeat(each, times)), strings.NewReader(tail))...)
}

func TestAnswersAreBounded(t *testing.T) {
	if raceEnabled {
		t.Skip("it reads hundreds of megabytes")
	}
	a, err := ReadRendered(repeated(`{"token_ids":[`, "5,", MaxTokens-1, "6]}"))
	if err != nil || a.Count != MaxTokens || a.Tokens[MaxTokens-1] != 6 {
		t.Fatalf("%d tokens, %v; want %d", a.Count, err, MaxTokens)
	}
	place := `{"offset":0,"length":0},`
	for name, from := range map[string]io.Reader{
		"tokens":              repeated(`{"token_ids":[`, "5,", MaxTokens, "6]}"),
		"tokens and no comma": repeated(`{"token_ids":[`, "5, ", MaxTokens, " 6]}"),
		"tokens of all":       io.MultiReader(repeated(`[{"token_ids":[`, "5,", MaxTokens-2, "6]},"), strings.NewReader(`{"token_ids":[1,2]}]`)),
		"tokenize":            repeated(`{"token_ids":[`, "5,", MaxTokens, "6]}"),
		"bytes":               repeated(`{"x":"`, strings.Repeat("y", 1024), MaxAnswerBytes/1024, `","token_ids":[1]}`),
		"prompts":             repeated(`[{"token_ids":[1]}`, `,{"token_ids":[1]}`, MaxPrompts, `]`),
		"features":            repeated(`{"token_ids":[1],"features":{"mm_placeholders":{"image":[`, place, MaxFeatures, strings.TrimSuffix(place, ",")+`]}}}`),
	} {
		if a, err := ReadRendered(from); !errors.Is(err, errLong) || a.Tokens != nil {
			t.Errorf("%s: %d tokens, %v", name, a.Count, err)
		}
	}
}

func TestAnswersDoNotShareMemory(t *testing.T) {
	first, err := ReadRendered(strings.NewReader(`{"token_ids":[1,2,3]}`))
	if err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if _, err := ReadRendered(strings.NewReader(`{"token_ids":[9,9,9,9]}`)); err != nil {
			t.Fatal(err)
		}
	}
	if !slices.Equal(first.Tokens, []uint32{1, 2, 3}) {
		t.Errorf("%v: a later answer was written over it", first.Tokens)
	}
}

// FuzzAnswers holds the readers against encoding/json: what they read is what the JSON says, and however the answer is
// cut, the result is the same.
func FuzzAnswers(f *testing.F) {
	names, err := filepath.Glob("testdata/*.json")
	if err != nil || len(names) == 0 {
		f.Fatal(names, err)
	}
	for _, name := range names {
		f.Add([]byte(captured(f, strings.TrimSuffix(filepath.Base(name), ".json")).Response.Body))
	}
	f.Add([]byte(`{"token_ids":[1,2,3,4],"features":{"mm_hashes":{"image":["a"]},"mm_placeholders":{"image":[{"offset":1,"length":2}]}}}`))
	f.Add([]byte(`{"tokens" : [ 1 , 2 ],"count":2, "x":{"y":[{}]}}`))
	f.Fuzz(func(t *testing.T, body []byte) {
		for name, read := range map[string]func(io.Reader) (Answer, error){"rendered": ReadRendered, "tokenized": ReadTokenized} {
			a, err := read(strings.NewReader(string(body)))
			b, errSlow := read(iotest.OneByteReader(strings.NewReader(string(body))))
			if (err == nil) != (errSlow == nil) || cmp.Diff(a, b) != "" {
				t.Fatalf("%s: %q reads as %+v, %v, byte by byte as %+v, %v", name, body, a, err, b, errSlow)
			}
			if err != nil {
				continue
			}
			if len(a.Tokens) > a.Count || a.Prompts < 1 {
				t.Fatalf("%s: %q reads as %+v", name, body, a)
			}
			end := 0
			for _, feature := range a.Features {
				if feature.Offset < end || feature.ID == "" {
					t.Fatalf("%s: %q has features %+v", name, body, a.Features)
				}
				end = feature.Offset + feature.Length
			}
			if end > len(a.Tokens) {
				t.Fatalf("%s: %q has features %+v", name, body, a.Features)
			}
			compare(t, name, body, a)
		}
	})
}

// compare holds an answer against what encoding/json makes of the body, where that is JSON and no key of it comes twice.
func compare(t *testing.T, name string, body []byte, a Answer) {
	type prompt struct {
		TokenIDs *[]uint32 `json:"token_ids"`
		Tokens   *[]uint32 `json:"tokens"`
	}
	var list []prompt
	if name == "tokenized" || json.Unmarshal(body, &list) != nil {
		list = make([]prompt, 1)
		if json.Unmarshal(body, &list[0]) != nil {
			return
		}
	}
	if strings.Count(string(body), "token") > 2*len(list) || strings.ContainsAny(strings.ToLower(string(body)), `\`) || len(list) == 0 {
		return
	}
	first := list[0].TokenIDs
	if name == "tokenized" {
		first = list[0].Tokens
	}
	if first == nil || !strings.Contains(string(body), `"token`) {
		return
	}
	if !slices.Equal(*first, a.Tokens) || len(list) != a.Prompts {
		t.Fatalf("%s: %q reads as %v of %d prompts, JSON has %v of %d", name, body, a.Tokens, a.Prompts, *first, len(list))
	}
}

func BenchmarkReadRendered(b *testing.B) {
	var body strings.Builder
	body.WriteString(`{"request_id":"chatcmpl-1","token_ids":[`)
	for i := range 100_000 {
		fmt.Fprintf(&body, "%d,", i*7919%150_000)
	}
	body.WriteString(`1],"features":null,"sampling_params":{"stop":[]}}`)
	text := body.String()
	b.SetBytes(int64(len(text)))
	b.ReportAllocs()
	for b.Loop() {
		if a, err := ReadRendered(strings.NewReader(text)); err != nil || a.Count != 100_001 {
			b.Fatal(a.Count, err)
		}
	}
}
