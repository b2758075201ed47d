package vllm

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/test/lab"
)

// testConversations is what the cache is for: turns that build on what was said, by several clients at a time.
func testConversations(t *testing.T, s *stack) {
	var all []*conversation
	// The first two share their system prompt.
	for i, name := range []string{"the river", "the river", "the sea"} {
		all = append(all, newConversation(baseModel, "", name, 150+10*(i/2)))
	}
	for turn := range 4 {
		for i, c := range all {
			question := lab.Words(fmt.Sprintf("client %d", i), 20)
			s.turn(t, fmt.Sprintf("conversation %d, turn %d", i, turn), c, question, 40+7*i, turn%2 == i%2, nil)
		}
	}
}

// testJoining has conversations that are long enough, and enough of a kind, for Sluice to put the tokens of the later ones
// together from those of their earlier turns.
func testJoining(t *testing.T, s *stack) {
	for i := range 12 {
		c := newConversation(baseModel, "", "the guide", 20)
		for turn, question := range []string{
			lab.Words(fmt.Sprintf("the plain %d", i%2), 720), fmt.Sprintf("Which way, %d?", i), fmt.Sprintf("And on, %d?", i),
		} {
			s.turn(t, fmt.Sprintf("long conversation %d, turn %d", i, turn), c, question, 20, turn == 1, nil)
		}
	}
	if n := s.sluice.metrics(t).sum("sluice_token_exact_prompts_total", `source="joined"`); n == 0 {
		t.Error("no prompt's tokens were put together from earlier ones")
	}
}

// testPrompts goes through the ways to give a prompt, and to have it announced.
func testPrompts(t *testing.T, s *stack) {
	ids := make([]int, 6*blockSize)
	for i := range ids {
		ids[i] = 500 + 3*i
	}
	one := s.engines[0]
	for _, n := range []int{1, blockSize - 1, blockSize, blockSize + 1, 6 * blockSize, 6*blockSize - 1, 6 * blockSize} {
		for range 2 {
			s.ask(t, fmt.Sprintf("%d token ids", n), newRequest(completions, baseModel, 5).with("prompt", ids[:n]), one)
		}
	}
	text := newRequest(completions, baseModel, 50).with("prompt", lab.Words("the lake", 200))
	s.ask(t, "a text", text, one)
	s.ask(t, "the text again", text.streamed(), one)
	s.ask(t, "the text, its tokens in the answer", text.with("return_token_ids", true), one)

	full := map[string]any{"kv_cache_report_mode": "full"}
	for i := range 3 {
		s.ask(t, fmt.Sprintf("what is reused is announced again, %d", i), text.with("vllm_xargs", full), one)
	}
	c := newConversation(baseModel, "", "the lake", 150)
	for i := range 3 {
		s.turn(t, fmt.Sprintf("its conversation, turn %d", i), c, "And then?", 30, false, one)
	}
}

// testNamespaces asks the same in different names: salts and adapters share nothing.
func testNamespaces(t *testing.T, s *stack) {
	for _, model := range []string{baseModel, "sql", "chat"} {
		for _, salt := range []string{"", "tenant a", "tenant b"} {
			for round := range 2 {
				c := newConversation(model, salt, "the wood", 100)
				name := fmt.Sprintf("%s salted %q, round %d", model, salt, round)
				s.turn(t, name, c, "Where to?", 40, round == 0, s.engines[round%2])
				s.turn(t, name+", next turn", c, "And then?", 8, false, s.engines[round%2])
			}
		}
	}
	// Some of it was evicted meanwhile; what is left is found under its own name.
	for _, e := range s.engines {
		for _, model := range []string{"chat", "sql", baseModel} {
			c := newConversation(model, "tenant b", "the wood", 100)
			s.turn(t, model+" again", c, "Where to?", 8, false, e)
		}
	}
}

// testEviction fills a cache several times over.
func testEviction(t *testing.T, s *stack, e *engine) {
	text := func(i int) request {
		return newRequest(completions, baseModel, 20).with("prompt", lab.Words(fmt.Sprintf("the hill %d", i), 600))
	}
	whole := 0
	for i := range 6 {
		s.ask(t, fmt.Sprintf("text %d", i), text(i), e)
	}
	for _, i := range []int{5, 4, 0, 1, 5, 2} {
		if got := s.ask(t, fmt.Sprintf("text %d again", i), text(i), e); got.cached == (got.prompt-1)/blockSize*blockSize {
			whole++
		}
	}
	if whole == 0 || whole == 6 {
		t.Errorf("%d of 6 texts were still whole: want some, not all", whole)
	}
}

