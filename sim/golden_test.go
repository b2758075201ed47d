package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
)

// script drives one engine with commands and writes down all that it does.
type script struct {
	engine *Engine
	jobs   map[string]*Job
	names  map[*Job]string
	hashes map[uint64]string // printed instead of the hash, so that outputs can be read
	now    time.Duration
	out    strings.Builder
}

// TestScenarios runs testdata/scenario_*.txt. Run with -rewrite to record new output, and read the
// difference. Commands:
//
//	engine blocks=N block-size=N budget=N seqs=N len=N [offload=N]
//	submit JOB prompt=FIRST+N,... output=FIRST+N [adapter=A] [salt=S] [report]
//	abort JOB
//	reset [running] [offloaded]
//	run [steps=N]      until idle when absent
func TestScenarios(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		s := &script{jobs: map[string]*Job{}, names: map[*Job]string{}, hashes: map[uint64]string{}}
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			s.out.Reset()
			if err := s.do(t, d); err != nil {
				fmt.Fprintf(&s.out, "error: %v\n", err)
			}
			return s.out.String()
		})
	})
}

func (s *script) do(t *testing.T, d *datadriven.TestData) error {
	switch d.Cmd {
	case "engine":
		p := DefaultParams()
		d.ScanArgs(t, "blocks", &p.NumBlocks)
		d.ScanArgs(t, "block-size", &p.BlockSize)
		d.ScanArgs(t, "budget", &p.MaxBatchedTokens)
		d.ScanArgs(t, "seqs", &p.MaxSeqs)
		d.ScanArgs(t, "len", &p.MaxModelLen)
		d.MaybeScanArgs(t, "offload", &p.OffloadBlocks)
		e, err := New(p, s)
		s.engine = e
		return err
	case "submit":
		j := &Job{Prompt: spans(t, d, "prompt"), Output: spans(t, d, "output")}
		d.MaybeScanArgs(t, "adapter", &j.Adapter)
		d.MaybeScanArgs(t, "salt", &j.Salt)
		j.Report = d.HasArg("report")
		s.jobs[d.CmdArgs[0].Key], s.names[j] = j, d.CmdArgs[0].Key
		return s.engine.Submit(s.now, j)
	case "abort":
		fmt.Fprintln(&s.out, s.engine.Abort(s.jobs[d.CmdArgs[0].Key]))
	case "reset":
		if d.HasArg("running") {
			s.engine.PreemptAll()
		}
		if d.HasArg("offloaded") {
			s.engine.ResetOffloaded()
		}
		fmt.Fprintln(&s.out, s.engine.ResetCache())
	case "run":
		steps := 1000
		d.MaybeScanArgs(t, "steps", &steps)
		for range steps {
			if !s.step() {
				break
			}
		}
		st := s.engine.Stats()
		fmt.Fprintf(&s.out, "waiting=%d running=%d free=%d cached=%d", st.Waiting, st.Running, st.FreeBlocks, st.CachedBlocks)
		if s.engine.Params().OffloadBlocks > 0 {
			fmt.Fprintf(&s.out, " offloaded=%d", st.OffloadedBlocks)
		}
		fmt.Fprintln(&s.out)
	default:
		t.Fatalf("unknown command %q", d.Cmd)
	}
	return nil
}

func (s *script) step() bool {
	if _, ok := s.engine.Begin(s.now); !ok {
		return false
	}
	r := s.engine.Complete()
	s.now = r.End
	fmt.Fprintf(&s.out, "%v step prefill=%d decode=%d ctx=%d", r.End.Round(10*time.Microsecond), r.PrefillTokens, r.Decodes, r.ContextTokens)
	if r.LoadedTokens > 0 {
		fmt.Fprintf(&s.out, " loaded=%d", r.LoadedTokens)
	}
	fmt.Fprintln(&s.out)
	for _, e := range r.Events {
		switch e.Kind {
		case FirstToken, Token:
			fmt.Fprintf(&s.out, "  %s %s %d", s.names[e.Job], e.Kind, e.Index)
			if e.Kind == FirstToken {
				fmt.Fprintf(&s.out, " cached=%d", e.Job.Progress().Cached)
			}
			fmt.Fprintln(&s.out)
		default:
			fmt.Fprintf(&s.out, "  %s %s\n", s.names[e.Job], e.Kind)
		}
	}
	return true
}

func (s *script) BlocksStored(st Stored) {
	size := len(st.Tokens) / len(st.Hashes)
	for i, h := range st.Hashes {
		s.hashes[h] = fmt.Sprintf("%s[%d]=%d..", s.names[st.Job], st.First+i, st.Tokens[i*size])
		fmt.Fprintf(&s.out, "  stored%s %s", medium(st.Medium), s.hashes[h])
		if st.Reused {
			fmt.Fprint(&s.out, " again")
		}
		fmt.Fprintln(&s.out)
	}
}

func (s *script) BlocksRemoved(r Removed) {
	fmt.Fprintf(&s.out, "  removed%s", medium(r.Medium))
	for _, h := range r.Hashes {
		fmt.Fprintf(&s.out, " %s", s.hashes[h])
	}
	fmt.Fprintln(&s.out)
}

func (s *script) CacheCleared() { fmt.Fprintln(&s.out, "  cleared") }

// medium names a medium other than the usual one.
func medium(m Medium) string {
	if m == GPU {
		return ""
	}
	return " " + m.String()
}

// spans reads "100+8,7+2" as tokens 100 to 107, then 7 and 8.
func spans(t *testing.T, d *datadriven.TestData, key string) []uint32 {
	t.Helper()
	var out []uint32
	arg, ok := d.Arg(key)
	if !ok {
		return nil
	}
	for _, v := range arg.Vals {
		var first uint32
		var n int
		if _, err := fmt.Sscanf(v, "%d+%d", &first, &n); err != nil {
			t.Fatalf("%s: %q: %v", key, v, err)
		}
		out = append(out, tokens(first, n)...)
	}
	return out
}
