package simulate

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/server/decisionlog"
	"github.com/sluice-epp/sluice/sim/trace"
)

// OpenTrace reads a trace in any format: those of trace.Open, and a decision log, as files or as their folder. Reading a log ends with
// ctx, and then the error is ctx's.
func OpenTrace(ctx context.Context, path string) (*trace.Trace, error) {
	log, err := isDecisionLog(path)
	if err != nil {
		return nil, err
	}
	if !log {
		return trace.Open(path)
	}
	t, err := openLog(ctx, path)
	if info, _ := os.Stat(path); err != nil && info != nil && info.IsDir() {
		err = fmt.Errorf("%w (a folder is read as a decision log; name a trace file)", err)
	}
	return t, err
}

func openLog(ctx context.Context, path string) (*trace.Trace, error) {
	reader, err := decisionlog.NewReader(path)
	if err != nil {
		return nil, err
	}
	return decided(ctx, filepath.Base(path), reader)
}

// maxEndpoints bounds how many endpoints of a log are told apart.
const maxEndpoints = 4096

// isDecisionLog tells a decision log from a trace by how it begins.
func isDecisionLog(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return false, err
	}
	if info.IsDir() {
		return true, nil
	}
	head, err := bufio.NewReader(f).Peek(4)
	if err != nil && !errors.Is(err, io.EOF) {
		return false, err
	}
	from := io.Reader(f)
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return false, err
	}
	if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) {
		unzipped, err := gzip.NewReader(f)
		if err != nil {
			return false, nil // whoever reads it says so
		}
		from = unzipped
	}
	line := make([]byte, 1024)
	n, err := io.ReadFull(from, line)
	if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) && !errors.Is(err, io.EOF) {
		return false, nil // whoever reads it says so
	}
	line = bytes.TrimLeft(line[:n], " \t\r\n")
	return bytes.Equal(head, []byte("PAR1")) || bytes.HasPrefix(line, []byte("{")) && bytes.Contains(line, []byte(`"time_unix_nano"`)), nil
}

// decided makes a trace of a decision log.
func decided(ctx context.Context, name string, reader *decisionlog.Reader) (*trace.Trace, error) {
	all := trace.NewDecisions(name)
	var skipped skips
	endpoints := map[string]bool{}
	for d, err := range reader.Decisions(ctx) {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err != nil {
			skipped.add(err)
			continue
		}
		for _, e := range d.GetCandidates() {
			if len(endpoints) < maxEndpoints {
				endpoints[e.GetAddress()] = true
			}
		}
		if err := all.Add(requestOf(d)); err != nil {
			return nil, err
		}
	}
	t, err := all.Trace()
	if err != nil {
		if skipped.n > 0 {
			return nil, fmt.Errorf("%w; %s", err, skipped)
		}
		return nil, err
	}
	t.Endpoints = len(endpoints)
	t.Notes = notesOn(all, len(t.Requests), skipped)
	return t, nil
}

// skips are the rows of a log that could not be read.
type skips struct {
	n     int
	first error
}

func (s *skips) add(err error) {
	if s.n++; s.first == nil {
		s.first = err
	}
}

// String counts them and names the first.
func (s skips) String() string {
	return fmt.Sprintf("%s could not be read; the first: %v", plural(s.n, "row"), s.first)
}

