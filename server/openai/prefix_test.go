package openai_test

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

// client serialises requests in one of the ways that clients do.
type client struct {
	op          scheduling.Operation
	systemFirst bool // the order of the top-level fields
	toolsFirst  bool
	roleFirst   bool // the order within a message
	spaced      bool
	cacheMarks  bool // a cache_control mark on the last part, which moves with each turn
}

func (c client) object(fields ...string) string {
	colon, comma := ":", ","
	if c.spaced {
		colon, comma = ": ", ", "
	}
	var parts []string
	for i := 0; i+1 < len(fields); i += 2 {
		if fields[i+1] != "" {
			parts = append(parts, `"`+fields[i]+`"`+colon+fields[i+1])
		}
	}
	return "{" + strings.Join(parts, comma) + "}"
}

func (c client) list(items []string) string {
	if c.spaced {
		return "[" + strings.Join(items, ", ") + "]"
	}
	return "[" + strings.Join(items, ",") + "]"
}

// turn is one message: content as a string, as parts, or none with a tool call.
type turn struct {
	role, text string
	shape      int
}

func quoted(s string) string {
	b, _ := json.Marshal(s)
	return string(b)
}

func (c client) message(m turn, last bool) string {
	mark := ""
	if c.cacheMarks && last {
		mark = `{"type":"ephemeral"}`
	}
	content, calls := quoted(m.text), ""
	switch m.shape {
	case 1:
		text := c.object("type", `"text"`, "text", quoted(m.text), "cache_control", mark)
		image := c.object("type", `"image_url"`, "image_url", c.object("url", quoted("data:"+m.text)))
		content = c.list([]string{text, image})
	case 2:
		content = "null"
		calls = c.list([]string{c.object("id", `"c1"`, "function", c.object("name", `"f"`, "arguments", quoted(m.text)))})
	}
	if c.roleFirst {
		return c.object("role", quoted(m.role), "content", content, "tool_calls", calls)
	}
	return c.object("content", content, "role", quoted(m.role), "tool_calls", calls)
}

func (c client) body(turns []turn, system, tools string) string {
	messages := make([]string, len(turns))
	for i, m := range turns {
		messages[i] = c.message(m, i == len(turns)-1)
	}
	name, systemName := "messages", "system"
	if c.op == responsesOp {
		name, systemName = "input", "instructions"
	}
	fields := []string{name, c.list(messages)}
	put := func(first bool, field ...string) {
		if first {
			fields = append(field, fields...)
		} else {
			fields = append(fields, field...)
		}
	}
	if c.op != chatOp {
		put(c.systemFirst, systemName, system)
	}
	put(c.toolsFirst, "tools", tools)
	return c.object(append([]string{"model", `"m"`, "max_tokens", quoted(strings.Repeat("1", 1+len(turns)%3))}, fields...)...)
}

func prompted(t interface{ Fatalf(string, ...any) }, op scheduling.Operation, body string) string {
	var r scheduling.Request
	if _, err := openai.NewScanner().Scan(op, []byte(body), &r); err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	return promptText(&r)
}

func TestNextTurnBeginsWithTheTurnBefore(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := client{
			op:          rapid.SampledFrom([]scheduling.Operation{chatOp, responsesOp, messagesOp}).Draw(t, "op"),
			systemFirst: rapid.Bool().Draw(t, "systemFirst"), toolsFirst: rapid.Bool().Draw(t, "toolsFirst"),
			roleFirst: rapid.Bool().Draw(t, "roleFirst"), spaced: rapid.Bool().Draw(t, "spaced"),
			cacheMarks: rapid.Bool().Draw(t, "cacheMarks"),
		}
		turns := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) turn {
			return turn{
				role:  rapid.SampledFrom([]string{"user", "assistant", "tool", "developer"}).Draw(t, "role"),
				text:  rapid.String().Draw(t, "text"),
				shape: rapid.IntRange(0, 2).Draw(t, "shape"),
			}
		}), 2, 8).Draw(t, "turns")
		system, tools := quoted(rapid.String().Draw(t, "system")), `[{"type":"function","function":{"name":"f"}}]`
		before := ""
		for n := 1; n <= len(turns); n++ {
			now := prompted(t, c.op, c.body(turns[:n], system, tools))
			if !strings.HasPrefix(now, before) || len(now) <= len(before) {
				t.Fatalf("turn %d is not an extension:\n%q\n%q", n, before, now)
			}
			before = now
		}
		if other := prompted(t, c.op, c.body(turns, system, `[]`)); strings.HasPrefix(before, other) {
			t.Fatalf("without tools the prompt begins the same: %q", other)
		}
	})
}

