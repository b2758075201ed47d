package trace

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/go-json-experiment/json"
)

// mooncakeBlock is the size of a block in Mooncake's traces, in tokens.
const mooncakeBlock = 512

// maxLine is how long a line of a trace may be, in bytes.
const maxLine = 16 << 20

// mooncakeLine is a line of the format, which the Mooncake project publishes as FAST25-release/traces (Apache-2.0).
type mooncakeLine struct {
	Timestamp    *float64 `json:"timestamp"` // ms
	InputLength  int      `json:"input_length"`
	OutputLength int      `json:"output_length"`
	HashIDs      []uint64 `json:"hash_ids"`
}

// ReadMooncake reads a trace of JSON lines with timestamp, input_length, output_length and hash_ids. Ids are chained: an equal
// leading run is a shared prefix. A session is what two prompts share beyond the block that all of them begin with: it has the
// second id for its name.
//
// An answer of 0 tokens counts as one of 1 token: the engine computes it all the same.
func ReadMooncake(name string, r io.Reader) (*Trace, error) {
	t := &Trace{Name: name, BlockTokens: mooncakeBlock}
	err := eachLine(name, r, func(line []byte) error {
		var l mooncakeLine
		if err := json.Unmarshal(line, &l); err != nil {
			return err
		}
		switch {
		case l.Timestamp == nil:
			return errors.New("no timestamp")
		case !(*l.Timestamp >= 0 && *l.Timestamp < 1e12):
			return fmt.Errorf("timestamp %v; want ms from 0", *l.Timestamp)
		}
		request := Request{
			At: time.Duration(*l.Timestamp * float64(time.Millisecond)), Blocks: l.HashIDs,
			PromptTokens: l.InputLength, OutputTokens: max(1, l.OutputLength),
		}
		if len(l.HashIDs) > 1 {
			request.Session = l.HashIDs[1]
		} else if len(l.HashIDs) == 1 {
			request.Session = l.HashIDs[0]
		}
		if err := request.validate(mooncakeBlock, 0); err != nil {
			return err
		}
		t.Requests = append(t.Requests, request)
		return nil
	})
	if err != nil {
		return nil, err
	}
	t.sort()
	return t.valid()
}

// eachLine calls f for each line that is not empty. Its error names the line.
func eachLine(name string, r io.Reader, f func(line []byte) error) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	n := 0
	for lines.Scan() {
		line := bytes.TrimSpace(lines.Bytes())
		n++
		if n > MaxRequests {
			return fmt.Errorf("%s: more than %d lines", name, MaxRequests)
		}
		if len(line) == 0 {
			continue
		}
		if err := f(line); err != nil {
			return fmt.Errorf("%s:%d: %w", name, n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("%s:%d: %w", name, n+1, err)
	}
	return nil
}
