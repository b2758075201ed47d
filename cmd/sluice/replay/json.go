package replay

import (
	"io"
	"math"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-epp/sluice/scheduling/explain"
)

// report is a result as JSON. Shares and ratios that there is nothing to compute from are null.
type report struct {
	Config      string           `json:"config,omitzero"`
	Hash        string           `json:"config_hash,omitzero"`
	Rows        int64            `json:"rows"`
	Replayed    int64            `json:"replayed"`
	Verified    int64            `json:"verified"`
	Identical   int64            `json:"identical"`
	Different   int64            `json:"different"`
	First       *Difference      `json:"first_difference"`
	LeftOut     []Named          `json:"left_out"`
	Unread      []Named          `json:"unread"`
	Substituted []Named          `json:"substituted"`
	Producers   []string         `json:"producers_from_the_record"`
	OpenLoop    bool             `json:"open_loop"`
	All         partReport       `json:"all"`
	Models      []partReport     `json:"models"`
	Endpoints   []endpointReport `json:"endpoints"`
	Causes      []Named          `json:"causes"`
	Verdicts    []Named          `json:"gate_verdicts"`
	Moved       []movedReport    `json:"moved_cached_tokens"`
	Times       timesReport      `json:"times"`
	Examples    []exampleReport  `json:"examples"`
}

type partReport struct {
	Model        string   `json:"model"`
	Decisions    int64    `json:"decisions"`
	Flips        int64    `json:"flips"`
	NoLonger     int64    `json:"no_longer_picked"`
	Newly        int64    `json:"newly_picked"`
	MoreCached   int64    `json:"to_more_cached"`
	LessCached   int64    `json:"to_less_cached"`
	SameCached   int64    `json:"to_as_much_cached"`
	MoreLoaded   int64    `json:"to_more_in_flight"`
	LessLoaded   int64    `json:"to_less_in_flight"`
	SameLoaded   int64    `json:"to_as_much_in_flight"`
	KnownHits    int64    `json:"decisions_with_known_hits"`
	PromptTokens int64    `json:"prompt_tokens"`
	CachedBefore int64    `json:"cached_tokens_before"`
	CachedNow    int64    `json:"cached_tokens_now"`
	HitBefore    *float64 `json:"hit_rate_before"`
	HitNow       *float64 `json:"hit_rate_now"`
	PicksBefore  *float64 `json:"picks_max_over_mean_before"`
	PicksNow     *float64 `json:"picks_max_over_mean_now"`
	TokensBefore *float64 `json:"uncached_max_over_mean_before"`
	TokensNow    *float64 `json:"uncached_max_over_mean_now"`
}

type endpointReport struct {
	Name            string `json:"name"`
	DecisionsBefore int64  `json:"picks_before"`
	DecisionsNow    int64  `json:"picks_now"`
	TokensBefore    int64  `json:"uncached_tokens_before"`
	TokensNow       int64  `json:"uncached_tokens_now"`
}

type movedReport struct {
	UpTo  *int64 `json:"up_to"` // null: without a bound
	Flips int64  `json:"flips"`
}

type timesReport struct {
	Begin     time.Time `json:"begin"`
	StepS     float64   `json:"step_s"`
	Decisions []int64   `json:"decisions"`
	Flips     []int64   `json:"flips"`
}

type exampleReport struct {
	ID              uint64 `json:"id"`
	ClientRequestID string `json:"client_request_id"`
	TimeUnixNano    int64  `json:"time_unix_nano"`
	Was             string `json:"was"`
	Now             string `json:"now"`
	Cause           string `json:"cause"`
	Why             string `json:"why"`
}

// WriteJSON writes the result for programs.
func (r *Result) WriteJSON(w io.Writer) error {
	out := report{
		Config: r.Config, Hash: r.Hash, Rows: r.Rows, Replayed: r.Replayed, Verified: r.Verified, Identical: r.Identical, Different: r.Different, First: r.First,
		LeftOut: r.LeftOut.sorted(), Unread: r.Unread.sorted(), Substituted: r.Substituted.sorted(), Producers: r.Producers, OpenLoop: true,
		All: reportOf(&r.All), Causes: r.Causes, Verdicts: r.Verdicts,
		Times: timesReport{r.Times.Begin.UTC(), r.Times.Width.Seconds(), r.Times.Decisions, r.Times.Flips},
	}
	for _, p := range r.Models {
		out.Models = append(out.Models, reportOf(p))
	}
	for _, e := range r.Endpoints {
		out.Endpoints = append(out.Endpoints, endpointReport(*e))
	}
	for i, n := range r.Moved {
		m := movedReport{Flips: n}
		if i < len(movedBounds) {
			m.UpTo = &movedBounds[i]
		}
		out.Moved = append(out.Moved, m)
	}
	for _, e := range r.Examples {
		d := e.Before
		out.Examples = append(out.Examples, exampleReport{d.GetId(), d.GetClientRequestId(), d.GetTimeUnixNano(), explain.Reason(d), explain.Reason(e.Now), e.Change.Name(), e.Change.Words()})
	}
	return json.MarshalWrite(w, &out, json.Deterministic(true), jsontext.WithIndent("  "))
}

func reportOf(p *Part) partReport {
	return partReport{
		Model: p.Model, Decisions: p.Decisions, Flips: p.Flips, NoLonger: p.NoLonger, Newly: p.Newly,
		MoreCached: p.MoreCached, LessCached: p.LessCached, SameCached: p.SameCached,
		MoreLoaded: p.MoreLoaded, LessLoaded: p.LessLoaded, SameLoaded: p.SameLoaded,
		KnownHits: p.KnownHits, PromptTokens: p.PromptTokens, CachedBefore: p.CachedBefore, CachedNow: p.CachedNow,
		HitBefore: orNull(p.HitBefore()), HitNow: orNull(p.HitNow()),
		PicksBefore: orNull(p.Before.Decisions), PicksNow: orNull(p.Now.Decisions), TokensBefore: orNull(p.Before.Tokens), TokensNow: orNull(p.Now.Tokens),
	}
}

func orNull(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
