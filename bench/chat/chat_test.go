package chat_test

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/openai"
)

func TestBodies(t *testing.T) {
	for _, size := range []int{chat.MinSize, 1 << 10, 16 << 10, 256 << 10} {
		set := chat.Set{Bodies: 64, Groups: 8, Size: size}
		bodies, err := set.Make()
		if err != nil {
			t.Fatal(err)
		}
		again, err := set.Make()
		if err != nil {
			t.Fatal(err)
		}
		distinct := map[string]bool{}
		for i, b := range bodies {
			distinct[string(b)] = true
			if len(b) != size || !json.Valid(b) {
				t.Errorf("size %d, body %d: %d bytes, valid JSON: %t", size, i, len(b), json.Valid(b))
			}
			if !bytes.Equal(b, again[i]) {
				t.Errorf("size %d, body %d differs from one making to the next", size, i)
			}
			half := size / 2
			sameGroup := bytes.Equal(b[:half], bodies[(i+8)%64][:half])
			otherGroup := bytes.Equal(b[:half], bodies[(i+1)%64][:half])
			if !sameGroup || otherGroup {
				t.Errorf("size %d, body %d: first half as its group's: %t, as another group's: %t", size, i, sameGroup, otherGroup)
			}
		}
		if len(distinct) != len(bodies) {
			t.Errorf("size %d: %d distinct bodies, want %d", size, len(distinct), len(bodies))
		}
	}
}

func TestBodiesAreConversations(t *testing.T) {
	bodies, err := chat.Set{Bodies: 1, Groups: 1, Size: 16 << 10}.Make()
	if err != nil {
		t.Fatal(err)
	}
	var body struct {
		Stream   bool
		Messages []struct{ Role, Content string }
	}
	if err := json.Unmarshal(bodies[0], &body); err != nil {
		t.Fatal(err)
	}
	last := body.Messages[len(body.Messages)-1]
	if !body.Stream || len(body.Messages) < 5 || body.Messages[0].Role != "system" || last.Role != "user" {
		t.Errorf("streamed: %t, %d messages, from %s to %s", body.Stream, len(body.Messages), body.Messages[0].Role, last.Role)
	}
	if !strings.ContainsAny(last.Content+body.Messages[0].Content, "\"\n\\") {
		t.Error("no escape in the text: bodies of real clients have them")
	}
}

func TestBadSets(t *testing.T) {
	for _, set := range []chat.Set{{1, 1, chat.MinSize - 1}, {0, 1, 1024}, {1, 0, 1024}} {
		if _, err := set.Make(); err == nil {
			t.Errorf("%+v made bodies", set)
		}
	}
}

// What the picker reads out of an answer is what was put in.
func TestAnswer(t *testing.T) {
	for _, n := range []int{2, 3, 200} {
		var r openai.Response
		r.Start(200, []byte("text/event-stream"), nil)
		chunks := chat.Answer(n, 1234)
		for i, c := range chunks {
			r.Push(c)
			if !r.FirstToken() {
				t.Errorf("%d chunks: no first token after chunk %d", n, i)
			}
		}
		want := scheduling.Usage{PromptTokens: 1234, CompletionTokens: n - 1, CachedTokens: -1}
		if got := r.Usage(); len(chunks) != n || got != want {
			t.Errorf("%d chunks: got %d with usage %+v, want %+v", n, len(chunks), got, want)
		}
	}
}
