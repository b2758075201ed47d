package demo

import (
	"fmt"
	"strings"
	"time"
)

// A workload is conversations of several turns; tenants share a system prompt. Text, answer lengths and pauses are the
// same in both halves. The pauses keep conversations from falling into step with round robin, which would then look
// sticky by accident.
const (
	tenants       = 9
	conversations = 36 // 4 a tenant
	turns         = 4
	concurrency   = 8 // conversations at a time
	systemWords   = 3000
	questionWords = 260
	minAnswer     = 8 // tokens
	maxAnswer     = 32
	maxPause      = 250 * time.Millisecond
)

// kvBlocks is the size of an engine's KV cache, in blocks of 16 tokens: the conversations fit into the pool's caches
// together, not into one engine's.
const kvBlocks = 3072

// words are what the made-up prompts are made of.
var words = strings.Fields(`the river keeps its bed while the water moves on and a gate that opens at the right moment
saves more work than a hundred hands at the pump so the keeper learns which channel is full which one is dry and where
the next load will come down from the hills before anyone has to ask for it again`)

// prose is n words that only seed decides. (A linear congruential generator; Knuth's MMIX constants.)
func prose(seed uint64, n int) string {
	var b strings.Builder
	x := seed*2862933555777941757 + 3037000493
	for i := range n {
		x = x*6364136223846793005 + 1442695040888963407
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(words[(x>>33)%uint64(len(words))])
	}
	return b.String()
}

// draw is a number from 0 to n-1 that only the conversation and the turn decide.
func draw(conversation, turn, n int) int {
	x := (uint64(conversation)*turns + uint64(turn) + 1) * 0x9e3779b97f4a7c15
	return int((x ^ x>>29) * 0xbf58476d1ce4e5b9 >> 33 % uint64(n))
}

func answerTokens(conversation, turn int) int {
	return minAnswer + draw(conversation, turn, maxAnswer-minAnswer+1)
}

func pause(conversation, turn int) time.Duration {
	return time.Duration(draw(conversation, turn+turns*conversations, int(maxPause)))
}

type message struct {
	Role    string `json:"role"`
	Content string `json:"content"`
}

// opening is how a conversation begins.
func opening(conversation int) []message {
	tenant := conversation % tenants
	return []message{{
		Role:    "system",
		Content: fmt.Sprintf("You serve tenant %d. %s", tenant, prose(uint64(tenant)+1, systemWords)),
	}}
}

// question is what the user of a conversation says in a turn.
func question(conversation, turn int) message {
	seed := uint64(conversation+1)*1000 + uint64(turn)
	return message{Role: "user", Content: fmt.Sprintf("Question %d of %d: %s", turn+1, conversation, prose(seed, questionWords))}
}
