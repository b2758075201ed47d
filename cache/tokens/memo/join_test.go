package memo

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/zeebo/xxh3"
	"pgregory.net/rapid"
)

// turn is a message of a conversation.
type turn struct{ role, text string }

// words renders a text to tokens: one a word, one a control token.
func words(text string) (tokens []uint32) {
	for _, word := range strings.Fields(text) {
		tokens = append(tokens, uint32(xxh3.HashString(word)))
	}
	return tokens
}

// The templates: what a conversation is written as.
var templates = map[string]struct {
	render func(tools, date string, turns []turn) string
	// joins says that conversations can be joined: Join takes them and is right.
	joins bool
	// lies says that Join may take them and be wrong.
	lies bool
}{
	"one message behind the other": {joins: true, render: func(tools, date string, turns []turn) string {
		return "<s> " + tools + " " + each(turns, func(_ int, t turn) string { return "<" + t.role + "> " + t.text + " <end> " }) + "<assistant>"
	}},
	"date and tools in front": {joins: true, render: func(tools, date string, turns []turn) string {
		return "<s> <system> today is " + date + " " + tools + " <end> " +
			each(turns, func(_ int, t turn) string { return "<" + t.role + "> " + t.text + " <end> " }) + "<assistant> :"
	}},
	"an end only behind answers": {joins: true, render: func(tools, date string, turns []turn) string {
		return "<s> " + tools + each(turns, func(_ int, t turn) string {
			if t.role == "assistant" {
				return t.text + " </s> "
			}
			return "[I] " + t.text + " [/I] "
		})
	}},
	"tools before the last question": {render: func(tools, date string, turns []turn) string {
		return "<s> " + each(turns, func(i int, t turn) string {
			if i == len(turns)-1 {
				return "[T] " + tools + " [/T] [I] " + t.text + " [/I] "
			}
			return "[I] " + t.text + " [/I] "
		})
	}},
	"the system text with the last question": {render: func(tools, date string, turns []turn) string {
		system := ""
		return "<s> " + each(turns, func(i int, t turn) string {
			switch {
			case t.role == "system":
				system = t.text
				return ""
			case i == len(turns)-1:
				return "[I] " + system + " " + t.text + " [/I] "
			}
			return "[I] " + t.text + " [/I] "
		})
	}},
	"numbered turns": {lies: true, render: func(tools, date string, turns []turn) string {
		return "<s> " + each(turns, func(i int, t turn) string { return fmt.Sprintf("<%s> %d %s <end> ", t.role, i, t.text) }) + "<assistant>"
	}},
	"a count in front": {render: func(tools, date string, turns []turn) string {
		return fmt.Sprintf("<s> %d messages ", len(turns)) +
			each(turns, func(i int, t turn) string { return "<" + t.role + "> " + t.text + " <end> " }) + "<assistant>"
	}},
	"only the last six turns": {lies: true, render: func(tools, date string, turns []turn) string {
		return "<s> " + each(turns[max(0, len(turns)-6):], func(_ int, t turn) string { return "<" + t.role + "> " + t.text + " <end> " }) + "<assistant>"
	}},
	"questions in upper case once answered": {lies: true, render: func(tools, date string, turns []turn) string {
		return "<s> " + each(turns, func(i int, t turn) string {
			if i < len(turns)-3 {
				return strings.ToUpper(t.text) + " <end> "
			}
			return t.text + " <end> "
		}) + "<assistant>"
	}},
}

func each(turns []turn, f func(i int, t turn) string) string {
	var b strings.Builder
	for i, t := range turns {
		b.WriteString(f(i, t))
	}
	return b.String()
}

// conversation draws a conversation, the number of its messages that are known, and of its system messages.
func conversation(t *rapid.T) (turns []turn, known, system int) {
	text := func(label string) string {
		return strings.Join(rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "c", "the", "what"}), 1, 12).Draw(t, label), " ")
	}
	if rapid.Bool().Draw(t, "system") {
		turns, system = append(turns, turn{"system", text("system text")}), 1
	}
	exchanges := rapid.IntRange(2, 8).Draw(t, "exchanges")
	for i := range exchanges {
		turns = append(turns, turn{"user", text("question")})
		if i < exchanges-1 {
			turns = append(turns, turn{"assistant", text("answer")})
		}
	}
	back := rapid.IntRange(1, min(2, exchanges-1)).Draw(t, "new exchanges")
	return turns, len(turns) - 2*back, system
}

// reduced is a conversation without the known messages between the system's and the last known one.
func reduced(turns []turn, known, system int) []turn {
	return slices.Concat(turns[:system], turns[known-1:])
}

func TestJoin(t *testing.T) {
	for name, template := range templates {
		t.Run(name, func(t *testing.T) {
			joined, right, tried := 0, 0, 0
			rapid.Check(t, func(t *rapid.T) {
				turns, known, system := conversation(t)
				render := func(turns []turn) []uint32 { return words(template.render("tool f tool g", "Monday", turns)) }
				got, ok := Join(render(turns[:known]), render(reduced(turns[:known], known, system)), render(reduced(turns, known, system)))
				tried++
				if !ok {
					return
				}
				joined++
				if slices.Equal(got, render(turns)) {
					right++
				} else if !template.lies {
					t.Fatalf("%v with %d known is joined as %v, want %v", turns, known, got, render(turns))
				}
			})
			if template.joins && joined < tried/2 { // questions of a word or two have too little in common
				t.Errorf("of %d conversations only %d are joined", tried, joined)
			}
			if template.lies && right == joined && joined > 0 {
				t.Errorf("all of %d are right", joined)
			}
		})
	}
}

