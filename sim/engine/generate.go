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

// generate hands a task to the model. The sequences of one prompt are next to one another. The
// caller must abort the generation when it is done with it.
func (s *Server) generate(t task) (*generation, error) {
	if t.samples < 1 || t.samples*len(t.prompts) > maxSequences {
		return nil, badRequest("n", "n must be at least 1 and %d prompts times n at most %d, got n=%d",
			len(t.prompts), maxSequences, t.samples)
	}
	var adapter string
	if slices.Contains(s.cfg.Adapters, t.model) {
		adapter = t.model
	}
	maxLen := s.cfg.Params.MaxModelLen
	var jobs []*sim.Job
	for _, prompt := range t.prompts {
		n := 0
		if t.maxTokens >= 0 {
			n = max(1, min(t.maxTokens, maxLen-len(prompt)))
		}
		if len(prompt)+n > maxLen {
			return nil, badRequest("input_tokens", "the maximum context length is %d tokens, the prompt has %d and the output needs %d",
				maxLen, len(prompt), n)
		}
		for i := range t.samples {
			jobs = append(jobs, &sim.Job{
				Prompt: prompt, Output: s.writer.write(prompt, i, n, t.bare), Adapter: adapter, Salt: t.salt,
			})
		}
	}
	g := newGeneration(jobs)
	switch err := s.loop.submit(g); {
	case errors.Is(err, sim.ErrQueueFull):
		return nil, apiError{status: http.StatusServiceUnavailable, kind: "ServiceUnavailableError", message: err.Error()}
	case err != nil:
		return nil, err
	}
	return g, nil
}

// follow calls token for each output token as it is made, and returns when all sequences are over.
// A sequence's tokens come in order; last is set on its last one.
func (s *Server) follow(ctx context.Context, g *generation, token func(seq, index int, last bool) error) error {
	sent := make([]int, len(g.jobs))
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
			over = over && finished
			for ; sent[seq] < made; sent[seq]++ {
				if err := token(seq, sent[seq], sent[seq] == len(j.Output)-1); err != nil {
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
	return s.follow(ctx, g, func(int, int, bool) error { return nil })
}

// output is the text of a sequence's answer.
func (s *Server) output(j *sim.Job) string {
	var b []byte
	for _, id := range j.Output {
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
