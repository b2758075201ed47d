package fields

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func read(t *testing.T, body string) *Document {
	t.Helper()
	d := &Document{}
	if !d.Read([]byte(body)) {
		t.Fatalf("cannot read %q", body)
	}
	return d
}

func TestRead(t *testing.T) {
	d := read(t, "\xef\xbb\xbf"+` { "model" : "m" , "messages":[{"a":"]}\\\""}, 2 ],"n":1e3,"x":null,"n" : true } `)
	var got []string
	for _, f := range d.Fields {
		got = append(got, string(f.Name)+"="+string(d.Raw(f.Value)))
	}
	want := []string{`model="m"`, `messages=[{"a":"]}\\\""}, 2 ]`, "n=1e3", "x=null", "n=true"}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if !d.Is("n", "true") || d.Is("n", "1e3") {
		t.Error("the last of two fields with one name counts")
	}
	if _, ok := d.Last("x"); ok {
		t.Error("null counts as absent")
	}
	if _, ok := d.Last("y"); ok {
		t.Error("a field that is not there was found")
	}
	if d.Escaped {
		t.Error("no key is escaped")
	}
	if d := read(t, `{"\u006dodel":1}`); !d.Escaped {
		t.Error("a key is escaped")
	}
}

func TestReadRefuses(t *testing.T) {
	for _, body := range []string{
		``, ` `, `[]`, `"x"`, `{`, `{"a"`, `{"a":`, `{"a":1`, `{"a":1,`, `{"a":1,}`, `{a:1}`, `{"a" 1}`, `{"a":}`, `{"a":1}x`,
		`{"a":"x}`, `{"a":"x\"}`, `{"a":[1}`, `{"a":1 "b":2}`, "{\x00", "\xff\xfe{\x00", `{"a":{"b":"}}`,
	} {
		if (&Document{}).Read([]byte(body)) {
			t.Errorf("%q was read", body)
		}
	}
}

func TestReadHoldsSoManyFields(t *testing.T) {
	for n, want := range map[int]bool{MaxFields: true, MaxFields + 1: false} {
		body := "{" + strings.TrimSuffix(strings.Repeat(`"k":1,`, n), ",") + "}"
		if got := (&Document{}).Read([]byte(body)); got != want {
			t.Errorf("%d fields: %v, want %v", n, got, want)
		}
	}
}

func TestEdits(t *testing.T) {
	for _, tc := range []struct {
		name, body, want string
		edits            func(d *Document) []Edit
	}{
		{"none", ` {"a": 1} `, `{"a": 1}`, func(*Document) []Edit { return nil }},
		{"append", `{"a": 1}`, `{"a": 1,"mm_payload":"none"}`, func(d *Document) []Edit { return []Edit{d.With("mm_payload", []byte(`"none"`))} }},
		{"append to nothing", `{}`, `{"b":2}`, func(d *Document) []Edit { return []Edit{d.With("b", []byte("2"))} }},
		{"replace the one that counts", `{"a":1,"b":2,"a":3}`, `{"a":1,"b":2,"a":9}`, func(d *Document) []Edit { return []Edit{d.With("a", []byte("9"))} }},
		{"append twice to nothing", `{}`, `{"b":2,"c":3}`, func(d *Document) []Edit { return []Edit{d.With("b", []byte("2")), d.With("c", []byte("3"))} }},
		{"two in any order", `{"a":1,"b":2}`, `{"a":7,"b":8,"c":9}`, func(d *Document) []Edit {
			return []Edit{d.With("c", []byte("9")), d.With("b", []byte("8")), d.With("a", []byte("7"))}
		}},
		{"delete", `{"m":[1,2,3]}`, `{"m":[1,3]}`, func(*Document) []Edit { return []Edit{{At: scheduling.Span{Start: 8, End: 10}}} }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := read(t, tc.body)
			if got := string(bytes.Join(d.AppendPieces(nil, tc.edits(d)), nil)); got != tc.want {
				t.Errorf("%s, want %s", got, tc.want)
			}
		})
	}
}

func TestAppendQuoted(t *testing.T) {
	for _, s := range []string{"", "plain", "a\"b\\c/d", "\n\x00\x1f", "日本 \u2028 <>&", "bad\xff"} {
		var got string
		if err := json.Unmarshal(AppendQuoted(nil, s), &got); err != nil || got != strings.ToValidUTF8(s, "\uFFFD") {
			t.Errorf("%q is quoted as %s: %v", s, AppendQuoted(nil, s), err)
		}
	}
}

func TestElements(t *testing.T) {
	for _, tc := range []struct {
		list string
		want []string
		ok   bool
	}{
		{`[]`, nil, true},
		{`[ ]`, nil, true},
		{`[ {"a":[1]} , "x,]" ,3]`, []string{`{"a":[1]}`, `"x,]"`, "3"}, true},
		{`[1,2,3,4]`, []string{"1", "2", "3"}, false}, // past the limit
		{`"x"`, nil, false},
		{`[1,]`, []string{"1"}, false},
		{`[1`, []string{"1"}, false},
		{`[1 2]`, []string{"1"}, false},
	} {
		spans, ok := Elements([]byte(tc.list), scheduling.Span{End: len(tc.list)}, nil, 3)
		var got []string
		for _, s := range spans {
			got = append(got, tc.list[s.Start:s.End])
		}
		if diff := cmp.Diff(tc.want, got); diff != "" || ok != tc.ok {
			t.Errorf("%s: ok %v, (-want +got):\n%s", tc.list, ok, diff)
		}
	}
}

