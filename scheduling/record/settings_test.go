package record_test

import (
	"bytes"
	"testing"

	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/gate"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func gateWith(t *testing.T, table *schedtest.Table, parameters string) *scheduling.Scheduler {
	t.Helper()
	return table.Build(t, []scheduling.PluginType{gate.Type(), schedtest.First},
		[]scheduling.Spec{{Name: gate.TypeName, Type: gate.TypeName, Decode: schedtest.YAML(parameters)}}, gate.TypeName, schedtest.First.Type)
}

// A record holds what a gate's comparison cannot be made again without; one that was written without it is replayed without it.
func TestGateSettings(t *testing.T) {
	for parameters, want := range map[string]*decisionv1.GateReport{
		"affinityThreshold: 0.7":       {AffinityThreshold: proto.Float64(0.7)},
		"ttftSource: latencyPredictor": {AffinityThreshold: proto.Float64(0.8), Predicted: true},
		"{ttftSource: latencyPredictor, latencyPredictionInfoProducerName: table-latency}": {
			AffinityThreshold: proto.Float64(0.8), Predicted: true, PredictedBy: schedtest.LatencyType,
		},
		"{penaltyMode: breakEven, explorationProbability: 0}": {AffinityThreshold: proto.Float64(0.8), DecodePrice: proto.Float64(0.1)},
		"{penaltyMode: breakEven, alpha: 2, kappa: 0, decodePrice: 0.5}": {
			AffinityThreshold: proto.Float64(0.8), Alpha: proto.Float64(2), Kappa: proto.Float64(0), DecodePrice: proto.Float64(0.5),
		},
	} {
		t.Run(parameters, func(t *testing.T) {
			match := scheduling.NewPrefixCacheMatchInfo(90, 100, 16)
			table := &schedtest.Table{Endpoints: []schedtest.Endpoint{
				{Match: &match, Load: &scheduling.InFlightLoad{Tokens: 100}}, {Load: &scheduling.InFlightLoad{}},
			}}
			s := gateWith(t, table, parameters)
			d := decide(table, s, &scheduling.Request{ID: 1}, 0)
			got := &decisionv1.GateReport{
				AffinityThreshold: d.GetGates()[0].AffinityThreshold, Alpha: d.GetGates()[0].Alpha, Kappa: d.GetGates()[0].Kappa, DecodePrice: d.GetGates()[0].DecodePrice,
				Predicted: d.GetGates()[0].GetPredicted(), PredictedBy: d.GetGates()[0].GetPredictedBy(),
			}
			if !proto.Equal(want, got) {
				t.Errorf("recorded %v, want %v", got, want)
			}
			replayed := func() []byte {
				again, err := record.Replay(s, d, "abc")
				if err != nil {
					t.Fatal(err)
				}
				return marshal(t, again)
			}
			if !bytes.Equal(replayed(), marshal(t, d)) {
				t.Error("the replay differs")
			}
			g := d.GetGates()[0]
			g.AffinityThreshold, g.Alpha, g.Kappa, g.DecodePrice = nil, nil, nil, nil
			if !bytes.Equal(replayed(), marshal(t, d)) {
				t.Error("the replay of a record without settings differs")
			}
		})
	}
}
