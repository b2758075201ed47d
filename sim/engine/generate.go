package engine

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/go-json-experiment/json"

	"github.com/sluice-epp/sluice/sim"
)

// maxSequences bounds the sequences of one request: prompts times samples.
const maxSequences = 1024

// task is what a request asks the model for.
type task struct {
	prompts   [][]uint32
	samples   int // per prompt
	maxTokens int // output tokens of each; negative for none, as an embedding
	model     string
	salt      string
	report    bool // announce reused blocks too
	bare      bool // the answer begins without a blank
}

// known checks that a request names a served model; none means the first.
func (s *Server) known(model string) (name string, err error) {
	if model == "" {
		return s.cfg.Models[0], nil
	}
	if !slices.Contains(s.cfg.Models, model) && !slices.Contains(s.cfg.Adapters, model) {
		return "", apiError{status: http.StatusNotFound, kind: "NotFoundError", param: "model",
			message: fmt.Sprintf("the model `%s` does not exist; served are %v and the adapters %v", model, s.cfg.Models, s.cfg.Adapters)}
	}
	return model, nil
}

// limit is the output length that a request asks for, the first of the given fields that is set.
func (s *Server) limit(fields ...*number) (int, error) {
	for _, f := range fields {
		switch {
		case f == nil:
			continue
		case *f < 1:
			return 0, badRequest("max_tokens", "max_tokens must be at least 1, got %d", *f)
		case int(*f) > s.cfg.Params.MaxModelLen:
			return 0, badRequest("max_tokens", "max_tokens=%d cannot be greater than max_model_len=%d", *f, s.cfg.Params.MaxModelLen)
		}
		return int(*f), nil
	}
	return s.cfg.DefaultMaxTokens, nil
}

// check refuses a task of too many sequences, or of none.
func (t task) check() error {
	if t.samples < 1 || t.samples > maxSequences || t.samples*len(t.prompts) > maxSequences {
		return badRequest("n", "n must be at least 1 and %d prompts times n at most %d, got n=%d",
			len(t.prompts), maxSequences, t.samples)
	}
	return nil
}

// generate hands a task to the model. The sequences of one prompt are next to one another. The
// caller must abort the generation when it is done with it.
func (s *Server) generate(c *call, t task) (*generation, error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	l := c.life.loop
	lens, tokens := make([]int, len(t.prompts)), 0
	for i, prompt := range t.prompts {
		n, err := s.outputLen(prompt, t.maxTokens)
		if err != nil {
			return nil, err
		}
		lens[i] = n
		tokens += n * t.samples
	}
	// Answers are written only once they have a place.
	g := newGeneration(l, t.samples*len(t.prompts), tokens)
	err := l.reserve(g)
	if err == nil {
		s.write(g, t, lens)
		err = l.submit(g)
	}
	switch {
	case errors.Is(err, sim.ErrQueueFull):
		return nil, apiError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError", message: err.Error()}
	case err != nil:
		return nil, err
	}
	c.task, c.generation = t, g
	return g, nil
}

// write makes up the answers of a task, of so many tokens by prompt.
func (s *Server) write(g *generation, t task, lens []int) {
	var adapter string
	if slices.Contains(s.cfg.Adapters, t.model) {
		adapter = t.model
	}
	for i, prompt := range t.prompts {
		for sample := range t.samples {
			g.jobs = append(g.jobs, &sim.Job{
				Prompt: prompt, Output: s.writer.write(prompt, sample, lens[i], t.bare), Adapter: adapter, Salt: t.salt, Report: t.report,
			})
		}
	}
}

// outputLen is how many tokens are generated after a prompt: as many as asked for, less what does
// not fit into the model length.
func (s *Server) outputLen(prompt []uint32, maxTokens int) (int, error) {
	maxLen, n := s.cfg.Params.MaxModelLen, 0
	if maxTokens >= 0 {
		n = max(1, min(maxTokens, maxLen-len(prompt)))
	}
	if len(prompt)+n > maxLen {
		return 0, badRequest("input_tokens", "the maximum context length is %d tokens, the prompt has %d and the output needs %d",
			maxLen, len(prompt), n)
	}
	return n, nil
}