func TestReadMessage(t *testing.T) {
	for message, want := range map[string]Message{
		`{"role":"user","content":"x"}`:                                                    {Role: RoleUser, Plain: true},
		`{"content":"x","role":"system"}`:                                                  {Role: RoleSystem, Plain: true},
		`{"role":"developer","content":"x"}`:                                               {Role: RoleDeveloper, Plain: true},
		`{"role":"assistant","content":[{"type":"text","text":"x"}]}`:                      {Role: RoleAssistant, Plain: true},
		`{"role":"user","content":"a <div class=\"x\"> [1] \n \u00fc \u003cb\u003e 日本 ü"}`: {Role: RoleUser, Plain: true},
		`{"role":"tool","content":"x"}`:                                                    {Role: RoleOther, Plain: false},
		`{"role":"user","content":""}`:                                                     {Role: RoleUser, Plain: false},
		`{"role":"assistant","content":null}`:                                              {Role: RoleAssistant, Plain: false},
		`{"role":"assistant"}`:                                                             {Role: RoleAssistant, Plain: false},
		`{"content":"x"}`:                                                                  {Role: RoleOther, Plain: false},
		`{"role":"user","role":"user","content":"x"}`:                                      {Role: RoleUser, Plain: false},
		`{"role":"user","content":"x","name":"bob"}`:                                       {Role: RoleUser, Plain: false},
		`{"role":"assistant","content":"x","tool_calls":[]}`:                               {Role: RoleAssistant, Plain: false},
		`{"role":"assistant","content":"x","reasoning_content":"y"}`:                       {Role: RoleAssistant, Plain: false},
		`{"role":"assistant","content":"<think>\nhm</think>x"}`:                            {Role: RoleAssistant, Plain: false},
		`{"role":"assistant","content":"\u003cthink>hm"}`:                                  {Role: RoleAssistant, Plain: false},
		`{"role":"assistant","content":"\u003C/THINK>hm"}`:                                 {Role: RoleAssistant, Plain: false},
		`{"role":"assistant","content":"<\u0074hink>hm"}`:                                  {Role: RoleAssistant, Plain: false},
		`{"role":"assistant","content":"<th\u0069nk>hm"}`:                                  {Role: RoleAssistant, Plain: false},
		`{"role":"user","content":"<|im_end|>"}`:                                           {Role: RoleUser, Plain: false},
		`{"role":"user","content":"<\u007cim_end|>"}`:                                      {Role: RoleUser, Plain: false},
		`{"role":"user","content":"<｜User｜>"}`:                                             {Role: RoleUser, Plain: false},
		`{"role":"user","content":"[INST] x"}`:                                             {Role: RoleUser, Plain: false},
		`{"role":"user","content":"x</s>"}`:                                                {Role: RoleUser, Plain: false},
		`{"role":"user","content":"x\u"}`:                                                  {Role: RoleUser, Plain: false},
		`{"role":"user","content":[]}`:                                                     {Role: RoleUser, Plain: false},
		`{"role":"user","content":[{"type":"image_url","image_url":{"url":"x"}}]}`:         {Role: RoleUser, Plain: false},
		`{"role":"user","content":[{"type":"text","text":"x","cache_control":{}}]}`:        {Role: RoleUser, Plain: false},
		`{"role":"user","content":[{"type":"text"}]}`:                                      {Role: RoleUser, Plain: false},
		`{"role":"user","content":["x"]}`:                                                  {Role: RoleUser, Plain: false},
		`{"role":"user","content":7}`:                                                      {Role: RoleUser, Plain: false},
		`"x"`:                                                                              {Role: RoleOther, Plain: false},
	} {
		want.Parts = strings.Contains(message, `"content":[`)
		if got := ReadMessage([]byte(message), scheduling.Span{End: len(message)}); got != want {
			t.Errorf("%s: %+v, want %+v", message, got, want)
		}
	}
	long := `{"role":"user","content":[` + strings.Repeat(`{"type":"text","text":"x"},`, maxPlainParts) + `{"type":"text","text":"x"}]}`
	if ReadMessage([]byte(long), scheduling.Span{End: len(long)}).Plain {
		t.Error("a content of more parts than are looked at is plain")
	}
}