// notesOn say what a log does not tell of its requests.
func notesOn(all *trace.Decisions, requests int, skipped skips) (notes []string) {
	add := func(n int, format string, args ...any) {
		if n > 0 {
			notes = append(notes, fmt.Sprintf(format, args...))
		}
	}
	add(skipped.n, "%s", skipped)
	add(all.NoPrompt, "left out, for the length of their prompts is not known: %s", display.Things(float64(all.NoPrompt), "decision"))
	add(all.NoOutput, "of unknown length, and taken to be as long as the mean of the others: %s", display.Things(float64(all.NoOutput), "answer"))
	switch {
	case !all.Known():
		add(1, "the log holds no hashes of prompts: prompts have nothing in common, so that no prefix cache hits (telemetry.decisionLog.blockHashes records them)")
	case all.NoHashes > 0:
		add(1, "%d of %d prompts have no hashes, or of another size of block: they have nothing in common with any", all.NoHashes, requests)
	}
	add(all.Cut, "of %d of %d prompts the log holds the hashes of a part: what follows has nothing in common with any (telemetry.decisionLog.blockHashes is the most)", all.Cut, requests)
	add(max(0, len(all.Seeds)-1), "the hashes are of %d seeds: prompts of different processes have nothing in common (telemetry.decisionLog.hashSeed makes them one)", len(all.Seeds))
	return notes
}

// requestOf is what a decision tells of its request. Lengths are those that the engine counted, else those that the decision knew.
func requestOf(d *decisionv1.Decision) trace.Decision {
	r, o := d.GetRequest(), d.GetOutcome()
	to := trace.Decision{
		UnixNano: d.GetTimeUnixNano(), PromptTokens: whole(r.GetTokenCount()), OutputTokens: whole(o.GetCompletionTokens()), PromptBytes: whole(r.GetPromptBytes()),
		Session: r.GetSession(), Hashes: r.GetBlockHashes(), BlockTokens: int(r.GetHashBlockTokens()), Text: r.GetHashesText(), Seed: r.GetHashSeed(), Cut: r.GetHashesCut(),
	}
	for _, t := range r.GetTokenizedPrompts() {
		if t.GetTokens() > 0 {
			to.PromptTokens = whole(t.GetTokens())
			break
		}
	}
	if o.GetPromptTokens() > 0 {
		to.PromptTokens = whole(o.GetPromptTokens())
	}
	return to
}

func whole(v uint64) int { return int(min(v, math.MaxInt32)) }

// Notes say what whoever reads the plan's figures should know of its traces and scenarios, each after the name of what it is about.
func (p *Plan) Notes() (notes []string) {
	seen := map[*trace.Trace]bool{}
	for i := range p.Scenarios {
		t := p.Scenarios[i].Trace
		if t == nil || seen[t] {
			continue
		}
		seen[t] = true
		for _, note := range t.Notes {
			notes = append(notes, t.Name+": "+note)
		}
	}
	type of struct {
		trace *trace.Trace
		note  string
	}
	names, order := map[of][]string{}, []of{}
	for i := range p.Scenarios {
		s := &p.Scenarios[i]
		for _, note := range []string{s.rounded(), s.otherFleet()} {
			if note == "" {
				continue
			}
			about := of{s.Trace, note}
			if names[about] == nil {
				order = append(order, about)
			}
			names[about] = append(names[about], s.Name)
		}
	}
	for _, about := range order {
		name := names[about][0]
		if more := len(names[about]) - 1; more > 0 {
			name += " and " + plural(more, "other scenario")
		}
		notes = append(notes, name+": "+about.note)
	}
	return notes
}

// otherFleet says so where the scenario has another number of endpoints than the log that its requests are of; else it is empty.
func (s *Scenario) otherFleet() string {
	if s.Trace == nil || s.Trace.Endpoints == 0 || s.Trace.Endpoints == len(s.Engines) {
		return ""
	}
	return fmt.Sprintf("the log has %s, %d are simulated: --endpoints (in a grid, endpoints) says how many", plural(s.Trace.Endpoints, "endpoint"), len(s.Engines))
}

// plural is a number of things.
func plural(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// rounded is a warning where the trace's times are rounded and the scenario does not spread them; else empty.
func (s *Scenario) rounded() string {
	if s.Trace == nil {
		return ""
	}
	step := s.Trace.Rounded()
	if step == 0 || s.Jitter >= step/2 {
		return ""
	}
	return fmt.Sprintf("many requests come at the same instant, every %v: use --jitter %v (in a grid, jitter: %v), else figures are those of bursts that never were",
		step, step, step)
}