// testCopies has the same prompt computed several times at once, which leaves several copies of its blocks; they are
// evicted one by one, and the last one counts.
func testCopies(t *testing.T, s *stack, e *engine) {
	prompt := newRequest(completions, baseModel, 40).with("prompt", lab.Words("the valley", 200))
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			body := strings.NewReader(lab.JSON(t, prompt.body))
			a, err := lab.Try(s.client, lab.Request(t, "POST", s.envoy.URL(prompt.path), body, subsetHeader, e.address))
			if err != nil || a.Status != 200 {
				t.Errorf("one of four: %v, status %d: %s", err, a.Status, a.Body)
			}
		})
	}
	all.Wait()
	s.quiet(t)
	s.ask(t, "after four at once", prompt, e)
	for i := range 5 {
		other := newRequest(completions, baseModel, 4).with("prompt", lab.Words(fmt.Sprintf("the peak %d", i), 350))
		s.ask(t, fmt.Sprintf("a text that pushes out, %d", i), other, e)
		s.ask(t, fmt.Sprintf("what is left, %d", i), prompt, e)
	}
}

// testReset empties a cache, which its engine tells with its next step.
func testReset(t *testing.T, s *stack, e *engine) {
	c := newConversation(baseModel, "", "the reset", 200)
	s.turn(t, "before", c, "Where to?", 40, false, e)
	s.turn(t, "still before", c, "And then?", 40, false, e)
	s.empty(t, e)
	s.turn(t, "the first after", c, "Once more?", 40, false, e)
	for i := range 3 {
		s.turn(t, fmt.Sprintf("after, %d", i), c, "And on?", 20, i == 1, e)
	}
	s.empty(t, e)
	s.ask(t, "another first after", newRequest(completions, "sql", 40).with("prompt", lab.Words("elsewhere", 40)), e)
	s.turn(t, "what was lost", c, "And on?", 20, false, e)
}

// testRestart kills an engine and starts it again on the same port.
func testRestart(t *testing.T, s *stack, e *engine) {
	c := newConversation(baseModel, "", "the restart", 200)
	s.turn(t, "before", c, "Where to?", 40, false, e)
	s.turn(t, "still before", c, "And then?", 40, false, e)
	s.kill(e)
	for i, other := range s.alive() {
		s.turn(t, fmt.Sprintf("elsewhere, %d", i), c, "And you?", 20, false, other)
	}
	s.revive(t, e)
	s.turn(t, "the first after", c, "Once more?", 40, false, e)
	for i := range 3 {
		s.turn(t, fmt.Sprintf("after, %d", i), c, "And on?", 20, i == 1, e)
	}
	s.turn(t, "wherever", c, "And home?", 20, false, nil)
}

// testPickerRestart starts a Sluice that knows nothing in front of engines that hold much: it is ready once it knows all.
func testPickerRestart(t *testing.T, s *stack) {
	c := newConversation(baseModel, "", "the night", 200)
	last := s.turn(t, "before", c, "Where to?", 40, false, nil)
	s.sluice.restart(t)
	s.envoy.WaitStat(t, "cluster."+envoy.PickerCluster+".membership_healthy", 1, lab.Timeout)
	got := s.turn(t, "after", c, "And then?", 20, false, nil)
	if got.cached < last.prompt/blockSize*blockSize {
		t.Errorf("%d tokens cached after the restart, want those of the turn before, %d: it went elsewhere", got.cached, last.prompt)
	}
	for _, e := range s.engines {
		s.turn(t, "on "+e.name, c, "And on?", 20, false, e)
	}
}

// testWalk mixes everything: many conversations that share beginnings, more than the caches hold, in an order of chance.
func testWalk(t *testing.T, s *stack, steps int) {
	chance := rand.New(rand.NewPCG(4, 2))
	one := func(of ...string) string { return of[chance.IntN(len(of))] }
	var all []*conversation
	for step := range steps {
		if chance.IntN(40) == 0 {
			s.empty(t, s.engines[chance.IntN(len(s.engines))])
		}
		if len(all) < 3 || chance.IntN(4) == 0 {
			model, salt, begin := one(baseModel, baseModel, "sql", "chat"), one("", "", "a", "b"), one("the dawn", "the noon", "the dusk")
			all = append(all, newConversation(model, salt, begin, 80+30*chance.IntN(6)))
		}
		i := max(0, len(all)-1-chance.IntN(5)) // one of the last few
		c := all[i]
		if len(c.messages) > 11 {
			c.messages = c.messages[:1+2*chance.IntN(5)] // its client goes back to an earlier turn
		}
		var to *engine
		if chance.IntN(3) == 0 {
			to = s.engines[chance.IntN(len(s.engines))]
		}
		question := lab.Words(fmt.Sprintf("question %d", chance.IntN(50)), 5+chance.IntN(40))
		s.turn(t, fmt.Sprintf("step %d, conversation %d", step, i), c, question, 1+chance.IntN(80), chance.IntN(2) == 0, to)
	}
}