// A head that changed since the beginning was rendered, or between the two renderings of now, is found.
func TestJoinSeesTheHeadChange(t *testing.T) {
	template := templates["date and tools in front"]
	turns := []turn{{"system", "be kind"}, {"user", "a question of some length"}, {"assistant", "an answer"}, {"user", "another question"}, {"assistant", "yes"}, {"user", "and now what"}}
	at := func(tools, date string, turns []turn) []uint32 { return words(template.render(tools, date, turns)) }
	small, smaller := reduced(turns, 4, 1), reduced(turns[:4], 4, 1)
	if got, ok := Join(at("t", "Mon", turns[:4]), at("t", "Mon", smaller), at("t", "Mon", small)); !ok || !slices.Equal(got, at("t", "Mon", turns)) {
		t.Fatalf("%v, %v", got, ok)
	}
	for name, dates := range map[string][3]string{
		"since the beginning": {"Mon", "Tue", "Tue"}, "between the two": {"Mon", "Mon", "Tue"}, "the other way": {"Mon", "Tue", "Mon"},
	} {
		if got, ok := Join(at("t", dates[0], turns[:4]), at("t", dates[1], smaller), at("t", dates[2], small)); ok {
			t.Errorf("%s: joined as %v", name, got)
		}
	}
	if got, ok := Join(at("t", "Mon", turns[:4]), at("u", "Mon", smaller), at("u", "Mon", small)); ok {
		t.Errorf("other tools: joined as %v", got)
	}
}

func TestJoinRefuses(t *testing.T) {
	for name, tc := range map[string]struct{ known, anchor, answer []uint32 }{
		"nothing":                        {},
		"known is shorter":               {[]uint32{1, 2, 3, 4, 5}, []uint32{1, 2, 3, 3, 4, 5}, []uint32{1, 2, 3, 3, 4, 5, 6}},
		"nothing new":                    {[]uint32{1, 9, 2, 3, 4, 5}, []uint32{1, 2, 3, 4, 5}, []uint32{1, 2, 3, 4, 5}},
		"too little in common":           {[]uint32{1, 9, 3, 4, 5}, []uint32{1, 3, 4, 5}, []uint32{1, 3, 4, 5, 6}},
		"the answer begins otherwise":    {[]uint32{1, 9, 2, 3, 4, 5, 6}, []uint32{1, 2, 3, 4, 5, 6}, []uint32{7, 2, 3, 4, 5, 6, 7}},
		"the middle is not only missing": {[]uint32{1, 9, 2, 3, 4, 5, 6}, []uint32{1, 8, 2, 3, 4, 5, 6}, []uint32{1, 8, 2, 3, 4, 5, 6, 7}},
		"long rest":                      {append([]uint32{1, 9}, make([]uint32, 200)...), append([]uint32{1}, make([]uint32, 200)...), append([]uint32{1}, append(make([]uint32, 200-maxRest-1), 7)...)},
	} {
		if got, ok := Join(tc.known, tc.anchor, tc.answer); ok {
			t.Errorf("%s: joined as %v", name, got)
		}
	}
}

func FuzzJoin(f *testing.F) {
	f.Add([]byte{1, 9, 2, 3, 4, 5}, []byte{1, 2, 3, 4, 5}, []byte{1, 2, 3, 4, 5, 6})
	f.Add([]byte{1, 2, 2, 3, 4, 5, 7}, []byte{1, 2, 3, 4, 5, 7}, []byte{1, 2, 3, 4, 5, 6})
	f.Fuzz(func(t *testing.T, a, b, c []byte) {
		wide := func(b []byte) (w []uint32) {
			for _, v := range b {
				w = append(w, uint32(v))
			}
			return w
		}
		known, anchor, answer := wide(a), wide(b), wide(c)
		got, ok := Join(known, anchor, answer)
		if !ok {
			if got != nil {
				t.Fatal("refused, and joined")
			}
			return
		}
		rest := len(anchor) - commonPrefix(anchor, answer)
		if !slices.Equal(got[:len(known)-rest], known[:len(known)-rest]) || !slices.Equal(got[len(known)-rest:], answer[len(anchor)-rest:]) {
			t.Fatalf("%v, %v, %v joined as %v", known, anchor, answer, got)
		}
	})
}

func BenchmarkJoin(b *testing.B) {
	known := make([]uint32, 100_000)
	for i := range known {
		known[i] = uint32(i)
	}
	anchor := slices.Concat(known[:1000], known[99_000:])
	answer := slices.Concat(anchor[:1995], known[:500])
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := Join(known, anchor, answer); !ok {
			b.Fatal("refused")
		}
	}
}
