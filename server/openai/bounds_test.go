package openai_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"unicode/utf16"

	"pgregory.net/rapid"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

func TestC15_CacheSalt(t *testing.T) {
	long := strings.Repeat("s", 5000)
	salts := map[string]string{}
	for field, want := range map[string]string{
		`"tenant-1"`: "tenant-1", `"tenant-2"`: "tenant-2", `""`: "", `7`: "", `null`: "", `{"a":"tenant-1"}`: "",
		`["tenant-1"]`: "", `true`: "", `"` + strings.Repeat("x", 256) + `"`: strings.Repeat("x", 256),
		`"tenant\u002d3"`: "tenant-3", `"` + long[:2000] + `"`: long[:2000], // as an engine's events would name it
		`"` + strings.Repeat("\U0001f9c2", 1024) + `"`: strings.Repeat("\U0001f9c2", 1024),
	} {
		got, _ := scan(t, completionsOp, `{"model":"m","prompt":"p","cache_salt":`+field+`}`)
		if got.Salt != want || got.Prompt != "p" || got.Model != "m" {
			t.Errorf("cache_salt %s: %+v, want salt %q", field, got, want)
		}
	}
	for _, salt := range []string{
		long, long[1:], long[:4999] + "t", "t" + long[1:], long[:4097], long[:4096], `\ud800`, `\ud801`, `\ud83d\ude00`,
	} {
		got, _ := scan(t, completionsOp, `{"cache_salt":"`+salt+`"}`)
		if other, ok := salts[got.Salt]; ok || got.Salt == "" || len(got.Salt) > 4097 {
			t.Errorf("a salt of %d bytes is kept as %q, as is one of %d", len(salt), got.Salt, len(other))
		}
		salts[got.Salt] = salt
		// The kept form of a long salt, sent as a salt itself, is another salt.
		if again, _ := scan(t, completionsOp, `{"cache_salt":"`+got.Salt+`"}`); len(salt) > 4096 && again.Salt == got.Salt {
			t.Errorf("the digest of a salt of %d bytes can be forged", len(salt))
		}
	}
}

func TestSpliceModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		before, _ := json.Marshal(rapid.String().Draw(t, "before"))
		model, _ := json.Marshal(rapid.String().Draw(t, "model"))
		name := rapid.String().Draw(t, "name")
		body := fmt.Appendf(nil, `{"a":%s, "model" : %s ,"z":[%s]}`, before, model, before)
		original := bytes.Clone(body)
		var r scheduling.Request
		info, err := openai.NewScanner().Scan(chatOp, body, &r)
		if err != nil {
			t.Fatal(err)
		}
		pieces := openai.SpliceModel(body, info.Model, name)
		var got, want map[string]any
		if err := json.Unmarshal(bytes.Join(pieces[:], nil), &got); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(body, &want); err != nil {
			t.Fatal(err)
		}
		want["model"] = strings.ToValidUTF8(name, "\ufffd")
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got %v, want %v", got, want)
		}
		if !bytes.Equal(body, original) {
			t.Fatal("the body was changed")
		}
		if rest := body[len(body)-len(pieces[2]):]; len(rest) > 0 && &rest[0] != &pieces[2][0] {
			t.Fatal("the body was copied")
		}
	})
	for _, body := range []string{`{}`, `{"model":null}`, `{"model":"a","model":7}`, `[]`} {
		_, info := scan(t, chatOp, body)
		if p := openai.SpliceModel([]byte(body), info.Model, "m"); string(p[0]) != body || p[1] != nil || p[2] != nil {
			t.Errorf("%s becomes %q, want it unchanged", body, p)
		}
	}
	body := `{"model":"a","x":1,"model":"b"}`
	_, info := scan(t, chatOp, body)
	if p := openai.SpliceModel([]byte(body), info.Model, "c\x01"); string(bytes.Join(p[:], nil)) != `{"model":"a","x":1,"model":"c\u0001"}` {
		t.Errorf("got %q: engines take the last of two", p)
	}
}

