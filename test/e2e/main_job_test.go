package e2e

import (
	"fmt"
	"net/http"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/envoytest"
	"github.com/sluice-epp/sluice/test/lab"
)

// The main job: a conversation's next request goes to the engine that holds its prefix.
func TestPrefixStaysWithItsEngine(t *testing.T) {
	l := lab.New(t, lab.Plan{})
	for _, mode := range readingModes {
		for _, pool := range []envoy.PoolType{envoy.OriginalDst, envoy.OverrideHost} {
			t.Run(fmt.Sprintf("%s/%s", mode, pool), func(t *testing.T) {
				e := l.Envoy(t, envoy.Params{PoolType: pool, RequestBody: mode})
				homes := map[string]string{}
				for round := range 4 {
					for tenant := range 6 {
						name := fmt.Sprintf("tenant %d of %s and %s", tenant, mode, pool)
						a := lab.Post(t, l.Client, e.URL("/v1/chat/completions"), lab.Chat(t, name, 900, 4, round%2 == 1))
						if a.Status != http.StatusOK {
							t.Fatalf("status %d: %s", a.Status, a.Body)
						}
						home := a.Header.Get("x-sim-endpoint")
						if round == 0 {
							homes[name] = home
						} else if homes[name] != home {
							t.Errorf("round %d: %s went to %s, its prefix is on %s", round, name, home, homes[name])
						}
					}
				}
				used := map[string]int{}
				for _, home := range homes {
					used[home]++
				}
				if len(used) != 3 {
					t.Errorf("six prompts went to %v: want all three engines used", used)
				}
				l.Sluice.Settle(t)
			})
		}
	}
}

// conversation is how one API carries a second turn on top of the first.
type conversation struct {
	path   string
	first  func(name string) any
	second func(name, answer string) any
	answer func(t *testing.T, body string) string
	// exact is the number of cached tokens that the second turn must report; 0: the first prompt's whole blocks at least.
	exact int
}

const blockSize = 16 // tokens in a block of the simulated engines

func conversations() map[string]conversation {
	type object = map[string]any
	say := func(role, text string) object { return object{"role": role, "content": text} }
	const question, next, words = "Where to?", "And after that?", 700
	ids := func(name string, n int) []int {
		all := make([]int, n)
		for i := range all {
			all[i] = 300 + (i*7+len(name)*13+int(name[len(name)-1])*31)%900
		}
		return all
	}
	return map[string]conversation{
		"chat": {
			path: "/v1/chat/completions",
			first: func(name string) any {
				return object{"messages": []object{say("system", lab.Words(name, words)), say("user", question)}, "max_tokens": 24}
			},
			second: func(name, answer string) any {
				return object{"messages": []object{say("system", lab.Words(name, words)), say("user", question),
					say("assistant", answer), say("user", next)}, "max_tokens": 4}
			},
			answer: func(t *testing.T, body string) string { return read[chatAnswer](t, body).Choices[0].Message.Content },
		},
		"completions": {
			path:  "/v1/completions",
			first: func(name string) any { return object{"prompt": lab.Words(name, words), "max_tokens": 24} },
			second: func(name, answer string) any {
				return object{"prompt": lab.Words(name, words) + answer + next, "max_tokens": 4}
			},
			answer: func(t *testing.T, body string) string { return read[chatAnswer](t, body).Choices[0].Text },
		},
		"token ids": {
			path:  "/v1/completions",
			first: func(name string) any { return object{"prompt": ids(name, 805), "max_tokens": 2} },
			second: func(name, _ string) any {
				return object{"prompt": append(ids(name, 805), 5, 6, 7, 8, 9, 10, 11), "max_tokens": 2}
			},
			answer: func(*testing.T, string) string { return "" },
			exact:  805 / blockSize * blockSize,
		},
		"responses": {
			path: "/v1/responses",
			first: func(name string) any {
				return object{"instructions": lab.Words(name, words), "input": []object{say("user", question)}, "max_output_tokens": 24}
			},
			second: func(name, answer string) any {
				return object{"instructions": lab.Words(name, words), "input": []object{say("user", question),
					say("assistant", answer), say("user", next)}, "max_output_tokens": 4}
			},
			answer: func(t *testing.T, body string) string {
				return read[responsesAnswer](t, body).Output[0].Content[0].Text
			},
		},
		"messages": {
			path: "/v1/messages",
			first: func(name string) any {
				return object{"system": lab.Words(name, words), "messages": []object{say("user", question)}, "max_tokens": 24}
			},
			second: func(name, answer string) any {
				return object{"system": lab.Words(name, words), "messages": []object{say("user", question),
					say("assistant", answer), say("user", next)}, "max_tokens": 4}
			},
			answer: func(t *testing.T, body string) string { return read[messagesAnswer](t, body).Content[0].Text },
		},
	}
}

