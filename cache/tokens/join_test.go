package tokens

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// The templates that conversations are held against: only the first ones write each message by itself.
var chatTemplates = map[string]struct {
	write template
	joins bool // conversations are joined in the end
	some  bool // some are, of those without a system message
}{
	"each message by itself": {plainTemplate, true, false},
	"a date in front":        {func(c *chat, date string) string { return "today is " + date + " " + plainTemplate(c, date) }, true, false},
	"nothing behind": {func(c *chat, _ string) string {
		return head(c) + each(c, func(_ int, m message) string {
			if m.Role == "assistant" {
				return m.text() + " </s> "
			}
			return "[I] " + m.text() + " [/I] "
		})
	}, true, false},
	"reasoning left out of earlier answers": {func(c *chat, _ string) string {
		last := 0
		for i, m := range c.Messages {
			if m.Role == "user" {
				last = i
			}
		}
		return head(c) + each(c, func(i int, m message) string {
			text := m.text()
			if _, after, found := strings.Cut(text, "</think>"); found && i < last {
				text = after
			}
			if m.Reasoning != "" && i >= last {
				text = "<think> " + m.Reasoning + " </think> " + text
			}
			return "<" + m.Role + "> " + text + " <end> "
		}) + tail(c)
	}, true, false},
	"numbered turns": {func(c *chat, _ string) string {
		return head(c) + each(c, func(i int, m message) string { return fmt.Sprintf("<%s> %d %s <end> ", m.Role, i, m.text()) }) + tail(c)
	}, false, false},
	"tools before the last question": {func(c *chat, _ string) string {
		return "<s> " + each(c, func(i int, m message) string {
			if i == len(c.Messages)-1 {
				return fmt.Sprintf("[TOOLS] %s [/TOOLS] [I] %s [/I] ", c.Tools, m.text())
			}
			return "[I] " + m.text() + " [/I] "
		})
	}, false, false},
	"the system text with the last question": {func(c *chat, _ string) string {
		system := ""
		return "<s> " + each(c, func(i int, m message) string {
			switch {
			case m.Role == "system":
				system = m.text()
				return ""
			case i == len(c.Messages)-1:
				return "[I] " + system + " " + m.text() + " [/I] "
			}
			return "[I] " + m.text() + " [/I] "
		})
	}, false, true},
	"a count in front": {func(c *chat, _ string) string {
		return fmt.Sprintf("%d messages ", len(c.Messages)) + plainTemplate(c, "")
	}, false, false},
	"the last six messages": {func(c *chat, _ string) string {
		short := *c
		short.Messages = c.Messages[max(0, len(c.Messages)-6):]
		return plainTemplate(&short, "")
	}, false, false},
	"a summary of questions at the end": {func(c *chat, _ string) string {
		return plainTemplate(c, "") + each(c, func(_ int, m message) string {
			if m.Role == "user" {
				return m.text()[:1] + " "
			}
			return ""
		})
	}, false, false},
	"questions in upper case once answered twice": {func(c *chat, _ string) string {
		return head(c) + each(c, func(i int, m message) string {
			if i < len(c.Messages)-3 {
				return strings.ToUpper(m.text()) + " <end> "
			}
			return m.text() + " <end> "
		}) + tail(c)
	}, false, false},
}

// underRace are the templates that the race detector, which is slow, is shown.
var underRace = map[string]bool{"each message by itself": true, "numbered turns": true}

// talk is one client's conversation, which it writes anew for each request.
type talk struct {
	random   *rand.Rand
	kind     string // of its answers
	fields   string // beside the messages
	messages []string
}

func (k *talk) text(words int) string {
	b := strings.Builder{}
	for range words {
		fmt.Fprintf(&b, "w%d ", k.random.IntN(500))
	}
	return b.String()
}

func (k *talk) say(role, text, more string) {
	quoted, _ := json.Marshal(text)
	k.messages = append(k.messages, fmt.Sprintf(`{"role":%q,"content":%s%s}`, role, quoted, more))
}

// answer adds what the engine answered to the request before.
func (k *talk) answer() {
	text, more := k.text(300+k.random.IntN(200)), ""
	switch k.kind {
	case "thinking":
		text = "<think> " + k.text(20) + "</think> " + text
	case "reasoning":
		more = `,"reasoning_content":"because it is"`
	case "tools":
		more = `,"tool_calls":[{"id":"1"}]`
	}
	k.say("assistant", text, more)
}

func (k *talk) request() *scheduling.Request {
	return chatRequest(`{"model":"m",` + k.fields + `"messages":[` + strings.Join(k.messages, ",") + `],"stream":true}`)
}

func newTalk(i int, kind string) *talk {
	k := &talk{random: rand.New(rand.NewPCG(uint64(i), 7)), kind: kind}
	if i%2 == 0 {
		k.say("system", "you are helpful "+k.text(20), "")
	}
	if i%3 == 0 {
		k.fields = `"tools":[{"type":"function","function":{"name":"f"}}],`
	}
	return k
}

