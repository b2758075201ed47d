package decisionlog

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/reflect/protoreflect"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/filter"
	"github.com/sluice-epp/sluice/scheduling/picker"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
	"github.com/sluice-epp/sluice/scheduling/scorer"
)

// What tells the tests of the Python that has DuckDB. scripts/duckdb.sh prints its path.
const (
	envDuckDB   = "SLUICE_DUCKDB"
	envRequired = "SLUICE_DUCKDB_REQUIRED"
)

const (
	pagePath   = "../../docs/decision-log.md"
	pageFolder = "/var/log/sluice/decisions"
)

// duckType is the type that a field has in DuckDB.
func duckType(fd protoreflect.FieldDescriptor) string {
	name := map[protoreflect.Kind]string{
		protoreflect.BoolKind: "BOOLEAN", protoreflect.StringKind: "VARCHAR", protoreflect.EnumKind: "VARCHAR", protoreflect.DoubleKind: "DOUBLE",
		protoreflect.Int64Kind: "BIGINT", protoreflect.Uint64Kind: "UBIGINT", protoreflect.Fixed64Kind: "UBIGINT", protoreflect.Uint32Kind: "UINTEGER",
	}[fd.Kind()]
	switch {
	case fd.IsMap():
		return "MAP(VARCHAR, VARCHAR)"
	case fd.Message() != nil:
		var columns []string
		for i := range fd.Message().Fields().Len() {
			f := fd.Message().Fields().Get(i)
			columns = append(columns, fmt.Sprintf("%q %s", f.Name(), duckType(f)))
		}
		name = "STRUCT(" + strings.Join(columns, ", ") + ")"
	}
	if fd.IsList() {
		name += "[]"
	}
	return name
}

// linesView is the view of JSON lines.
func linesView() string {
	var b strings.Builder
	b.WriteString("CREATE VIEW decisions AS SELECT * FROM read_json('" + pageFolder + "/*.jsonl*', format = 'newline_delimited', columns = {\n")
	fields := (*decisionv1.Decision)(nil).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		comma := ","
		if i == fields.Len()-1 {
			comma = ""
		}
		fmt.Fprintf(&b, "  %s: '%s'%s\n", fields.Get(i).Name(), duckType(fields.Get(i)), comma)
	}
	b.WriteString("});\n")
	return b.String()
}

var sqlBlock = regexp.MustCompile("(?s)```sql\n(.*?)```")

// sections are the page's blocks of SQL, by the heading that each stands under; those of the views are in views.
func sections(t *testing.T) (views []string, questions map[string]string) {
	t.Helper()
	page, err := os.ReadFile(pagePath)
	if err != nil {
		t.Fatal(err)
	}
	questions = map[string]string{}
	for _, section := range strings.Split(string(page), "\n##") {
		heading, rest, _ := strings.Cut(section, "\n")
		for _, m := range sqlBlock.FindAllStringSubmatch(rest, -1) {
			name, third := strings.CutPrefix(heading, "# ")
			if !third {
				views = append(views, m[1])
				continue
			}
			if questions[name] != "" {
				t.Errorf("%q has two questions", name)
			}
			questions[name] = m[1]
		}
	}
	return views, questions
}

// TestPageHasTheTypes: the page's types of JSON lines are those of the record.
func TestPageHasTheTypes(t *testing.T) {
	views, questions := sections(t)
	if len(views) != 3 || len(questions) < 12 {
		t.Fatalf("%d views and %d questions", len(views), len(questions))
	}
	if want := linesView(); views[0] != want {
		t.Errorf("the page's first view is not fresh; it has to be:\n%s", want)
	}
}

// asked is a request of the test's day, and what came of it.
type asked struct {
	model   string
	matched [3]int   // blocks of 16 tokens on vllm-0 to vllm-2, of 100
	load    [3]int64 // tokens in flight there
	subset  []int
	fault   string
	served  string
	open    bool // it does not end
	outcome scheduling.Outcome
	first   time.Duration
}