func TestSpansAreBounded(t *testing.T) {
	message := `{"role":"u","content":"0123456789"}`
	n := openai.MaxSpans
	body := `{"tools":[1],"messages":[` + strings.Repeat(message+",", n-1) + message + `],"model":"m"}`
	var r scheduling.Request
	info, err := openai.NewScanner().Scan(chatOp, []byte(body), &r)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Prompt) > openai.MaxSpans || len(r.Prompt)+info.SpansDropped != 2*n+1 {
		t.Errorf("%d spans kept, %d dropped, of %d", len(r.Prompt), info.SpansDropped, 2*n+1)
	}
	if r.PromptBytes != 13*n+3 || r.Model != "m" {
		t.Errorf("%d bytes of prompt, model %q: want all that was dropped counted", r.PromptBytes, r.Model)
	}
}

func TestTokensAreBounded(t *testing.T) {
	n := openai.MaxTokens + 5
	var r scheduling.Request
	body := `{"prompt":[` + strings.Repeat("1,", n-1) + `1]}`
	if _, err := openai.NewScanner().Scan(completionsOp, []byte(body), &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Tokens) != openai.MaxTokens || r.TokenCount != n {
		t.Errorf("%d ids kept, %d counted, of %d", len(r.Tokens), r.TokenCount, n)
	}
}

func TestDepthIsBounded(t *testing.T) {
	for _, depth := range []int{511, 512, 513, 1 << 20} {
		deep := strings.Repeat(`[{"content":`, depth/2) + `"]}"` + strings.Repeat(`}]`, depth/2)
		if depth%2 == 1 {
			deep = "[" + deep + "]"
		}
		got, info := scan(t, chatOp, `{"x":`+deep+`,"messages":[{"role":"user","content":"q"}],"model":"m"}`)
		if got.Model != "m" || got.Prompt != `"user"q` || info.TooDeep != (depth > 512) {
			t.Errorf("depth %d: %+v, too deep %v", depth, got, info.TooDeep)
		}
		got, _ = scan(t, chatOp, `{"messages":[{"role":"user","content":`+deep+`}],"model":"m"}`)
		if got.Model != "m" || got.Bytes < depth {
			t.Errorf("content of depth %d: model %q, %d bytes", depth, got.Model, got.Bytes)
		}
	}
}

func TestMediaIdentifiesWithoutWeighing(t *testing.T) {
	body := func(image string) string {
		return `{"messages":[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;base64,` +
			image + `"}},{"type":"text","text":"what is it?"}]}]}`
	}
	image := strings.Repeat("iVBORw0KGgo", 1<<19/11)
	got, info := scan(t, chatOp, body(image))
	if got.Media != 1 || info.MediaBytes < len(image) || got.Bytes > 64 {
		t.Errorf("media %d of %d bytes, %d bytes of text", got.Media, info.MediaBytes, got.Bytes)
	}
	if len(got.Prompt) > 1024+64 {
		t.Errorf("the prompt has %d bytes, want at most 1,024 for the image", len(got.Prompt))
	}
	for _, other := range []string{"X" + image[1:], image[:len(image)-2] + "X" + image[len(image)-1:], image + "=", image[4:]} {
		if o, _ := scan(t, chatOp, body(other)); o.Prompt == got.Prompt {
			t.Error("another image has the same prompt")
		}
	}
	if again, _ := scan(t, chatOp, body(image)); again.Prompt != got.Prompt {
		t.Error("the same image has another prompt")
	}
}

func TestUTF16IsRoutedUnread(t *testing.T) {
	for _, mark := range []bool{false, true} {
		var body []byte
		text := `{"model":"m"}`
		if mark {
			text = "\ufeff" + text
		}
		for _, u := range utf16.Encode([]rune(text)) {
			body = append(body, byte(u), byte(u>>8))
		}
		var r scheduling.Request
		info, err := openai.NewScanner().Scan(chatOp, body, &r)
		if err != nil || !info.Opaque || r.PromptBytes != len(body)/2 || r.Model != "" {
			t.Errorf("error %v, info %+v, request %+v", err, info, r)
		}
	}
}

