package trace

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// B2B is a synthetic workload: the users of many business customers, each customer with a long system prompt of its own, ask
// questions at random times. The defaults of [DefaultB2B] are llm-d's published workload, so that figures compare.
type B2B struct {
	// Customers have a system prompt each, of SystemTokens tokens, and UsersPerCustomer users.
	Customers, UsersPerCustomer, SystemTokens int
	// QuestionTokens and AnswerTokens are the lengths of each question and answer.
	QuestionTokens, AnswerTokens int
	// FreshQuestions makes every request ask something new; otherwise each user has one question and asks it again and again,
	// as the load generator does that the published figures come from.
	FreshQuestions bool
	// PerSecond is the mean rate of requests, whose times are a Poisson process.
	PerSecond float64
	// Requests is how many there are.
	Requests int
}

// DefaultB2B is 150 system prompts of 6,000 tokens with 5 users each, questions of 1,200 tokens and answers of 1,000.
func DefaultB2B() B2B {
	return B2B{
		Customers: 150, UsersPerCustomer: 5, SystemTokens: 6000, QuestionTokens: 1200, AnswerTokens: 1000,
		PerSecond: 12, Requests: 5000,
	}
}

// b2bBlock is the size of a block, in tokens: it divides the usual lengths, so that only whole blocks are shared.
const b2bBlock = 80

// Validate reports a workload that cannot be made.
func (b B2B) Validate() error {
	if b.Customers < 1 || b.UsersPerCustomer < 1 || b.Requests < 1 || b.Requests > MaxRequests || !(b.PerSecond > 0) ||
		b.SystemTokens < 0 || b.QuestionTokens < 1 || b.AnswerTokens < 1 || b.SystemTokens > MaxPromptTokens || b.QuestionTokens > MaxPromptTokens {
		return fmt.Errorf("b2b: cannot be made of %+v", b)
	}
	return nil
}

// Trace makes a trace; the same random source makes the same one.
func (b B2B) Trace(random *rand.Rand) (*Trace, error) {
	if err := b.Validate(); err != nil {
		return nil, err
	}
	t := &Trace{Name: "b2b", BlockTokens: b2bBlock}
	at := 0.0
	system := b.SystemTokens / b2bBlock // whole blocks; the rest begins the question's first one
	for number := range b.Requests {
		if at += random.ExpFloat64() / b.PerSecond; at > MaxSpan.Seconds() {
			return nil, fmt.Errorf("b2b: %v requests per second: request %d comes later than %s", b.PerSecond, number+1, years(MaxSpan))
		}
		customer := random.IntN(b.Customers)
		user := uint64(customer*b.UsersPerCustomer + random.IntN(b.UsersPerCustomer))
		r := Request{
			At: time.Duration(at * float64(time.Second)), PromptTokens: b.SystemTokens + b.QuestionTokens, OutputTokens: b.AnswerTokens,
			Session: 1 + user,
		}
		for i := range system {
			r.Blocks = append(r.Blocks, uint64(customer)<<16|uint64(i))
		}
		question := user<<16 | 1<<63
		if b.FreshQuestions {
			question = uint64(number+1)<<16 | 1<<63
		}
		for len(r.Blocks)*b2bBlock < r.PromptTokens {
			r.Blocks = append(r.Blocks, question|uint64(len(r.Blocks)))
		}
		t.Requests = append(t.Requests, r)
	}
	return t.valid()
}