const chat, code = "llama-3.1-8b", "qwen-coder"

func served(cached int) scheduling.Outcome {
	return scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 1600, CachedTokens: cached, CompletionTokens: 50}}
}

// day is what happens, a request every half minute. All endpoints are idle but for the load that is said.
var day = []asked{
	{model: chat, load: [3]int64{0, 100, 200}, outcome: served(0), first: 400},
	{model: chat, matched: [3]int{90}, load: [3]int64{1000}, outcome: served(1440), first: 100},     // held at vllm-0
	{model: chat, matched: [3]int{90}, load: [3]int64{4001, 0, 1}, outcome: served(0), first: 300},  // released to vllm-1
	{model: code, matched: [3]int{0, 95}, load: [3]int64{0, 500}, outcome: served(800), first: 200}, // the index was wrong
	{model: code, matched: [3]int{0, 95}, outcome: scheduling.Outcome{Reason: scheduling.EndError, Status: 500, Usage: scheduling.UnknownUsage}, first: -1},
	{model: code, load: [3]int64{9, 9}, outcome: scheduling.Outcome{Reason: scheduling.EndDisconnect, Status: 200, Usage: scheduling.UnknownUsage}, first: 250},
	{model: chat, matched: [3]int{0, 0, 85}, served: "10.0.0.1:8000", outcome: served(0), first: 500},
	{model: chat, subset: []int{3}}, // which a filter leaves out
	{model: code, load: [3]int64{0, 1, 2}, fault: "no answer", open: true},
}

// answers are what the page's questions have to find in that day.
var answers = map[string]string{
	"Where did the requests of a model go?": `
		vllm-0 2 50.0
		vllm-1 1 25.0
		vllm-2 1 25.0`,
	"How many requests did each endpoint get, minute by minute?": `
		2000-01-01 00:00:00 vllm-0 2
		2000-01-01 00:01:00 vllm-1 2
		2000-01-01 00:02:00 vllm-1 1
		2000-01-01 00:02:00 vllm-2 1
		2000-01-01 00:03:00 vllm-2 1
		2000-01-01 00:04:00 vllm-0 1`,
	"How much of the prompts came out of each engine's prefix cache?": `
		10.0.0.1:8000 3 30.0
		10.0.0.2:8000 2 25.0`,
	"Does the index know what the engines have?": `
		vllm-0 2 1440 1440 0 0
		vllm-1 2 1520 800 1 0`,
	"How long did users wait for the first token, by what the gate said?": `
		held 3 200.0 440.0 494.0
		no_sticky 2 325.0 385.0 398.5
		released_matched 1 300.0 300.0 300.0`,
	"How far off were predicted times, and was what requests asked kept?": `
		vllm-0 2 0.75 1 2 1
		vllm-1 2 0.17 2 1 1`,
	"What did the gate's releases cost?": `
		prefix-cache-affinity-filter released_matched 1 1 4001.0 251.2 1440`,
	"Which picks were close?": `
		request-3 vllm-1 2e-07
		request-9 vllm-0 2e-07
		request-6 vllm-2 2.1e-06
		request-1 vllm-0 2.38e-05`,
	"Why does an endpoint get nothing?": `
		EXCLUSION_UNSPECIFIED - 5 3
		EXCLUSION_FILTER prefix-cache-affinity-filter 3 0
		EXCLUSION_SUBSET - 1 0`,
	"Why did this request go there?": `
		vllm-1 True EXCLUSION_UNSPECIFIED - 0 0 [1.0] 1.0
		vllm-2 False EXCLUSION_UNSPECIFIED - 0 1 [0.9999997615814209] 1.0
		vllm-0 False EXCLUSION_UNSPECIFIED - 1440 4001 [0.9990460872650146] 0.999046
		10.0.0.5:8000 False EXCLUSION_STATE - None None [] 0.0
		vllm-3 False EXCLUSION_FILTER gpu-only None None [] 0.0`,
	"Which filter left nothing?":                         "\n\t\tgpu-only llama-3.1-8b 1",
	"What was served by another endpoint than the pick?": "\n\t\tvllm-2 10.0.0.1:8000 1",
	"Where do requests fail?": `
		vllm-1 error 500 1
		vllm-2 disconnect 200 1`,
	"What could the producers not say?":   "\n\t\ttoken-producer no answer 1",
	"How much of the log has no outcome?": "\n\t\t8 1",
}

