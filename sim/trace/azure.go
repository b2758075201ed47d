package trace

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"
)

// azureHeader is the first line of a trace of AzurePublicDataset's AzureLLMInferenceTrace (CC-BY 4.0).
const azureHeader = "TIMESTAMP,ContextTokens,GeneratedTokens"

// azureTime is how its times are written.
const azureTime = "2006-01-02 15:04:05.9999999"

// ReadAzure reads a trace of lengths: CSV with TIMESTAMP, ContextTokens and GeneratedTokens. Nothing in it is shared: every
// prompt has blocks of its own.
func ReadAzure(name string, r io.Reader) (*Trace, error) {
	t := &Trace{Name: name, BlockTokens: mooncakeBlock}
	var first time.Time
	header, nextBlock := false, uint64(0)
	err := eachLine(name, r, func(line []byte) error {
		if !header {
			header = true
			if string(line) != azureHeader {
				return fmt.Errorf("begins with %q; want %q", clip(line), azureHeader)
			}
			return nil
		}
		fields := bytes.Split(line, []byte(","))
		if len(fields) != 3 {
			return fmt.Errorf("%d fields; want 3", len(fields))
		}
		at, err := time.Parse(azureTime, string(fields[0]))
		if err != nil {
			return fmt.Errorf("TIMESTAMP: %w", err)
		}
		if first.IsZero() {
			first = at
		}
		prompt, err := strconv.Atoi(string(fields[1]))
		if err != nil {
			return fmt.Errorf("ContextTokens: %w", err)
		}
		output, err := strconv.Atoi(string(fields[2]))
		if err != nil {
			return fmt.Errorf("GeneratedTokens: %w", err)
		}
		request := Request{At: at.Sub(first), PromptTokens: max(1, prompt), OutputTokens: max(1, output)}
		if prompt > MaxPromptTokens || prompt < 0 {
			return fmt.Errorf("ContextTokens: %d; want 0 to %d", prompt, MaxPromptTokens)
		}
		for range (request.PromptTokens + t.BlockTokens - 1) / t.BlockTokens {
			nextBlock++
			request.Blocks = append(request.Blocks, nextBlock)
		}
		if err := request.validate(t.BlockTokens, 0); err != nil {
			return err
		}
		t.Requests = append(t.Requests, request)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if !header {
		return nil, errors.New(name + ": is empty")
	}
	t.sort()
	return t.valid()
}

// clip shortens what an error quotes.
func clip(b []byte) []byte { return b[:min(len(b), 80)] }