func TestScanLeavesNothingOfTheRequestBefore(t *testing.T) {
	scanner := openai.NewScanner()
	r := scheduling.Request{ID: 7, Headers: []scheduling.Header{{Name: "a"}}}
	full := `{"model":"m","cache_salt":"s","stream":true,"return_token_ids":true,"vllm_xargs":{"kv_cache_report_mode":"full"},"n":3,"max_tokens":5,"messages":[{"role":"user","content":"x"}]}`
	for _, body := range []string{full, `{"prompt":[1,2]}`, `{}`} {
		if _, err := scanner.Scan(chatOp, []byte(body), &r); err != nil {
			t.Fatal(err)
		}
		if _, err := scanner.Scan(completionsOp, []byte(body), &r); err != nil {
			t.Fatal(err)
		}
	}
	if r.Model != "" || r.CacheSalt != "" || r.Stream || r.KVReportFull || r.ReturnTokenIDs || r.Choices != 1 || r.MaxOutputTokens != 0 || r.PromptBytes != 0 ||
		len(r.Prompt) != 0 || len(r.Tokens) != 0 || r.TokenCount != 0 || r.Operation != completionsOp {
		t.Errorf("left over: %+v", r)
	}
	if r.ID != 7 || len(r.Headers) != 1 {
		t.Errorf("fields that come from elsewhere were changed: %+v", r)
	}
}

func TestNamesAreBoundedAndDoNotAliasTheBody(t *testing.T) {
	scanner := openai.NewScanner("known")
	var r scheduling.Request
	for i := range 3000 {
		body := fmt.Appendf(nil, `{"model":"m%d","cache_salt":"s%d"}`, i, i)
		if _, err := scanner.Scan(chatOp, body, &r); err != nil {
			t.Fatal(err)
		}
		clear(body)
		if r.Model != fmt.Sprint("m", i) || r.CacheSalt != fmt.Sprint("s", i) {
			t.Fatalf("model %q, salt %q after the body was overwritten", r.Model, r.CacheSalt)
		}
	}
	if models, salts := scanner.Names(); models != 1024 || salts != 1024 {
		t.Errorf("%d models and %d salts are held, want 1,024 each", models, salts)
	}
	long := strings.Repeat("m", 100_000)
	if _, err := scanner.Scan(chatOp, []byte(`{"model":"`+long+`"}`), &r); err != nil || r.Model != long {
		t.Errorf("a long model name: error %v, %d bytes", err, len(r.Model))
	}
}

func TestScanAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	scanner := openai.NewScanner()
	var r scheduling.Request
	for _, c := range append(shapes[:len(shapes):len(shapes)], struct {
		name string
		op   scheduling.Operation
		body string
		want scanned
	}{"salted", chatOp, `{"model":"some/model","cache_salt":"tenant-1","messages":[]}`, scanned{}}) {
		if strings.Contains(c.name, "escaped") || strings.Contains(c.name, "exponent") {
			continue // what has to be unescaped, or read as a float, is copied
		}
		body := []byte(c.body)
		allocs := testing.AllocsPerRun(20, func() {
			if _, err := scanner.Scan(c.op, body, &r); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 0 {
			t.Errorf("%s: %v allocations", c.name, allocs)
		}
	}
	for name, body := range benchBodies() {
		allocs := testing.AllocsPerRun(3, func() {
			if _, err := scanner.Scan(chatOp, body, &r); err != nil {
				t.Fatal(err)
			}
		})
		if allocs > 0 {
			t.Errorf("%s: %v allocations", name, allocs)
		}
	}
}

// TestC49_LongAndManyMessages checks what the scan finds in the bodies that hurt; how long it takes is a benchmark.
func TestC49_LongAndManyMessages(t *testing.T) {
	got, _ := scan(t, chatOp, string(benchBodies()["1MBoneChar"]))
	if got.Bytes != 1_000_000+len(`"user"`) {
		t.Errorf("%d bytes of prompt", got.Bytes)
	}
	var r scheduling.Request
	if _, err := openai.NewScanner().Scan(chatOp, benchBodies()["10000messages"], &r); err != nil {
		t.Fatal(err)
	}
	if len(r.Prompt) != 20_000 || r.PromptBytes != 10_000*10+5_000*(len(`"user"`)+len(`"assistant"`)) {
		t.Errorf("%d spans, %d bytes", len(r.Prompt), r.PromptBytes)
	}
	slashes := `{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat(`\\`, 1<<20) + `"}]}`
	if got, _ := scan(t, chatOp, slashes); got.Bytes != 2<<20+6 {
		t.Errorf("%d bytes of backslashes", got.Bytes)
	}
}