// deciding are the endpoints of the day, and what decides among them.
func deciding(t *testing.T) (*schedtest.Table, *scheduling.Scheduler) {
	t.Helper()
	table := &schedtest.Table{Endpoints: make([]schedtest.Endpoint, 5)}
	for i := range table.Endpoints {
		table.Endpoints[i].EndpointSpec = scheduling.EndpointSpec{Address: fmt.Sprintf("10.0.0.%d:8000", i+1), Name: fmt.Sprintf("vllm-%d", i), Labels: map[string]string{"tier": "gpu"}}
	}
	table.Endpoints[3].Labels = map[string]string{"tier": "cpu"}
	table.Endpoints[4].Name, table.Endpoints[4].State = "", scheduling.EndpointNotReady
	types := append(append(append(scorer.Types(), picker.Types()...), filter.Types()...), gate.Type())
	s := table.Build(t, types, []scheduling.Spec{
		{Name: schedtest.LatencyType, Type: schedtest.LatencyType},
		{Name: "gpu-only", Type: "label-selector-filter", Decode: schedtest.YAML("matchLabels: {tier: gpu}")},
		{Name: "prefix-cache-affinity-filter", Type: "prefix-cache-affinity-filter", Decode: schedtest.YAML("{explorationProbability: 0, penaltyMode: matchedTokens}")},
	}, "gpu-only", "prefix-cache-affinity-filter", "token-load-scorer", "max-score-picker")
	return table, s
}

// happen has the day logged to a folder.
func happen(t *testing.T, folder string, format Format) {
	table, s := deciding(t)
	synctest.Test(t, func(t *testing.T) {
		l := open(t, Options{
			Folder: folder, Format: format, SampleRatio: 1, MaxFileBytes: 1 << 20, RotateInterval: 75 * time.Second, MaxFiles: 10, MaxPendingBytes: 1 << 20,
		})
		for i, a := range day {
			for e := range 3 {
				table.Endpoints[e].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(a.matched[e], 100, 16))
				table.Endpoints[e].Load = &scheduling.InFlightLoad{Tokens: a.load[e], Requests: min(1, a.load[e])}
				table.Endpoints[e].Latency = &scheduling.LatencyPrediction{TTFTMs: 200, TTFTP90Ms: 350}
			}
			if table.Objective = nil; a.model == chat {
				table.Objective = &scheduling.LatencyObjective{TTFTMs: 300}
			}
			ask(t, l, s, table, uint64(i+1), a)
			time.Sleep(30 * time.Second)
		}
		l.Close()
	})
}

func ask(t *testing.T, l *Log, s *scheduling.Scheduler, table *schedtest.Table, id uint64, a asked) {
	t.Helper()
	pool := table.Pool().Snapshot()
	c := s.Begin(pool, &scheduling.Request{
		ID: id, Operation: scheduling.OperationChat, Model: a.model, Choices: 1, Body: []byte(secret),
		Headers: []scheduling.Header{{Name: requestIDHeader, Value: fmt.Appendf(nil, "request-%d", id)}, {Name: "authorization", Value: []byte(secret)}},
	}, 0)
	defer s.End(c)
	if a.subset != nil {
		allowed := c.Scratch()
		for _, o := range a.subset {
			allowed.Add(o)
		}
		c.Restrict(allowed)
	}
	s.Produce(t.Context(), c)
	if a.fault != "" {
		c.Faults = append(c.Faults, scheduling.Fault{Producer: "token-producer", Err: errors.New(a.fault)})
	}
	f, err := s.Commit(c)
	if (err != nil) != (a.subset != nil) {
		t.Fatalf("request %d: %v", id, err)
	}
	l.Picked(c, f, 0)
	if f == nil {
		return
	}
	if a.served != "" {
		f.Served(pool.ByAddress(a.served), f.PickedAt)
	}
	if !a.open {
		first := a.first
		if first > 0 {
			first *= time.Millisecond
		}
		l.Ended(f, a.outcome, first, time.Second)
	}
	f.Done(a.outcome, time.Second)
}

