package tokens

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/sluice-epp/sluice/cache/tokens/fields"
	"github.com/sluice-epp/sluice/cache/tokens/memo"
	"github.com/sluice-epp/sluice/scheduling"
)

// FuzzReading: whatever a body is, what is asked of servers for it is JSON where the body is; a body that is read again
// has the same name, and one with a field that matters has another.
func FuzzReading(f *testing.F) {
	for _, seed := range []string{
		`{"model":"m","messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"},{"role":"user","content":"z"}],"stream":true}`,
		`{"model":"m","prompt":["x"],"max_tokens":1,"truncate_prompt_tokens":3}`, `{"model":"m","input":"x","instructions":"y"}`,
		`{"system":"s","messages":[{"role":"user","content":[{"type":"text","text":"x"}]}],"tools":[]}`, `{"m\u006fdel":"m"}`, `{}`, `{"messages":[`,
		`{"messages":[{"content":[{"type":"image_url","image_url":{"url":"https://x"}}]}],"mm_payload":"tensors"}`,
	} {
		for op := range scheduling.OperationMessages + 1 {
			f.Add(seed, uint8(op))
		}
	}
	f.Fuzz(func(t *testing.T, body string, op uint8) {
		r := &scheduling.Request{Operation: scheduling.Operation(op % 6), Model: "m", Body: []byte(body)}
		rd := &reading{}
		if !rd.read(r, 7) {
			return
		}
		whole, keys := rd.whole, len(rd.keys)
		if keys > 0 && rd.keys[keys-1] != whole || keys != len(rd.messages) {
			t.Fatalf("%d keys of %d messages", keys, len(rd.messages))
		}
		media := rd.media()
		rd.plainFrom(0)
		q := rd.query("other", media)
		valid := json.Valid(bytes.TrimPrefix(r.Body, []byte("\xef\xbb\xbf")))
		check := func(what string, pieces [][]byte) {
			var got map[string]any
			if err := json.Unmarshal(bytes.Join(pieces, nil), &got); valid && pieces != nil && (err != nil || got["model"] != "other") {
				t.Fatalf("%q is asked to %s as %q: %v", body, what, bytes.Join(pieces, nil), err)
			}
		}
		check("render", q.Render)
		check("tokenize", q.Tokenize)
		if media != fields.MediaNone && q.Tokenize != nil {
			t.Fatal("media by the tokenize route")
		}
		for known := 2; known < len(rd.messages); known++ {
			if c, ok := rd.cutBehind(known, 7); ok {
				check("render", rd.query("other", media, fields.Edit{At: c.dropped}, fields.Edit{At: c.behind}).Render)
			}
		}
		if known, n := rd.beginning(memo.NewStore(1 << 20).Get); known != nil || n != 0 {
			t.Fatal("an empty memo holds a beginning")
		}
		again := &reading{}
		if !again.read(r, 7) || again.whole != whole || again.read(r, 8) && again.whole == whole {
			t.Fatal("the name depends on something else than body and seed")
		}
		if rd.doc.Escaped {
			return
		}
		r.Body = bytes.Join(rd.doc.AppendPieces(nil, []fields.Edit{rd.doc.With("something new", []byte("1"))}), nil)
		if again.read(r, 7) && again.whole == whole && !rd.doc.Is("something new", "1") {
			t.Fatalf("%q has the name of %q", r.Body, body)
		}
	})
}

func BenchmarkMemoHit(b *testing.B) {
	e := &engine{}
	h := newExactHarness(b, e, nil)
	defer h.close()
	r := chatRequest(`{"model":"m","messages":[` + string(bytes.Repeat([]byte(`{"role":"user","content":"`+string(bytes.Repeat([]byte("word "), 400))+`"},`), 100)) +
		`{"role":"user","content":"x"}],"stream":true}`)
	h.get(r)
	p := h.scheduler.Plugin(TypeName).(*Producer)
	c := h.scheduler.Begin(h.pool.Snapshot(), r, 0)
	b.SetBytes(int64(len(r.Body)))
	b.ReportAllocs()
	for b.Loop() {
		if err := p.Produce(b.Context(), c); err != nil {
			b.Fatal(err)
		}
	}
}