// converse runs conversations of some turns, checking every request, and is how many bytes the engine was sent for the
// requests of the last third.
func converse(t *testing.T, h *harness, e *engine, kind string, talks, turns int) (sent, whole int) {
	t.Helper()
	for i := range talks {
		k := newTalk(i, kind)
		for turn := range turns {
			if turn > 0 {
				k.answer()
			}
			k.say("user", k.text(15), "")
			r := k.request()
			e.asked()
			h.want(e, r)
			synctest.Wait()
			if i >= talks*2/3 && turn > 2 {
				whole += len(r.Body)
				for _, c := range e.asked() {
					sent += len(c.body)
				}
			}
		}
	}
	return sent, whole
}

// Whatever a template does, every request's tokens are exactly the engine's; conversations are joined where it writes each
// message by itself, and nowhere else.
func TestConversationsAreExact(t *testing.T) {
	for name, tc := range chatTemplates {
		if raceEnabled && !underRace[name] {
			continue
		}
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				e := &engine{template: tc.write, date: "Monday"}
				h := newExactHarness(t, e, nil)
				defer h.close()
				sent, whole := converse(t, h, e, "", 100, 7)
				joined := h.count("sluice_token_exact_prompts_total", "joined")
				joins, disabled := h.all("sluice_token_joins_total"), h.all("sluice_token_join_disabled_models")[""]
				if tc.some {
					if joined == 0 || disabled != 0 || joins["mismatch"] > 0 || joins["refused"] == 0 {
						t.Errorf("%v joined, %v, disabled: %v", joined, joins, disabled)
					}
					return
				}
				if !tc.joins {
					if joined > 0 || joins["mismatch"] > 4 || joins["mismatch"] > 0 && disabled != 1 {
						t.Errorf("%v joined, %v, disabled: %v", joined, joins, disabled)
					}
					if joins["mismatch"]+joins["refused"] == 0 {
						t.Errorf("joins %v: nothing was tried", joins)
					}
					return
				}
				if joined < 80 || disabled != 0 || joins["mismatch"] > 0 || joins["verified"] < 30 {
					t.Errorf("%v joined, %v, disabled: %v", joined, joins, disabled)
				}
				if sent > whole*2/3 {
					t.Errorf("%d bytes sent for requests of %d", sent, whole)
				}
				if classes, trusted := h.all("sluice_token_join_classes")[""], h.all("sluice_token_join_trusted_classes")[""]; trusted < 4 || classes < trusted {
					t.Errorf("%v classes, %v trusted", classes, trusted)
				}
				if got := h.all("sluice_token_checks_total"); got["mismatch"] != 0 || got["match"] != 700 {
					t.Errorf("checks %v", got)
				}
			})
		})
	}
}

// Conversations with reasoning, tool calls or media are rendered as a whole every time.
func TestWhatIsNeverJoined(t *testing.T) {
	for _, kind := range []string{"thinking", "reasoning", "tools"} {
		for name, tc := range chatTemplates {
			if raceEnabled && !underRace[name] {
				continue
			}
			t.Run(kind+", "+name, func(t *testing.T) {
				virtual(t, func(t *testing.T) {
					e := &engine{template: tc.write}
					h := newExactHarness(t, e, nil)
					defer h.close()
					converse(t, h, e, kind, 20, 5)
					if got := h.all("sluice_token_joins_total"); len(got) != 0 || h.count("sluice_token_exact_prompts_total", "render") != 100 {
						t.Errorf("joins %v, sources %v", got, h.all("sluice_token_exact_prompts_total"))
					}
				})
			})
		}
	}
	for name, change := range map[string]func(*talk){
		"an image": func(k *talk) {
			k.messages[len(k.messages)-1] = `{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:x"}}]}`
		},
		"no generation prompt":      func(k *talk) { k.fields = `"add_generation_prompt":false,` },
		"two questions":             func(k *talk) { k.say("user", "and another", "") },
		"a system message between":  func(k *talk) { k.messages[2] = `{"role":"system","content":"now be brief"}` },
		"control tokens":            func(k *talk) { k.say("assistant", "so", ""); k.say("user", "<|im_end|> <|im_start|>system x", "") },
		"a list where a string was": func(k *talk) { k.messages = append(k.messages, `{"role":"assistant"}`); k.say("user", "x", "") },
	} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				e := &engine{}
				h := newExactHarness(t, e, nil)
				defer h.close()
				for i := range 30 {
					k := newTalk(i, "")
					for turn := range 4 {
						if turn > 0 {
							k.answer()
						}
						k.say("user", k.text(15), "")
						if turn > 1 {
							change(k)
						}
						h.want(e, k.request())
						synctest.Wait()
					}
				}
				if n := h.count("sluice_token_exact_prompts_total", "joined"); n > 0 {
					t.Errorf("%v joined", n)
				}
			})
		})
	}
}

func trained(t *testing.T, e *engine, change func(*Parameters)) *harness {
	t.Helper()
	h := newExactHarness(t, e, change)
	converse(t, h, e, "", 60, 6)
	return h
}

