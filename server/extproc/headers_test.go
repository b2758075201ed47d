package extproc

import (
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestC30_ValueOrRawValue(t *testing.T) {
	for name, h := range map[string]*corev3.HeaderValue{
		"raw_value": {Key: ":path", RawValue: []byte("/v1/chat/completions")},
		"value":     {Key: ":path", Value: "/v1/chat/completions"},
		"mixed":     {Key: ":Path", RawValue: []byte("/v1/chat/completions")},
	} {
		b := newBench(t, options{})
		c := b.call(t, modeFullDuplex, modeNone)
		m := headerMap(":method", "POST", "x-bytes", "\xff\xfe", "x-twice", "1", "x-twice", "2")
		m.Headers = append(m.Headers, h)
		c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestHeaders{
			RequestHeaders: &extprocv3.HttpHeaders{Headers: m}}})
		c.requestBody("no JSON", true) // refused only where the path was read
		if status, reason, _ := c.refused(c.recv()); status != 400 || reason != ReasonNotJSON {
			t.Errorf("%s: got %d %s", name, status, reason)
		}
	}
}

// The answer's headers are read as the request's are, in either field and whatever the case of their names.
func TestC30_AnswersHeaders(t *testing.T) {
	raw := func(k, v string) *corev3.HeaderValue { return &corev3.HeaderValue{Key: k, RawValue: []byte(v)} }
	plain := func(k, v string) *corev3.HeaderValue { return &corev3.HeaderValue{Key: k, Value: v} }
	read := scheduling.Usage{PromptTokens: 5, CompletionTokens: 2, CachedTokens: -1}
	for name, tt := range map[string]struct {
		headers []*corev3.HeaderValue
		want    scheduling.Outcome
		encoded int
	}{
		"lower case":  {[]*corev3.HeaderValue{raw(":status", "201"), raw("content-type", "application/json")}, scheduling.Outcome{Status: 201, Usage: read}, 0},
		"mixed case":  {[]*corev3.HeaderValue{raw(":Status", "201"), raw("Content-Type", "application/json")}, scheduling.Outcome{Status: 201, Usage: read}, 0},
		"value alone": {[]*corev3.HeaderValue{plain(":STATUS", "201"), plain("CONTENT-TYPE", "application/json")}, scheduling.Outcome{Status: 201, Usage: read}, 0},
		"nothing to be read": {[]*corev3.HeaderValue{raw(":Status", "200"), raw("Content-Type", "text/html")},
			scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, 0},
		"the last of two": {[]*corev3.HeaderValue{raw(":status", "200"), raw("Content-Type", "application/json"), raw("content-type", "text/html")},
			scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, 0},
		"encoded": {[]*corev3.HeaderValue{raw(":Status", "200"), raw("Content-Type", "application/json"), raw("Content-Encoding", "gzip")},
			scheduling.Outcome{Status: 200, Usage: scheduling.UnknownUsage}, 1},
		"an error": {[]*corev3.HeaderValue{raw(":Status", "500"), raw("Content-Type", "application/json")},
			scheduling.Outcome{Status: 500, Reason: scheduling.EndError, Usage: read}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, options{})
			c, _ := b.picked(t, modeFullDuplex, 400)
			c.send(&extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_ResponseHeaders{
				ResponseHeaders: &extprocv3.HttpHeaders{Headers: &corev3.HeaderMap{Headers: tt.headers}}}})
			c.recv()
			c.echo(`{"usage":{"prompt_tokens":5,"completion_tokens":2}}`, true)
			b.settles(t, 0, 0)
			if diff := cmp.Diff([]scheduling.Outcome{tt.want}, b.notes.ended()); diff != "" {
				t.Errorf("outcomes (-want +got):\n%s", diff)
			}
			if n := b.notes.count(NoteEncodedAnswer); n != tt.encoded {
				t.Errorf("%d answers count as encoded, want %d", n, tt.encoded)
			}
		})
	}
}

func TestC08_IdenticalRequestIDs(t *testing.T) {
	long := strings.Repeat("x", 64<<10)
	requests := []struct {
		ids  []string // values of x-request-id
		size int      // of the prompt
	}{{[]string{"dup-1"}, 4000}, {[]string{"dup-1"}, 200}, {[]string{"dup-1"}, 200}, {nil, 200}, {[]string{""}, 200}, {[]string{long}, 200}}
	for name, order := range map[string][]int{
		"as they came": {0, 1, 2, 3, 4, 5}, "the short one first": {1, 0, 2, 3, 4, 5}, "the last one first": {5, 4, 3, 2, 1, 0},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, options{})
			calls, tokens := make([]*call, len(requests)), make([]int64, len(requests))
			var all int64
			for i, r := range requests {
				headers := []string{":method", "POST", ":path", "/v1/chat/completions"}
				for _, id := range r.ids {
					headers = append(headers, "x-request-id", id)
				}
				c := b.call(t, modeFullDuplex, modeFullDuplex)
				c.requestHeaders(false, headers...)
				c.requestBody(chat(r.size), true)
				c.pickOf(c.recv())
				c.echoed(false)
				_, sum := b.load()
				calls[i], tokens[i], all = c, sum-all, sum
			}
			ids := b.notes.identities()
			slices.Sort(ids)
			if ids = slices.Compact(ids); len(ids) != len(requests) {
				t.Errorf("%d requests have %d ids: %v", len(requests), len(ids), ids)
			}
			for n, i := range order {
				calls[i].responseHeaders(true, ":status", "204")
				calls[i].recv()
				all -= tokens[i]
				b.settles(t, int64(len(order)-1-n), all) // its own tokens, and nobody else's
			}
		})
	}
}