// noToken is the index of a call that only tells the end of a sequence.
const noToken = -1

// follow calls token for each output token as it is made, and returns when all sequences are over.
// A sequence's tokens come in order; the last one comes with the reason of the end, and the end of
// a sequence that was aborted comes by itself.
func (s *Server) follow(ctx context.Context, g *generation, token func(seq, index int, end string) error) error {
	sent, ended := make([]int, len(g.jobs)), make([]bool, len(g.jobs))
	for {
		select {
		case <-g.notify:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := s.faults.thawed(ctx); err != nil {
			return err
		}
		over := true
		for seq, j := range g.jobs {
			made, finished := g.next(seq)
			over = over && finished != ""
			for ; sent[seq] < made; sent[seq]++ {
				end := ""
				if sent[seq] == len(j.Output)-1 {
					end, ended[seq] = reasonLength, true
				}
				if err := token(seq, sent[seq], end); err != nil {
					return err
				}
			}
			if finished == reasonAbort && !ended[seq] {
				ended[seq] = true
				if err := token(seq, noToken, finished); err != nil {
					return err
				}
			}
		}
		if over {
			return nil
		}
	}
}

// wait returns when all sequences are over.
func (s *Server) wait(ctx context.Context, g *generation) error {
	return s.follow(ctx, g, func(int, int, string) error { return nil })
}

// whole returns when all sequences are over, with an error if one was aborted.
func (s *Server) whole(ctx context.Context, g *generation) error {
	if err := s.wait(ctx, g); err != nil {
		return err
	}
	return g.interrupted()
}

// interrupted is what is answered to a request that the engine aborted, where the form of the
// answer has no word for it.
func (g *generation) interrupted() error {
	if !g.aborted() {
		return nil
	}
	return apiError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError", message: "the request was aborted"}
}

// output is the text of a sequence's answer so far.
func (s *Server) output(g *generation, seq int) string { return s.text(g.output(seq)) }

func (s *Server) text(tokens []uint32) string {
	var b []byte
	for _, id := range tokens {
		b = append(b, text(s.tok, id)...)
	}
	return string(b)
}

// counts are the tokens of a request: each prompt once, the output of every sequence so far.
type counts struct{ prompt, cached, created, output int }

func (g *generation) counts(samples int) counts {
	var c counts
	for seq, j := range g.jobs {
		p := g.at(seq)
		c.output += p.Generated
		if seq%samples == 0 {
			c.prompt += len(j.Prompt)
			c.cached += p.Cached
			c.created += p.Created
		}
	}
	return c
}

// stream writes server-sent events, each flushed by itself.
type stream struct {
	c   *call
	rc  *http.ResponseController
	buf []byte
}

// stream begins an answer of server-sent events; its headers leave at once.
func (c *call) stream() (*stream, error) {
	h := c.Header()
	h.Set("Content-Type", "text/event-stream; charset=utf-8")
	h.Set("Cache-Control", "no-cache")
	c.WriteHeader(http.StatusOK)
	s := &stream{c: c, rc: http.NewResponseController(c.ResponseWriter)}
	return s, s.rc.Flush()
}

// event sends one event; without a name it has a data line only.
func (s *stream) event(name string, v any) error {
	data, err := json.Marshal(v, marshalOptions)
	if err != nil {
		return err
	}
	return s.raw(name, data)
}

func (s *stream) raw(name string, data []byte) error {
	s.buf = s.buf[:0]
	if name != "" {
		s.buf = append(append(append(s.buf, "event: "...), name...), '\n')
	}
	s.buf = append(append(append(s.buf, "data: "...), data...), "\n\n"...)
	if _, err := s.c.Write(s.buf); err != nil {
		return err
	}
	return s.rc.Flush()
}