const secret = "Tell nobody what I ask"

// TestQuestionsOfThePage asks DuckDB the questions of docs/decision-log.md, as they stand there, of files of both formats.
func TestQuestionsOfThePage(t *testing.T) {
	python := pythonWithDuckDB(t)
	views, questions := sections(t)
	if len(views) != 3 || len(questions) != len(answers) {
		t.Fatalf("%d views, %d questions, %d answers", len(views), len(questions), len(answers))
	}
	var types [2]string
	for i, format := range []Format{JSONLines, Parquet} {
		t.Run(string(format), func(t *testing.T) {
			folder := t.TempDir()
			happen(t, folder, format)
			if n := len(names(t, folder)); n < 3 {
				t.Errorf("only %d files", n)
			}
			got := duckdb(t, python, folder, []string{views[i], views[2]}, questions)
			for name, want := range answers {
				want = strings.ReplaceAll(strings.TrimSpace(want), "\t", "")
				if diff := cmp.Diff(want, got[name]); diff != "" {
					t.Errorf("%s (-want +got):\n%s", name, diff)
				}
			}
			types[i] = got[""]
		})
	}
	if types[0] == "" || types[0] != types[1] {
		t.Errorf("the columns of JSON lines and of Parquet (-lines +parquet):\n%s", cmp.Diff(types[0], types[1]))
	}
}

// TestQuestionsOfAFreshLog: the view of JSON lines has the file that is being written, which is the only one at first, and
// a finished one beside it.
func TestQuestionsOfAFreshLog(t *testing.T) {
	python := pythonWithDuckDB(t)
	views, questions := sections(t)
	const question = "Where did the requests of a model go?"
	folder := t.TempDir()
	for i, want := range []string{"vllm-0 1 100.0", "vllm-0 2 100.0"} { // the second log finds the file of the first
		table, s := deciding(t)
		for e := range 3 {
			table.Endpoints[e].Match = schedtest.Ref(scheduling.NewPrefixCacheMatchInfo(90*min(1, max(0, 1-e)), 100, 16))
			table.Endpoints[e].Load = &scheduling.InFlightLoad{}
		}
		l := open(t, Options{
			Folder: folder, Format: JSONLines, SampleRatio: 1, MaxFileBytes: 1 << 20, RotateInterval: time.Hour, MaxFiles: 10, MaxPendingBytes: 1 << 20,
		})
		ask(t, l, s, table, uint64(i+1), day[0])
		for deadline := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			active, err := filepath.Glob(filepath.Join(folder, "*.active"))
			if err == nil && len(active) == 1 {
				if content, err := os.ReadFile(active[0]); err == nil && bytes.HasSuffix(content, []byte("\n")) {
					break
				}
			}
			if time.Now().After(deadline) {
				t.Fatalf("nothing is written: %v", names(t, folder))
			}
		}
		if got := duckdb(t, python, folder, []string{views[0], views[2]}, map[string]string{question: questions[question]})[question]; got != want {
			t.Errorf("log %d: %q, want %q", i, got, want)
		}
		l.Close()
	}
}

