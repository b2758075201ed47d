package record

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// maxOrdinal bounds the memory that a record can ask for.
const maxOrdinal = 1 << 16

// Replay decides a recorded decision again with s and returns the record of that. The recorded values and the recorded
// seed take the place of s's producers, so that under the configuration that made the record the new one is the same to
// the byte, and under another one only what the configuration changes differs. configHash names s's configuration.
//
// A column that s reads takes the recorded values of the producer of the same name, or of the only producer of its data
// type. The error is a *Lack where the record has neither, or not the labels that s reads.
func Replay(s *scheduling.Scheduler, d *decisionv1.Decision, configHash string) (*decisionv1.Decision, error) {
	snapshot, err := snapshotOf(d)
	if err != nil {
		return nil, fmt.Errorf("decision %d: %w", d.GetId(), err)
	}
	request := requestFrom(d)
	c := s.Begin(snapshot, &request, 0)
	defer s.End(c)
	if err := restoreAll(s, c, d); err != nil {
		return nil, err
	}
	for _, f := range d.GetFaults() {
		c.Faults = append(c.Faults, scheduling.Fault{Producer: f.GetProducer(), Err: errors.New(f.GetError())})
	}
	s.Decide(c)
	again := Of(s, c, Meta{ClientRequestID: d.GetClientRequestId(), UnixNano: d.GetTimeUnixNano(), ConfigHash: configHash})
	from := d.GetRequest()
	again.Request.BlockHashes = slices.Clone(from.GetBlockHashes())
	again.Request.HashBlockTokens, again.Request.HashesText, again.Request.HashesCut = from.GetHashBlockTokens(), from.GetHashesText(), from.GetHashesCut()
	again.Request.HashSeed, again.Request.Session = from.GetHashSeed(), from.GetSession()
	forget(again, d)
	return again, nil
}

// forget leaves out the gates' settings where the recorded decision is of a version that did not write them, so that they are no
// difference.
func forget(again, d *decisionv1.Decision) {
	for _, g := range d.GetGates() {
		if g.AffinityThreshold != nil {
			return
		}
	}
	if len(d.GetGates()) == 0 {
		return
	}
	for _, g := range again.GetGates() {
		g.AffinityThreshold, g.Alpha, g.Kappa, g.DecodePrice = nil, nil, nil, nil
	}
}

// restoreAll makes a cycle what it was when the recorded decision was about to be made.
func restoreAll(s *scheduling.Scheduler, c *scheduling.Cycle, d *decisionv1.Decision) error {
	c.Seed = d.GetSeed()
	c.MaxPicks = int(min(max(1, d.GetMaxPicks()), maxOrdinal))
	restrict(c, d)
	return restore(s, c, d)
}

// snapshotOf is the set of endpoints that a decision was about.
func snapshotOf(d *decisionv1.Decision) (*scheduling.Snapshot, error) {
	endpoints := make([]*scheduling.Endpoint, 0, len(d.GetCandidates()))
	seen := make(map[uint32]bool, len(d.GetCandidates()))
	for i, from := range d.GetCandidates() {
		o := from.GetOrdinal()
		if o >= maxOrdinal || seen[o] {
			return nil, fmt.Errorf("candidates[%d].ordinal: must be below %d and stand once, got %d", i, maxOrdinal, o)
		}
		seen[o] = true
		e := &scheduling.Endpoint{Ordinal: int(o), Generation: from.GetGeneration()}
		e.Address, e.Name, e.Labels = from.GetAddress(), from.GetName(), from.GetLabels()
		if e.Name == "" {
			e.Name = e.Address
		}
		state := from.GetState() - decisionv1.EndpointState_ENDPOINT_STATE_READY
		if state < 0 || state > math.MaxUint8 {
			return nil, fmt.Errorf("candidates[%d].state: unknown state %v", i, from.GetState())
		}
		e.State = scheduling.EndpointState(state)
		endpoints = append(endpoints, e)
	}
	return scheduling.RestoreSnapshot(d.GetSnapshotVersion(), endpoints), nil
}

func requestFrom(d *decisionv1.Decision) scheduling.Request {
	r := d.GetRequest()
	operation := max(0, r.GetOperation()-decisionv1.Operation_OPERATION_OTHER)
	return scheduling.Request{
		ID:              d.GetId(),
		Operation:       scheduling.Operation(min(operation, math.MaxUint8)),
		Model:           r.GetModel(),
		PromptBytes:     count(r.GetPromptBytes()),
		TokenCount:      count(r.GetTokenCount()),
		MaxOutputTokens: count(r.GetMaxOutputTokens()),
		Choices:         int(r.GetChoices()),
		Stream:          r.GetStream(),
	}
}

func count(v uint64) int { return int(min(v, math.MaxInt)) }

// restrict leaves the candidates that the recorded decision began with.
func restrict(c *scheduling.Cycle, d *decisionv1.Decision) {
	c.Candidates.Clear()
	for _, e := range d.GetCandidates() {
		switch e.GetExclusion() {
		case decisionv1.Exclusion_EXCLUSION_STATE, decisionv1.Exclusion_EXCLUSION_SUBSET:
		default:
			c.Candidates.Add(int(e.GetOrdinal()))
		}
	}
	c.Considered.CopyFrom(c.Candidates)
}

// restore fills the columns that s knows with the recorded values.
func restore(s *scheduling.Scheduler, c *scheduling.Cycle, d *decisionv1.Decision) error {
	lack := &Lack{ID: d.GetId(), Inputs: lackingLabels(s, d)}
	for _, info := range s.Columns() {
		from, producer, err := source(d, info)
		if err != nil {
			if info.Decisive && !scheduling.AssumedAbsent(info.DataType) {
				lack.Inputs = append(lack.Inputs, err.Error())
			}
			continue
		}
		codecs[from.GetDataType()].read(d, producer, c, info)
	}
	if len(lack.Inputs) > 0 {
		return lack
	}
	return nil
}

// source finds the recorded column that takes a column's place, and the name that its values carry.
func source(d *decisionv1.Decision, info scheduling.ColumnInfo) (from *decisionv1.Column, producer string, err error) {
	var same []*decisionv1.Column
	for _, column := range d.GetColumns() {
		if column.GetDataType() != info.DataType {
			continue
		}
		same = append(same, column)
		if column.GetProducer() == info.Producer {
			from = column
		}
	}
	if from == nil && len(same) == 1 {
		from = same[0]
	}
	if from == nil {
		return nil, "", fmt.Errorf("the record has no %s of %q%s", info.DataType, info.Producer, recorded(same))
	}
	if _, known := codecs[info.DataType]; from.GetOpaque() || !known {
		return nil, "", fmt.Errorf("records do not hold values of type %s, which %q produces", info.DataType, info.Producer)
	}
	if len(same) > 1 {
		producer = from.GetProducer()
	}
	return from, producer, nil
}

func recorded(columns []*decisionv1.Column) string {
	if len(columns) == 0 {
		return ""
	}
	names := make([]string, len(columns))
	for i, column := range columns {
		names[i] = fmt.Sprintf("%q", column.GetProducer())
	}
	return "; it has that of " + strings.Join(names, ", ")
}