// Every API's second turn finds its first on the engine: the engine itself says how many tokens it had cached, and
// Sluice counts the same numbers from the answers.
func TestSecondTurnIsCached(t *testing.T) {
	l := lab.New(t, lab.Plan{})
	e := l.Envoy(t, envoy.Params{})
	var all usage
	for api, c := range conversations() {
		t.Run(api, func(t *testing.T) {
			names := []string{api + " 1", api + " 2", api + " 3", api + " 4", api + " 5"}
			firsts := map[string]lab.Answer{}
			for _, name := range names {
				a := lab.Post(t, l.Client, e.URL(c.path), lab.JSON(t, c.first(name)))
				u := usageOf(t, a)
				all = all.plus(u)
				if u.cached != 0 {
					t.Errorf("%s: first turn: %d of %d tokens cached, want none", name, u.cached, u.prompt)
				}
				firsts[name] = a
			}
			for _, name := range names {
				before := firsts[name]
				a := lab.Post(t, l.Client, e.URL(c.path), lab.JSON(t, c.second(name, c.answer(t, before.Body))))
				u := usageOf(t, a)
				all = all.plus(u)
				if was, is := before.Header.Get("x-sim-endpoint"), a.Header.Get("x-sim-endpoint"); was != is {
					t.Errorf("%s: second turn went to %s, the first to %s", name, is, was)
				}
				least := usageOf(t, before).prompt / blockSize * blockSize
				if c.exact > 0 && u.cached != c.exact || u.cached < least || u.cached >= u.prompt {
					t.Errorf("%s: second turn: %d of %d tokens cached, want at least %d (exactly %d unless 0)", name, u.cached, u.prompt, least, c.exact)
				}
			}
		})
	}
	l.Sluice.Settle(t)
	got := usage{
		prompt: int(l.Sluice.Total(t, "sluice_prompt_tokens_total")),
		cached: int(l.Sluice.Total(t, "sluice_cached_tokens_total")),
		output: int(l.Sluice.Total(t, "sluice_output_tokens_total")),
	}
	if got != all {
		t.Errorf("Sluice counted %+v, the clients saw %+v", got, all)
	}
}

// C31: usage comes in the last pieces of a stream, in a shape of each API's own; Sluice counts what the client sees, in
// both response modes that show it the stream.
func TestC31_StreamedUsageIsCounted(t *testing.T) {
	l := lab.New(t, lab.Plan{})
	for _, mode := range []envoy.BodyMode{envoy.FullDuplexStreamed, envoy.Streamed} {
		e := l.Envoy(t, envoy.Params{ResponseBody: mode})
		for api, c := range conversations() {
			t.Run(string(mode)+"/"+api, func(t *testing.T) { streamedUsage(t, l, e, c, api+" "+string(mode)) })
		}
	}
}

func streamedUsage(t *testing.T, l *lab.Lab, e *envoytest.Instance, c conversation, name string) {
	counted := func() usage {
		l.Sluice.Settle(t)
		return usage{
			prompt: int(l.Sluice.Total(t, "sluice_prompt_tokens_total")),
			cached: int(l.Sluice.Total(t, "sluice_cached_tokens_total")),
			output: int(l.Sluice.Total(t, "sluice_output_tokens_total")),
		}
	}
	before, seen := counted(), usage{}
	tokensBefore := l.Sluice.Total(t, "sluice_first_token_seconds_count")
	body, ok := c.first(name).(map[string]any)
	if !ok {
		t.Fatal("a body is a map")
	}
	body["stream"], body["stream_options"] = true, map[string]any{"include_usage": true}
	for range 2 { // the second time it is cached
		seen = seen.plus(usageOf(t, lab.Post(t, l.Client, e.URL(c.path), lab.JSON(t, body))))
	}
	if seen.cached == 0 {
		t.Errorf("nothing was cached the second time: %+v", seen)
	}
	if got, want := counted(), before.plus(seen); got != want {
		t.Errorf("Sluice counted %+v, want %+v", got, want)
	}
	if got := l.Sluice.Total(t, "sluice_first_token_seconds_count"); got != tokensBefore+2 {
		t.Errorf("Sluice saw %v first tokens, want 2", got-tokensBefore)
	}
}
