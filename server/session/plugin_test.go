package session

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// replica is one process with a session-affinity-scorer.
type replica struct {
	*scheduling.Scheduler
	pool     *scheduling.Pool
	registry *prometheus.Registry
	kind     scheduling.PluginType
	now      time.Time
	requests uint64
}

func newReplica(t *testing.T, parameters string, addresses ...string) *replica {
	t.Helper()
	r := &replica{pool: scheduling.NewPool(), registry: prometheus.NewRegistry(), now: time.Unix(1_800_000_000, 0)}
	r.kind = Type(Options{Now: func() time.Time { return r.now }, Registerer: r.registry})
	r.build(t, parameters, nil)
	r.endpoints(addresses...)
	return r
}

// build takes a configuration, as a reload does.
func (r *replica) build(t *testing.T, parameters string, previous *scheduling.Scheduler) {
	t.Helper()
	spec := scheduling.Spec{Name: TypeName, Type: TypeName, Decode: schedtest.YAML(parameters)}
	s, err := scheduling.Build([]scheduling.PluginType{r.kind, schedtest.First}, schedtest.Config([]scheduling.Spec{spec}, TypeName, schedtest.First.Type), previous)
	if err != nil {
		t.Fatal(err)
	}
	r.Scheduler = s
	t.Cleanup(r.pool.Watch(s.SnapshotChanged))
	t.Cleanup(func() { _ = s.Close() })
}

func (r *replica) endpoints(addresses ...string) {
	specs := make([]scheduling.EndpointSpec, len(addresses))
	for i, a := range addresses {
		specs[i].Address = a
	}
	r.pool.Update(specs)
}

// ask decides about a request with a header, and returns the scores by address and the decision's cycle.
func (r *replica) ask(t *testing.T, name, value string) (map[string]float64, *scheduling.Cycle) {
	t.Helper()
	r.requests++
	request := &scheduling.Request{ID: r.requests}
	if name != "" {
		request.Headers = []scheduling.Header{{Name: name, Value: []byte(value)}}
	}
	c := r.Begin(r.pool.Snapshot(), request, 0)
	t.Cleanup(func() { r.End(c) })
	r.Produce(t.Context(), c)
	r.Preview(c)
	scores := map[string]float64{}
	for o := range c.Candidates.All() {
		scores[c.Snapshot.Endpoints[o].Address] = c.Scores[0].Raw[o]
	}
	return scores, c
}

// tokenOf is what an answer of an endpoint has.
func (r *replica) tokenOf(t *testing.T, address string) (name, value string) {
	t.Helper()
	answerers := r.Answerers()
	if len(answerers) != 1 {
		t.Fatalf("%d plugins add headers", len(answerers))
	}
	return answerers[0].AnswerHeader(&scheduling.Flight{Endpoint: r.pool.Snapshot().ByAddress(address)})
}

func (r *replica) want(t *testing.T, result string, n int) {
	t.Helper()
	text := &strings.Builder{}
	families, err := r.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if m.GetLabel()[0].GetValue() == result && int(m.GetCounter().GetValue()) == n {
				return
			}
			fmt.Fprintln(text, m)
		}
	}
	t.Errorf("sluice_session_tokens_total{result=%q} is not %d:\n%s", result, n, text)
}

const a, b, c = "10.0.0.1:8000", "10.0.0.2:8000", "10.0.0.3:8000"

var (
	neutral = map[string]float64{a: 0.5, b: 0.5, c: 0.5}
	homeIsB = map[string]float64{a: 0, b: 1, c: 0}
)

const withKey = "key: sixteen bytes or more"

func TestASessionComesBack(t *testing.T) {
	r := newReplica(t, withKey, a, b, c)
	if got, _ := r.ask(t, "", ""); !cmp.Equal(got, neutral) {
		t.Errorf("without a token: %v", got)
	}
	name, token := r.tokenOf(t, b)
	if name != "x-session-token" {
		t.Errorf("the header is %q", name)
	}
	if got, _ := r.ask(t, name, token); !cmp.Equal(got, homeIsB) {
		t.Errorf("with the token of b: %v", got)
	}
	r.want(t, "none", 1)
	r.want(t, "valid", 1)
	if got, _ := r.ask(t, "x-other", token); !cmp.Equal(got, neutral) {
		t.Errorf("in another header: %v", got)
	}
}

// Replicas have their endpoints in other orders, and one was added in the meantime: the key is what they share.
func TestReplicasAgree(t *testing.T) {
	one, other := newReplica(t, withKey, a, b, c), newReplica(t, withKey, "10.0.0.9:8000", c, b, a)
	_, token := one.tokenOf(t, b)
	want := map[string]float64{a: 0, b: 1, c: 0, "10.0.0.9:8000": 0}
	if got, _ := other.ask(t, "x-session-token", token); !cmp.Equal(got, want) {
		t.Errorf("the other replica: %v", got)
	}
	stranger := newReplica(t, "key: another key of 16 bytes", a, b, c)
	if got, _ := stranger.ask(t, "x-session-token", token); !cmp.Equal(got, neutral) {
		t.Errorf("with another key: %v", got)
	}
	stranger.want(t, "forged", 1)
}