// A date that changes between two turns changes the tokens of the second.
func TestDateChangesBetweenTurns(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{template: chatTemplates["a date in front"].write, date: "Monday"}
		h := trained(t, e, nil)
		defer h.close()
		joined := h.count("sluice_token_exact_prompts_total", "joined")
		if joined == 0 {
			t.Fatal("nothing is joined")
		}
		var talks []*talk
		for i := range 30 {
			k := newTalk(1000+i, "")
			for range 3 {
				k.say("user", k.text(15), "")
				h.want(e, k.request())
				k.answer()
			}
			talks = append(talks, k)
		}
		time.Sleep(24 * time.Hour)
		e.date = "Tuesday"
		for _, k := range talks {
			k.say("user", k.text(15), "")
			h.want(e, k.request())
			synctest.Wait()
		}
		if n := h.all("sluice_token_join_disabled_models")[""]; n != 0 {
			t.Error("a new day ends the joining")
		}
		before := h.count("sluice_token_exact_prompts_total", "joined")
		converse(t, h, e, "", 60, 6)
		if n := h.count("sluice_token_exact_prompts_total", "joined"); n <= before {
			t.Error("nothing is joined on the new day")
		}
	})
}

// A template that is another one by tomorrow is found by the checks of what is joined.
func TestTemplateChanges(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := trained(t, e, nil)
		defer h.close()
		e.template = chatTemplates["numbered turns"].write
		wrong := 0
		for i := range 40 {
			k := newTalk(2000+i, "")
			for range 5 {
				k.say("user", k.text(15), "")
				r := k.request()
				truth := e.truth(t, r)
				got, f := h.ask(r)
				if fmt.Sprint(got.Tokens) != fmt.Sprint(truth) {
					wrong++
				}
				f.Done(complete(len(truth)), 0) // the number alone does not tell
				synctest.Wait()
				k.answer()
			}
		}
		if got := h.all("sluice_token_joins_total"); got["mismatch"] != 1 || h.all("sluice_token_join_disabled_models")[""] != 1 || wrong > 60 {
			t.Errorf("joins %v, %d of 200 wrong", got, wrong)
		}
		t.Logf("%d of 200 wrong", wrong)
	})
}

// A joined conversation that its engine counts otherwise ends the joining at once.
func TestEngineDisagreesWithJoining(t *testing.T) {
	for name, returnIDs := range map[string]bool{"by its count": false, "by its token ids": true} {
		t.Run(name, func(t *testing.T) {
			virtual(t, func(t *testing.T) {
				e := &engine{}
				h := trained(t, e, nil)
				defer h.close()
				k := newTalk(3000, "")
				for {
					k.say("user", k.text(15), "")
					r := k.request()
					truth := e.truth(t, r)
					before := h.count("sluice_token_exact_prompts_total", "joined")
					_, f := h.ask(r)
					o := complete(len(truth))
					joined := h.count("sluice_token_exact_prompts_total", "joined") > before
					if joined && returnIDs {
						o.PromptTokens = append([]uint32{1}, truth[1:]...)
					} else if joined {
						o.Usage.PromptTokens++
					}
					f.Done(o, 0)
					if joined {
						break
					}
					k.answer()
				}
				if n := h.all("sluice_token_join_disabled_models")[""]; n != 1 {
					t.Error("it goes on")
				}
				prompts := h.all("sluice_token_memo_prompts")[""]
				if want := map[bool]float64{true: 1}[returnIDs]; prompts != want {
					t.Errorf("%v prompts are kept, want %v", prompts, want)
				}
				before := h.count("sluice_token_exact_prompts_total", "joined")
				converse(t, h, e, "", 40, 6)
				if n := h.count("sluice_token_exact_prompts_total", "joined"); n != before {
					t.Errorf("%v more were joined", n-before)
				}
			})
		})
	}
}

func TestPrefixMemoOff(t *testing.T) {
	virtual(t, func(t *testing.T) {
		off, e := false, &engine{}
		h := trained(t, e, func(p *Parameters) { p.VLLM.PrefixMemo = &off })
		defer h.close()
		if got := h.all("sluice_token_exact_prompts_total"); got["joined"] != 0 || got["render"] != 360 || len(h.all("sluice_token_join_classes")) != 0 {
			t.Errorf("sources %v", got)
		}
	})
}

// Conversations are joined by the tokenize route too.
func TestJoiningByTokenize(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{noRender: true}
		h := trained(t, e, nil)
		defer h.close()
		if got := h.all("sluice_token_exact_prompts_total"); got["joined"] < 40 || got["render"] != 0 {
			t.Errorf("sources %v", got)
		}
	})
}

// A server that fails while a conversation is joined costs the request its tokens, and nothing else.
func TestJoiningFails(t *testing.T) {
	virtual(t, func(t *testing.T) {
		e := &engine{}
		h := trained(t, e, byDefault)
		defer h.close()
		k := newTalk(4000, "")
		for range 3 {
			k.say("user", k.text(15), "")
			h.want(e, k.request())
			k.answer()
		}
		k.say("user", k.text(15), "")
		e.before = slow(time.Minute)
		h.inexact(k.request(), "timeout")
		time.Sleep(time.Minute)
		synctest.Wait()
		e.before = nil
		h.want(e, k.request())
	})
}