func TestTurnsOfARecordedConversation(t *testing.T) {
	before := ""
	for _, name := range []string{"kv_p5_chat_turn1", "kv_p5_chat_turn2", "kv_p5_chat_turn3"} {
		body, err := os.ReadFile("testdata/requests/" + name + ".json")
		if err != nil {
			t.Fatal(err)
		}
		now := prompted(t, chatOp, string(body))
		if !strings.HasPrefix(now, before) || len(now) < len(before)+100 {
			t.Fatalf("%s does not extend the turn before", name)
		}
		before = now
	}
}

func TestRolesAreNotTakenForText(t *testing.T) {
	a := prompted(t, chatOp, `{"messages":[{"role":"user","content":"a"},{"role":"user","content":"b"}]}`)
	b := prompted(t, chatOp, `{"messages":[{"role":"user","content":"a\"user\"b"}]}`)
	if a == b {
		t.Errorf("two conversations have one prompt: %q", a)
	}
}

func TestC09_ToolsAndTemplateArgumentsArePartOfThePrompt(t *testing.T) {
	const messages = `"messages":[{"role":"developer","content":"q"}]`
	seen := map[string]string{}
	for _, extra := range []string{
		``, `,"tools":[{"a":1}]`, `,"tools":[{"a":2}]`, `,"chat_template_kwargs":{"enable_thinking":false}`,
		`,"chat_template":"t"`, `,"documents":[{"text":"d"}]`, `,"reasoning_effort":"high"`, `,"functions":[{"a":1,"b":2}]`,
	} {
		body := `{` + messages + extra + `}`
		prompt := prompted(t, chatOp, body)
		if other, ok := seen[prompt]; ok {
			t.Errorf("%s and %s have one prompt", body, other)
		}
		seen[prompt] = body
	}
}

func TestPartialBodies(t *testing.T) {
	for _, body := range []string{
		`{"model":"m\u0061","max_tokens":100,"tools":[{"t":1}],"messages":[{"role":"system","content":"s\"\\"},{"role":"user","content":[{"type":"text","text":"hello"},{"image_url":{"url":"u"}}]}],"stream":true}`,
	} {
		full := prompted(t, chatOp, body)
		scanner := openai.NewScanner()
		for cut := range len(body) {
			var r scheduling.Request
			info, err := scanner.ScanPartial(chatOp, []byte(body[:cut]), &r)
			if err != nil || !info.Cut {
				t.Fatalf("cut at %d: error %v, cut %v", cut, err, info.Cut)
			}
			if !strings.HasPrefix(full, promptText(&r)) {
				t.Fatalf("cut at %d: prompt %q", cut, promptText(&r))
			}
			if r.Model != "" && r.Model != "ma" || r.MaxOutputTokens != 0 && r.MaxOutputTokens != 100 {
				t.Fatalf("cut at %d: model %q, max tokens %d", cut, r.Model, r.MaxOutputTokens)
			}
		}
	}
	var r scheduling.Request
	if _, err := openai.NewScanner().ScanPartial(completionsOp, []byte(`{"model":"m","prompt":[12,34,5`), &r); err != nil {
		t.Fatal(err)
	}
	if r.TokenCount != 2 || r.Model != "m" {
		t.Errorf("tokens %d, model %q; want the two whole ids and m", r.TokenCount, r.Model)
	}
	if _, err := openai.NewScanner().ScanPartial(chatOp, []byte(`{"model":x"m"`), &r); err == nil {
		t.Error("a partial body that is no beginning of JSON is taken")
	}

	for body, want := range map[string]bool{
		`{"vllm_xargs":{"kv_cache_report_mode":"full"`: true, `{"vllm_xargs":{"kv_cache_report_mode":"full`: false, `{"vllm_xargs":{"kv_cache_report_mode":"ful`: false,
	} {
		if _, err := openai.NewScanner().ScanPartial(chatOp, []byte(body), &r); err != nil || r.KVReportFull != want {
			t.Errorf("%s: full report %v, error %v", body, r.KVReportFull, err)
		}
	}
	for body, want := range map[string]bool{`{"return_token_ids":true`: true, `{"return_token_ids":tru`: false, `{"return_token_ids":`: false} {
		if _, err := openai.NewScanner().ScanPartial(chatOp, []byte(body), &r); err != nil || r.ReturnTokenIDs != want {
			t.Errorf("%s: token ids %v, error %v", body, r.ReturnTokenIDs, err)
		}
	}
}