func pythonWithDuckDB(t *testing.T) string {
	t.Helper()
	python := os.Getenv(envDuckDB)
	if python == "" {
		if os.Getenv(envRequired) != "" {
			t.Fatalf("%s is not set: it names a Python with DuckDB, as scripts/duckdb.sh prints it", envDuckDB)
		}
		t.Skipf("%s is not set: run with %s=$(scripts/duckdb.sh) for the questions of the page", envDuckDB, envDuckDB)
	}
	return python
}

// TestExtremesInDuckDB: the largest numbers are exact there, and what is no number in JSON is read as what it is.
func TestExtremesInDuckDB(t *testing.T) {
	python := pythonWithDuckDB(t)
	views, _ := sections(t)
	d := &decisionv1.Decision{
		Id: math.MaxUint64, TimeUnixNano: math.MinInt64, Request: &decisionv1.Request{Model: "a\"b\\\u2028", BlockHashes: []uint64{math.MaxUint64 - 1, 0}},
		Candidates: []*decisionv1.Candidate{{Total: math.Inf(1), Scores: []float64{math.NaN(), math.Inf(-1), 1e-300, 0.1}, Labels: map[string]string{"b": "2", "a": "1"}}, {}},
		Picks:      []uint32{math.MaxUint32},
	}
	for i, content := range [][]byte{appendLine(nil, shapeFor(t), d), inParquet(t, []*decisionv1.Decision{d})} {
		folder := t.TempDir()
		if err := os.WriteFile(filepath.Join(folder, []string{"one.jsonl", "one.parquet"}[i]), content, 0o600); err != nil {
			t.Fatal(err)
		}
		got := duckdb(t, python, folder, []string{views[i]}, map[string]string{
			"all": `SELECT id, time_unix_nano, request.block_hashes, request.model, candidates[1].total, candidates[1].scores, candidates[1].labels, picks, outcome, runner_up_margin, gates, candidates[2].labels FROM decisions`,
		})["all"]
		want := "18446744073709551615 -9223372036854775808 [18446744073709551614, 0] a\"b\\\u2028 inf [nan, -inf, 1e-300, 0.1] {'a': '1', 'b': '2'} [4294967295] None None [] {}"
		if got != want {
			t.Errorf("%d: got\n%s, want\n%s", i, got, want)
		}
	}
}

// duckdb is what questions find in a folder, by their names: a line a row. By "" it is the types of the columns.
func duckdb(t *testing.T, python, folder string, statements []string, questions map[string]string) map[string]string {
	t.Helper()
	order, texts := []string{""}, []string{"DESCRIBE decisions"}
	for name, text := range questions {
		order, texts = append(order, name), append(texts, text)
	}
	in, err := json.Marshal(map[string]any{"statements": statements, "questions": texts})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, python, "testdata/ask.py")
	cmd.Stdin = bytes.NewReader(bytes.ReplaceAll(in, []byte(pageFolder), []byte(folder)))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v\n%s", err, stderr.String())
	}
	var found []struct{ Rows [][]string }
	if err := json.Unmarshal(out, &found); err != nil {
		t.Fatalf("%v in %s", err, out)
	}
	all := map[string]string{}
	for i, f := range found {
		var lines []string
		for _, row := range f.Rows {
			for j := range row {
				if row[j] == "" {
					row[j] = "-"
				}
			}
			lines = append(lines, strings.Join(row, " "))
		}
		all[order[i]] = strings.Join(lines, "\n")
	}
	return all
}

// TestNoPromptText: neither format holds what the request said, or a header but its id.
func TestNoPromptText(t *testing.T) {
	for _, format := range []Format{JSONLines, Parquet} {
		folder := t.TempDir()
		happen(t, folder, format)
		all := found(t, folder)
		if len(all) != len(day) || all[2].GetClientRequestId() != "request-3" {
			t.Fatalf("%s: %d rows", format, len(all))
		}
		for _, d := range all {
			if line := appendLine(nil, shapeFor(t), d); bytes.Contains(line, []byte("Tell")) || bytes.Contains(line, []byte("authorization")) {
				t.Errorf("%s", line)
			}
		}
	}
}
