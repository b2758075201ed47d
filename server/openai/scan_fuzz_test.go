package openai_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

// emptied is body with the contents of every string removed and the words that only Python takes replaced by null: what
// the scanner judges is left, and what it leaves to the engine is gone.
func emptied(body []byte) []byte {
	body = bytes.TrimPrefix(body, []byte("\ufeff"))
	var out []byte
	for i := 0; i < len(body); i++ {
		out = append(out, body[i])
		if body[i] != '"' {
			continue
		}
		for i++; i < len(body) && body[i] != '"'; i++ {
			if body[i] == '\\' {
				i++
			}
		}
		if i < len(body) {
			out = append(out, '"')
		}
	}
	for _, word := range []string{"-Infinity", "Infinity", "NaN"} {
		out = bytes.ReplaceAll(out, []byte(word), []byte("null"))
	}
	return out
}

func isJSON(body []byte) bool {
	return jsontext.Value(emptied(body)).IsValid(jsontext.AllowDuplicateNames(true))
}

func seedBodies(tb testing.TB) [][]byte {
	tb.Helper()
	var seeds [][]byte
	for _, c := range shapes {
		seeds = append(seeds, []byte(c.body))
	}
	files, err := filepath.Glob("testdata/requests/*.json")
	if err != nil || len(files) == 0 {
		tb.Fatalf("testdata/requests: %v, %d files", err, len(files))
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			tb.Fatal(err)
		}
		seeds = append(seeds, b)
	}
	return append(seeds,
		[]byte(strings.Repeat(`{"messages":[`, 300)), []byte(strings.Repeat("[", 600)+strings.Repeat("]", 600)),
		[]byte(`{"model":"a\u0062\ud83d\ude00","\u006dodel":"z","cache_salt":"\ud800"}`),
		[]byte(`{"a":NaN,"b":[-Infinity,1.5e-3,-0,0.5,1E+9]}`), []byte("{\x00\"\x00"), []byte("01"), []byte(`{"a":1,}`))
}

func FuzzScan(f *testing.F) {
	for i, body := range seedBodies(f) {
		f.Add(uint8(i), body, uint16(len(body)/2))
	}
	scanner := openai.NewScanner()
	f.Fuzz(func(t *testing.T, op uint8, body []byte, cut uint16) {
		operation := scheduling.Operation(op % 6)
		var got scheduling.Request
		info, err := scanner.Scan(operation, body, &got)
		checkSpans(t, body, &got, info)
		if info.Opaque || operation == scheduling.OperationOther {
			if err != nil {
				t.Fatalf("error for a body that is never refused: %v", err)
			}
			return
		}
		valid := isJSON(body)
		if !info.TooDeep && valid != (err == nil) {
			t.Fatalf("jsontext accepts: %v, the scan says: %v", valid, err)
		}
		if err != nil && !errors.Is(err, openai.ErrNotJSON) {
			t.Fatalf("unexpected kind of error: %v", err)
		}
		if valid {
			checkValid(t, operation, body, &got, info)
			checkCut(t, scanner, operation, body, int(cut))
		}
	})
}

// checkSpans checks what must hold for any bytes.
func checkSpans(t *testing.T, body []byte, r *scheduling.Request, info openai.Info) {
	t.Helper()
	for _, s := range append(slices.Clone(r.Prompt), info.Model, info.Session) {
		if s.Start < 0 || s.End > len(body) || s.End < s.Start {
			t.Fatalf("span %v is outside of a body of %d bytes", s, len(body))
		}
	}
	for _, s := range r.Prompt {
		if s.End == s.Start {
			t.Fatal("empty span")
		}
	}
	if r.PromptBytes < 0 || r.PromptBytes > len(body) || r.Choices < 1 || r.TokenCount < len(r.Tokens) {
		t.Fatalf("impossible request %+v", r)
	}
}

// checkValid compares with encoding/json and with the reference.
func checkValid(t *testing.T, op scheduling.Operation, body []byte, got *scheduling.Request, info openai.Info) {
	t.Helper()
	var fields map[string]any
	if utf8.Valid(body) && json.Unmarshal(body, &fields) == nil {
		checkFields(t, fields, got)
	}
	tree, ok := parseTree(body)
	if !ok || info.TooDeep {
		return
	}
	want := reference(op, tree)
	if diff := cmp.Diff(want.spans, got.Prompt, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("prompt spans (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff(want.tokens, got.Tokens, cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	if want.bytes != got.PromptBytes || want.count != got.TokenCount || want.media != info.Media {
		t.Errorf("bytes %d, tokens %d, media %d; want %d, %d, %d",
			got.PromptBytes, got.TokenCount, info.Media, want.bytes, want.count, want.media)
	}
}

func checkFields(t *testing.T, fields map[string]any, got *scheduling.Request) {
	t.Helper()
	if model, _ := fields["model"].(string); model != got.Model && !strings.Contains(model, "\ufffd") {
		t.Errorf("model %q, want %q", got.Model, model)
	}
	if salt, _ := fields["cache_salt"].(string); salt != got.CacheSalt && len(salt) <= 4096 &&
		!strings.Contains(salt, "\ufffd") {
		t.Errorf("salt %q, want %q", got.CacheSalt, salt)
	}
	if stream, ok := fields["stream"].(bool); ok && stream != got.Stream {
		t.Errorf("stream %v, want %v", got.Stream, stream)
	}
	checkEngineFields(t, fields, got)
	name := "max_tokens"
	if got.Operation == scheduling.OperationResponses {
		name = "max_output_tokens"
	} else if _, ok := fields["max_completion_tokens"]; ok && got.Operation == scheduling.OperationChat {
		return
	}
	if n, ok := fields[name].(float64); ok && n >= 1 && n < 1e6 && n == float64(int(n)) && int(n) != got.MaxOutputTokens {
		t.Errorf("%s %d, want %v", name, got.MaxOutputTokens, n)
	}
}

// checkEngineFields compares what only some operations have.
func checkEngineFields(t *testing.T, fields map[string]any, got *scheduling.Request) {
	t.Helper()
	asked, _ := fields["return_token_ids"].(bool)
	asked = asked && (got.Operation == scheduling.OperationChat || got.Operation == scheduling.OperationCompletions)
	extras, _ := fields["vllm_xargs"].(map[string]any)
	full := extras["kv_cache_report_mode"] == "full" && got.Operation != scheduling.OperationEmbeddings
	if asked != got.ReturnTokenIDs || full != got.KVReportFull {
		t.Errorf("token ids %v, full report %v; want %v, %v", got.ReturnTokenIDs, got.KVReportFull, asked, full)
	}
}

// checkCut checks that any beginning of a valid body is read without error.
func checkCut(t *testing.T, s *openai.Scanner, op scheduling.Operation, body []byte, cut int) {
	t.Helper()
	cut = min(cut, len(body))
	var got scheduling.Request
	info, err := s.ScanPartial(op, body[:cut], &got)
	if err != nil {
		t.Fatalf("cut at %d of %q: %v", cut, body, err)
	}
	checkSpans(t, body[:cut], &got, info)
}

// promptText is the concatenation of a request's spans.
func promptText(r *scheduling.Request) string {
	var b strings.Builder
	for _, s := range r.Prompt {
		b.Write(r.Body[s.Start:s.End])
	}
	return b.String()
}
