package capture

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"

	"github.com/sluice-epp/sluice/sim"
)

// The bounds of a capture.
const (
	// MaxSteps is how many steps one may have.
	MaxSteps = 100_000
	// maxLine is the longest line, in bytes.
	maxLine = 1 << 20
	// maxTokens is how many tokens all prompts may have together.
	maxTokens = 1 << 26
)

// Engine describes the engine that was captured.
type Engine struct {
	// Name is what it is, with its version.
	Name string `json:"engine"`
	// BlockSize is in tokens. NumBlocks are those that it can use: vLLM keeps one of its own.
	BlockSize int `json:"block_size"`
	NumBlocks int `json:"num_blocks"`
	// MaxBatchedTokens is how many tokens it computes in one step, MaxModelLen how many prompt and answer may have together.
	MaxBatchedTokens int `json:"max_batched_tokens"`
	MaxModelLen      int `json:"max_model_len"`
}

// Params are the model's parameters for such an engine.
func (e Engine) Params() sim.Params {
	p := sim.DefaultParams()
	p.BlockSize, p.NumBlocks, p.MaxBatchedTokens, p.MaxModelLen = e.BlockSize, e.NumBlocks, e.MaxBatchedTokens, e.MaxModelLen
	p.MaxSeqs = min(p.MaxSeqs, p.MaxBatchedTokens)
	return p
}

// Step is a request and what came of it, or a reset of the cache.
type Step struct {
	// Name says what the step is there for.
	Name string `json:"name"`
	// Reset empties the cache; nothing else is set then.
	Reset bool `json:"reset,omitzero"`
	// Prompt is the recipe of the prompt's tokens, pieces with spaces between them: A+N are N tokens A, A+1, …; =S is the
	// whole prompt of step S, counted from 0; @S+N are the first N tokens of the answer of step S.
	Prompt string `json:"prompt,omitzero"`
	// Adapter and Salt are parts of every block's hash.
	Adapter string `json:"adapter,omitzero"`
	Salt    string `json:"salt,omitzero"`
	// Together says that the request was waiting beside the one before it, after it in the queue, when the engine began with
	// either.
	Together bool `json:"together,omitzero"`
	// Output are the tokens that the engine answered.
	Output []uint32 `json:"output,omitzero"`
	// Cached are the tokens of the prompt that it reported as cached.
	Cached int `json:"cached"`
}

// Capture is a run.
type Capture struct {
	Engine Engine
	Steps  []Step
}

// Read reads a capture. An error names the line.
func Read(r io.Reader) (*Capture, error) {
	c := &Capture{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		var into any = &c.Engine
		if n > 1 {
			if len(c.Steps) == MaxSteps {
				return nil, fmt.Errorf("line %d: more than %d steps", n, MaxSteps)
			}
			c.Steps = append(c.Steps, Step{})
			into = &c.Steps[len(c.Steps)-1]
		}
		if err := json.Unmarshal(lines.Bytes(), into, json.RejectUnknownMembers(true)); err != nil {
			return nil, fmt.Errorf("line %d: %w", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read capture: %w", err)
	}
	if len(c.Steps) == 0 {
		return nil, errors.New("capture has no steps")
	}
	if err := c.Engine.Params().Validate(); err != nil {
		return nil, fmt.Errorf("line 1: %w", err)
	}
	return c, nil
}

// Write writes a capture as [Read] reads it.
func (c *Capture) Write(w io.Writer) error {
	out := bufio.NewWriter(w)
	put := func(v any) error {
		b, err := json.Marshal(v)
		if err == nil {
			_, err = out.Write(append(b, '\n'))
		}
		return err
	}
	errs := []error{put(c.Engine)}
	for i := range c.Steps {
		errs = append(errs, put(&c.Steps[i]))
	}
	return errors.Join(append(errs, out.Flush())...)
}

// Prompts makes the prompts of steps that come one after the other. The zero value is ready.
type Prompts struct {
	// Longest is how many tokens one may have.
	Longest int

	prompts [][]uint32
	total   int
}

// Next makes the prompt of the next step, nil for a reset. before are the steps so far, with their answers.
func (p *Prompts) Next(before []Step, s Step) ([]uint32, error) {
	var prompt []uint32
	for piece := range strings.FieldsSeq(s.Prompt) {
		more, err := p.piece(before, piece)
		if err != nil {
			return nil, fmt.Errorf("prompt: %q: %w", piece, err)
		}
		if len(more) > p.Longest-len(prompt) {
			return nil, fmt.Errorf("prompt: longer than %d tokens", p.Longest)
		}
		prompt = append(prompt, more...)
	}
	if s.Reset != (len(prompt) == 0) {
		return nil, errors.New("want either a prompt or a reset")
	}
	if p.total += len(prompt); p.total > maxTokens {
		return nil, fmt.Errorf("prompts of more than %d tokens together", maxTokens)
	}
	p.prompts = append(p.prompts, prompt)
	return prompt, nil
}

func (p *Prompts) piece(before []Step, piece string) ([]uint32, error) {
	if step, ok := strings.CutPrefix(piece, "="); ok {
		s, err := number(step, len(p.prompts)-1)
		if err != nil {
			return nil, err
		}
		return p.prompts[s], nil
	}
	from, count, _ := strings.Cut(piece, "+")
	if step, ok := strings.CutPrefix(from, "@"); ok {
		s, err := number(step, len(before)-1)
		if err != nil {
			return nil, err
		}
		n, err := number(count, len(before[s].Output))
		if err != nil {
			return nil, err
		}
		return before[s].Output[:n], nil
	}
	first, err := number(from, 1<<30)
	if err != nil {
		return nil, err
	}
	n, err := number(count, p.Longest)
	if err != nil {
		return nil, err
	}
	run := make([]uint32, n)
	for i := range run {
		run[i] = uint32(first + i)
	}
	return run, nil
}

func number(text string, most int) (int, error) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil || int(n) > most {
		return 0, fmt.Errorf("want a number from 0 to %d, got %q", most, text)
	}
	return int(n), nil
}