func TestTokensEnd(t *testing.T) {
	r := newReplica(t, "{key: sixteen bytes or more, tokenLifetime: 10m, headerName: X-Chat}", a, b, c)
	name, token := r.tokenOf(t, b)
	if name != "x-chat" {
		t.Errorf("the header is %q, and names are compared in lower case", name)
	}
	r.now = r.now.Add(10*time.Minute - time.Second)
	if got, _ := r.ask(t, name, token); !cmp.Equal(got, homeIsB) {
		t.Errorf("a second before its end: %v", got)
	}
	_, renewed := r.tokenOf(t, b)
	r.now = r.now.Add(time.Second)
	if got, _ := r.ask(t, name, token); !cmp.Equal(got, neutral) {
		t.Errorf("at its end: %v", got)
	}
	r.want(t, "expired", 1)
	if got, _ := r.ask(t, name, renewed); !cmp.Equal(got, homeIsB) {
		t.Errorf("the token of a later answer: %v", got)
	}
}

func TestWhoServedIsGone(t *testing.T) {
	r := newReplica(t, withKey, a, b, c)
	name, token := r.tokenOf(t, b)
	ask := func(what string, want map[string]float64) {
		t.Helper()
		if got, _ := r.ask(t, name, token); !cmp.Equal(got, want) {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	r.pool.Update([]scheduling.EndpointSpec{{Address: a}, {Address: b, State: scheduling.EndpointDraining}, {Address: c}})
	ask("it drains", map[string]float64{a: 0.5, c: 0.5})
	r.endpoints(a, c)
	ask("it left", map[string]float64{a: 0.5, c: 0.5})
	r.want(t, "gone", 2)
	r.endpoints(a, b, c)
	ask("its address is back", homeIsB)
	r.pool.Update([]scheduling.EndpointSpec{{Address: a}, {Address: b, UID: "another life"}, {Address: c}})
	ask("its address has another uid", neutral)
	r.want(t, "gone", 3)

	// An answer may come when its endpoint has left.
	gone := &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: b}, Generation: 1 << 40}
	if _, late := r.Answerers()[0].AnswerHeader(&scheduling.Flight{Endpoint: gone}); late != token {
		t.Errorf("the token of who left is %q, was %q", late, token)
	}
}

// A session's endpoint that the proxy does not allow is as one that is gone.
func TestSubset(t *testing.T) {
	r := newReplica(t, withKey, a, b, c)
	name, token := r.tokenOf(t, b)
	request := &scheduling.Request{ID: 1, Headers: []scheduling.Header{{Name: name, Value: []byte(token)}}}
	cycle := r.Begin(r.pool.Snapshot(), request, 0)
	defer r.End(cycle)
	allowed := scheduling.NewSet(3)
	allowed.Add(0)
	allowed.Add(2)
	cycle.Restrict(allowed)
	r.Produce(t.Context(), cycle)
	if got := scheduling.ColumnOf[scheduling.SessionHome](cycle).Present(); !got.Empty() {
		t.Errorf("home is %v", got)
	}
	r.want(t, "gone", 1)
}

func TestTrialsAreNotCounted(t *testing.T) {
	r := newReplica(t, withKey, a, b)
	cycle := r.Begin(r.pool.Snapshot(), &scheduling.Request{ID: 1, Trial: true}, 0)
	defer r.End(cycle)
	r.Produce(t.Context(), cycle)
	r.want(t, "none", 0)
}

// Without a configured key a reload keeps the sessions, and another process does not know them.
func TestDrawnKey(t *testing.T) {
	r, other := newReplica(t, "", a, b, c), newReplica(t, "", a, b, c)
	name, token := r.tokenOf(t, b)
	r.build(t, "tokenLifetime: 2h", r.Scheduler)
	if got, _ := r.ask(t, name, token); !cmp.Equal(got, homeIsB) {
		t.Errorf("after a reload: %v", got)
	}
	if got, _ := other.ask(t, name, token); !cmp.Equal(got, neutral) {
		t.Errorf("in another process: %v", got)
	}
	if s, _ := r.Plugin(TypeName).(*Scorer); s == nil || !s.OwnKey() {
		t.Error("does not say that the key is its own")
	}
}

func TestKeyFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte("sixteen bytes or more\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r, other := newReplica(t, "keyFile: "+path, a, b, c), newReplica(t, withKey, a, b, c)
	name, token := other.tokenOf(t, b)
	if got, _ := r.ask(t, name, token); !cmp.Equal(got, homeIsB) {
		t.Errorf("a key of a file is not the same: %v", got)
	}
	s, _ := r.Plugin(TypeName).(*Scorer)
	if s.OwnKey() || s.Files()["keyFile"] != path {
		t.Errorf("own key %v, files %v", s.OwnKey(), s.Files())
	}
}

