package fit

import (
	"bufio"
	"bytes"
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	simfit "github.com/sluice-epp/sluice/sim/fit"
)

// The bounds of what is read.
const (
	// MaxSamples is how many samples are kept. Of more of them so many are drawn at random, evenly.
	MaxSamples = 200_000
	maxLine    = 1 << 20
)

// Why rows are left out.
const (
	SkippedBusy = "came while other requests waited or were in prefill"
	SkippedKind = "not a streamed answer that came whole, with its usage"
	SkippedElse = "of another endpoint or model"
	SkippedOdd  = "with numbers that cannot be"
)

// Samples collects samples. The zero value is ready.
type Samples struct {
	// Kept are the samples.
	Kept []simfit.Sample
	// Read is how many rows there were, Skipped how many of them were left out, by reason.
	Read    int
	Skipped map[string]int

	random    *rand.Rand
	seen      int               // samples, kept or not
	endpoints map[string]string // of logs: names by addresses
}

func (s *Samples) skip(why string) {
	if s.Skipped == nil {
		s.Skipped = map[string]int{}
	}
	s.Skipped[why]++
}

func (s *Samples) keep(sample simfit.Sample) {
	s.seen++
	if len(s.Kept) < MaxSamples {
		s.Kept = append(s.Kept, sample)
		return
	}
	if s.random == nil {
		s.random = rand.New(rand.NewPCG(1, 2))
	}
	if i := s.random.IntN(s.seen); i < len(s.Kept) {
		s.Kept[i] = sample
	}
}

// Columns are the names of a table's columns, and of a JSON line's members. The first two are needed, and one of the times.
var Columns = []string{
	"prompt_tokens", "cached_tokens", "ttft_ms", "tpot_ms", "output_tokens", "decoding", "context_tokens", "in_flight",
}

// Table reads CSV, whose first line names the columns, or JSON lines, whichever its first byte says. Columns of other names are
// left alone. An error names the line.
func (s *Samples) Table(r io.Reader) error {
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, maxLine)
	var names []string // of CSV
	n, first := 0, true
	for lines.Scan() {
		n++
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var err error
		switch {
		case first && line[0] != '{':
			names, err = header(string(line))
		case names == nil:
			err = s.json(line)
		default:
			err = s.csv(names, string(line))
		}
		if err != nil {
			return fmt.Errorf("line %d: %w", n, err)
		}
		first = false
	}
	if err := lines.Err(); err != nil {
		return fmt.Errorf("line %d: %w", n+1, err)
	}
	if first {
		return errors.New("is empty")
	}
	return nil
}

// row is one line of a table, by column.
type row map[string]float64

func header(line string) ([]string, error) {
	names, err := fields(strings.TrimPrefix(line, "\ufeff"))
	if err != nil {
		return nil, err
	}
	for i, name := range names {
		names[i] = strings.ToLower(strings.TrimSpace(name))
		if slices.Contains(Columns, names[i]) && slices.Contains(names[:i], names[i]) {
			return nil, fmt.Errorf("column %s comes twice", names[i])
		}
	}
	return names, needed(func(name string) bool { return slices.Contains(names, name) })
}

// fields splits a line of CSV.
func fields(line string) ([]string, error) {
	all, err := csv.NewReader(strings.NewReader(line)).Read()
	var fault *csv.ParseError
	if errors.As(err, &fault) {
		err = fault.Err
	}
	return all, err
}

// needed reports the column that is missing.
func needed(has func(name string) bool) error {
	for _, name := range Columns[:2] {
		if !has(name) {
			return fmt.Errorf("%s is missing; the columns are %s", name, strings.Join(Columns, ", "))
		}
	}
	if !has("ttft_ms") && !has("tpot_ms") {
		return errors.New("both ttft_ms and tpot_ms are missing")
	}
	return nil
}

func (s *Samples) csv(names []string, line string) error {
	all, err := fields(line)
	if err != nil {
		return err
	}
	if len(all) != len(names) {
		return fmt.Errorf("%d fields, the first line has %d", len(all), len(names))
	}
	values := row{}
	for i, name := range names {
		text := strings.TrimSpace(all[i])
		if text == "" || !slices.Contains(Columns, name) {
			continue
		}
		if values[name], err = strconv.ParseFloat(text, 64); err != nil {
			return fmt.Errorf("%s: want a number, got %q", name, text)
		}
	}
	return s.row(values)
}

func (s *Samples) json(line []byte) error {
	var members map[string]jsontext.Value
	if err := json.Unmarshal(line, &members); err != nil {
		return err
	}
	values := row{}
	for _, name := range Columns {
		text, ok := members[name]
		if !ok || text.Kind() == 'n' {
			continue
		}
		var v float64
		if err := json.Unmarshal(text, &v); err != nil {
			return fmt.Errorf("%s: want a number, got %s", name, text)
		}
		values[name] = v
	}
	if err := needed(func(name string) bool { _, ok := values[name]; return ok }); err != nil {
		return err
	}
	return s.row(values)
}

// row takes a line in, if its request came to an engine that did nothing but decode.
func (s *Samples) row(values row) error {
	s.Read++
	whole := func(name string) (int, error) {
		v := values[name]
		if v != math.Trunc(v) || math.Abs(v) > 1<<52 {
			return 0, fmt.Errorf("%s: want a whole number, got %v", name, v)
		}
		return int(v), nil
	}
	sample := simfit.Sample{TTFT: values["ttft_ms"] / 1000, TPOT: values["tpot_ms"] / 1000}
	inFlight := 0
	for name, at := range map[string]*int{
		"prompt_tokens": &sample.PromptTokens, "cached_tokens": &sample.CachedTokens, "output_tokens": &sample.OutputTokens,
		"decoding": &sample.Decoding, "context_tokens": &sample.ContextTokens, "in_flight": &inFlight,
	} {
		v, err := whole(name)
		if err != nil {
			return err
		}
		*at = v
	}
	if err := sample.Validate(); err != nil {
		return err
	}
	if _, known := values["in_flight"]; known && inFlight > sample.Decoding {
		s.skip(SkippedBusy)
		return nil
	}
	s.keep(sample)
	return nil
}