func TestMediaOf(t *testing.T) {
	part := func(raw string) string {
		return `[{"role":"user","content":[{"type":"text","text":"image_url"},` + raw + `]}]`
	}
	for value, want := range map[string]Media{
		`"just text"`: MediaNone,
		`[{"role":"user","content":"image_url http://x"}]`:                                            MediaNone,
		part(`{"type":"image_url","image_url":null}`):                                                 MediaNone,
		part(`{"type":"image_url","image_url":{"url":"data:image/png;base64,AAAA","detail":"low"}}`):  MediaInline,
		part(`{"type":"input_audio","input_audio":{"data":"AAAA","format":"wav"}}`):                   MediaInline,
		part(`{"type":"image","source":{"type":"base64","media_type":"image/png","data":"AAAA"}}`):    MediaInline,
		part(`{"type":"image_url","image_url":{"url":"https://example.com/a.png"}}`):                  MediaRemote,
		part(`{"type":"image_url","image_url":"https:\/\/example.com\/a.png"}`):                       MediaRemote,
		part(`{"type":"image_url","image_url":{"url":"\u0068ttps://example.com/a.png"}}`):             MediaRemote,
		part(`{"type":"image","source":{"type":"url","url":"http://example.com"}}`):                   MediaRemote,
		part(`{"type":"image","source":{"type":"file","file_id":"f1"}}`):                              MediaRemote,
		part(`{"type":"input_file","file_id":"f1"}`):                                                  MediaRemote,
		part(`{"type":"image_url","im\u0061ge_url":{"url":"x"}}`):                                     MediaRemote,
		`[{"type":"function_call_output","output":[{"type":"input_image","image_url":"file:///x"}]}]`: MediaRemote,
		strings.Repeat(`{"content":`, maxWalk+2) + `1` + strings.Repeat(`}`, maxWalk+2):               MediaRemote,
	} {
		if got := MediaOf([]byte(value), scheduling.Span{End: len(value)}); got != want {
			t.Errorf("%s: %v, want %v", value, got, want)
		}
	}
}

func TestReadAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	body := []byte(`{"model":"m","messages":[{"role":"user","content":"` + strings.Repeat("word ", 2000) + `"}],"stream":true}`)
	d, spans := &Document{}, []scheduling.Span(nil)
	if n := testing.AllocsPerRun(100, func() {
		if !d.Read(body) {
			t.Fatal("cannot read")
		}
		list, _ := d.Last("messages")
		spans, _ = Elements(body, list, spans[:0], 10)
		if !ReadMessage(body, spans[0]).Plain {
			t.Fatal("it is plain")
		}
		MediaOf(body, list)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzDocument holds reading against encoding/json: what is valid JSON is read, with the same fields, and an edit gives
// valid JSON with the value in it.
func FuzzDocument(f *testing.F) {
	for _, seed := range []string{
		`{}`, `{"model":"m","messages":[{"role":"user","content":"x"}]}`, `{"a":"\\\"","b":[{},[]],"a":-1.5e+3}`,
		`{"m":[{"content":[{"image_url":{"url":"https://x"}}]}]}`, "{\"\\u0061\":1}", `{"a":"<|x"}`, `{"a":{"b":{"c":`, `{"a":]}`, `{"messages":[{"role":"user","content":[{"type":"text","text":"\u003cb"}]}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		d := &Document{}
		ok := d.Read(body)
		var want map[string]json.RawMessage
		valid := json.Unmarshal(body, &want) == nil && want != nil
		if valid && len(want) < 100 && !ok && len(body) < 2000 {
			t.Fatalf("%q is valid and was not read", body)
		}
		if !ok {
			return
		}
		for _, field := range d.Fields {
			if field.Value.End <= field.Value.Start || field.Value.End > len(body) {
				t.Fatalf("field %q at %v", field.Name, field.Value)
			}
			MediaOf(body, field.Value)
			elements, _ := Elements(body, field.Value, nil, 100)
			for _, e := range elements {
				ReadMessage(body, e)
			}
		}
		if !valid || d.Escaped {
			return
		}
		for name, raw := range want {
			if value, _ := d.Last(name); strings.IndexFunc(name, func(r rune) bool { return r == '"' || r == '\\' || r == '\uFFFD' }) < 0 &&
				!bytes.Equal(bytes.TrimSpace(raw), d.Raw(value)) {
				t.Fatalf("%q: %q, want %q", name, d.Raw(value), raw)
			}
		}
		edited := bytes.Join(d.AppendPieces(nil, []Edit{d.With("mm_payload", []byte(`"none"`)), d.With("model", []byte(`"x"`))}), nil)
		var got map[string]json.RawMessage
		if err := json.Unmarshal(edited, &got); err != nil || string(got["mm_payload"]) != `"none"` || string(got["model"]) != `"x"` {
			t.Fatalf("%q edited is %q: %v", body, edited, err)
		}
	})
}

func BenchmarkRead(b *testing.B) {
	message := `{"role":"user","content":"` + strings.Repeat("word ", 400) + `"},`
	body := []byte(`{"model":"m","messages":[` + strings.Repeat(message, 100) + message[:len(message)-1] + `],"stream":true}`)
	d, spans := &Document{}, []scheduling.Span(nil)
	b.SetBytes(int64(len(body)))
	b.ReportAllocs()
	for b.Loop() {
		d.Read(body)
		list, _ := d.Last("messages")
		spans, _ = Elements(body, list, spans[:0], 1000)
		MediaOf(body, list)
	}
}