func buildError(parameters string, offline bool) error {
	spec := scheduling.Spec{Name: TypeName, Type: TypeName, Path: "plugins[0]", Decode: schedtest.YAML(parameters)}
	kind := Type(Options{Now: time.Now, Offline: offline})
	s, err := scheduling.Build([]scheduling.PluginType{kind, schedtest.First}, schedtest.Config([]scheduling.Spec{spec}, TypeName, schedtest.First.Type), nil)
	if err != nil {
		return err
	}
	return s.Close()
}

func TestParameters(t *testing.T) {
	folder := t.TempDir()
	short := filepath.Join(folder, "short")
	long := filepath.Join(folder, "long")
	if err := os.WriteFile(short, []byte("  too short \n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(long, slices.Repeat([]byte("k"), maxKeyBytes+1), 0o600); err != nil {
		t.Fatal(err)
	}
	for parameters, want := range map[string]string{
		"": "",
		"{headerName: X-Chat-Token, tokenLifetime: 720h}": "",
		"headerName: ''": "parameters.headerName: must be the name of a header, of 1 to 100 bytes",
		"headerName: " + strings.Repeat("x", 101): "of 1 to 100 bytes",
		"headerName: 'x session'":                 `must be the name of a header, got "x session"`,
		"headerName: ':path'":                     "must be the name of a header",
		"headerName: x-séance":                    "must be the name of a header",
		"headerName: Authorization":               "must be a header that means nothing else",
		"headerName: X-Envoy-Retry":               "must be a header that means nothing else",
		"headerName: X-Session-Id":                "must be a header that means nothing else",
		"tokenLifetime: 999ms":                    "parameters.tokenLifetime: must be from 1s to 720h0m0s, got 999ms",
		"tokenLifetime: 721h":                     "got 721h0m0s",
		"key: fifteen bytes..":                    "parameters.key: must have 16 to 4096 bytes, has 15",
		"{" + withKey + ", keyFile: k}":           "parameters.keyFile: stands beside key",
		"keyFile: " + short:                       "must have 16 to 4096 bytes, has 9",
		"keyFile: " + long:                        "has more than 4096 bytes",
		"keyFile: " + folder:                      "is a directory",
		"keyFile: " + short + "er":                "parameters.keyFile: open",
		"ttl: 1h":                                 "unknown field",
	} {
		err := buildError(parameters, false)
		switch {
		case want == "" && err != nil:
			t.Errorf("%s: refused: %v", parameters, err)
		case want != "" && err == nil:
			t.Errorf("%s: accepted", parameters)
		case want != "" && !strings.Contains(err.Error(), want):
			t.Errorf("%s: got %q, want it to hold %q", parameters, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "fifteen bytes") {
			t.Errorf("the error holds the key: %v", err)
		}
	}
	if err := buildError("keyFile: /nowhere/key", true); err != nil {
		t.Errorf("where nobody is served, a key file is not needed: %v", err)
	}
}

// What is recorded is enough to make the decision again, without the token.
func TestDecisionsReplay(t *testing.T) {
	r := newReplica(t, withKey, a, b, c)
	name, token := r.tokenOf(t, b)
	_, cycle := r.ask(t, name, token)
	d := record.Of(r.Scheduler, cycle, record.Meta{ConfigHash: "abc"})
	if len(d.GetCandidates()[1].GetSessionHomes()) != 1 || d.GetPicks()[0] != 1 {
		t.Fatalf("record %v", d)
	}
	if strings.Contains(d.String(), token) {
		t.Error("the record holds the token")
	}
	again, err := record.Replay(r.Scheduler, d, "abc")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(d, again, protocmp.Transform()); diff != "" {
		t.Errorf("(-recorded +replayed):\n%s", diff)
	}
}

func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	r := newReplica(t, withKey, a, b, c)
	name, token := r.tokenOf(t, b)
	_, cycle := r.ask(t, name, token)
	s, _ := r.Plugin(TypeName).(*Scorer)
	if n := testing.AllocsPerRun(100, func() {
		if err := s.Produce(t.Context(), cycle); err != nil {
			t.Error(err)
		}
		s.Score(cycle, cycle.Candidates, cycle.Scores[0].Raw)
	}); n != 0 {
		t.Errorf("%v allocations to read a token and score", n)
	}
	f := &scheduling.Flight{Endpoint: r.pool.Snapshot().ByAddress(b)}
	if n := testing.AllocsPerRun(100, func() { s.AnswerHeader(f) }); n > 1 {
		t.Errorf("%v allocations to make a token, want the token itself", n)
	}
}

func TestMetricsAreThereFromTheStart(t *testing.T) {
	r := newReplica(t, "", a)
	if n, err := testutil.GatherAndCount(r.registry, "sluice_session_tokens_total"); err != nil || n != int(numVerdicts) {
		t.Errorf("%d series, %v", n, err)
	}
}
