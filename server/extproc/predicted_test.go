package extproc

import (
	"context"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.opentelemetry.io/otel/attribute"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/server/telemetry/span"
)

// foreseeing is a producer that predicts the latency of every endpoint, for requests that ask for one.
func foreseeing() scheduling.PluginType {
	return scheduling.PluginType{Type: "seer", New: func(b *scheduling.Builder) (any, error) {
		return seer{scheduling.ProduceColumn[scheduling.LatencyPrediction](b), scheduling.ProduceValue[scheduling.LatencyObjective](b)}, nil
	}}
}

type seer struct {
	key   scheduling.Key[scheduling.LatencyPrediction]
	asked scheduling.ValueKey[scheduling.LatencyObjective]
}

func (s seer) Produce(_ context.Context, c *scheduling.Cycle) error {
	s.asked.In(c).Set(scheduling.LatencyObjective{TTFTMs: 300, TPOTMs: 40})
	for e := range c.Candidates.All() {
		s.key.In(c).Set(e, foreseen)
	}
	return nil
}

var foreseen = scheduling.LatencyPrediction{
	TTFTMs: 264, TTFTP90Ms: 360, TPOTMs: 20, TPOTP90Ms: 30, WaitMs: 200, PrefillMs: 40, Residual: 1.1, Confidence: 0.75,
	TTFTHeadroomMs: -60, TPOTHeadroomMs: 10,
}

func TestPredictionAttributes(t *testing.T) {
	asked := scheduling.LatencyObjective{TTFTMs: 300, TPOTMs: 40}
	whole, odd := foreseen, foreseen
	whole.WholeResponse = true
	odd.TTFTMs, odd.TTFTP90Ms, odd.WaitMs, odd.Confidence = math.Inf(1), math.NaN(), math.NaN(), math.NaN()
	for name, tc := range map[string]struct {
		of    scheduling.LatencyPrediction
		asked scheduling.LatencyObjective
		want  map[string]any
	}{
		"all": {foreseen, asked, map[string]any{
			"sluice.predicted.ttft_ms": 264.0, "sluice.predicted.ttft_p90_ms": 360.0, "sluice.predicted.tpot_ms": 20.0, "sluice.predicted.wait_ms": 200.0,
			"sluice.predicted.prefill_ms": 40.0, "sluice.predicted.residual": 1.1, "sluice.predicted.confidence": 0.75,
			"sluice.slo.ttft_ms": 300.0, "sluice.slo.ttft_headroom_ms": -60.0, "sluice.slo.tpot_ms": 40.0, "sluice.slo.tpot_headroom_ms": 10.0,
		}},
		"a whole response cannot be held against a first token": {whole, asked, map[string]any{
			"sluice.predicted.response_ms": 264.0, "sluice.predicted.tpot_ms": 20.0, "sluice.predicted.wait_ms": 200.0,
			"sluice.predicted.prefill_ms": 40.0, "sluice.predicted.residual": 1.1, "sluice.predicted.confidence": 0.75,
			"sluice.slo.ttft_ms": 300.0, "sluice.slo.tpot_ms": 40.0, "sluice.slo.tpot_headroom_ms": 10.0,
		}},
		"no time per token": {scheduling.LatencyPrediction{TTFTMs: 5, TTFTHeadroomMs: 290}, asked, map[string]any{
			"sluice.predicted.ttft_ms": 5.0, "sluice.predicted.confidence": 0.0,
			"sluice.slo.ttft_ms": 300.0, "sluice.slo.ttft_headroom_ms": 290.0, "sluice.slo.tpot_ms": 40.0,
		}},
		"a whole response, nothing asked": {whole, scheduling.LatencyObjective{}, map[string]any{
			"sluice.predicted.response_ms": 264.0, "sluice.predicted.tpot_ms": 20.0, "sluice.predicted.wait_ms": 200.0,
			"sluice.predicted.prefill_ms": 40.0, "sluice.predicted.residual": 1.1, "sluice.predicted.confidence": 0.75,
		}},
		"a time alone": {scheduling.LatencyPrediction{TTFTMs: 5}, scheduling.LatencyObjective{}, map[string]any{
			"sluice.predicted.ttft_ms": 5.0, "sluice.predicted.confidence": 0.0,
		}},
		"no numbers": {odd, scheduling.LatencyObjective{}, map[string]any{
			"sluice.predicted.tpot_ms": 20.0, "sluice.predicted.prefill_ms": 40.0, "sluice.predicted.residual": 1.1,
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := map[string]any{}
			for _, a := range predictionAttributes(&tc.of, tc.asked) {
				got[string(a.Key)] = a.Value.AsInterface()
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}

// TestSeenAttributes: what came of a prediction is told of an answer that the pick gave to its end, and of no other one.
func TestSeenAttributes(t *testing.T) {
	for name, tc := range map[string]struct {
		rest func(*call)
		want []attribute.Key
	}{
		"to its end":      {func(c *call) { c.echo(usageChunk, true); c.noAnswer() }, []attribute.Key{span.SeenFirst, span.SeenPerToken}},
		"without a count": {func(c *call) { c.echo("data: [DONE]\n\n", true); c.noAnswer() }, []attribute.Key{span.SeenFirst}},
		"given up":        {func(c *call) { c.cancel() }, nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newTraced(t, options{types: []scheduling.PluginType{foreseeing()}, specs: []scheduling.Spec{{Name: "seer", Type: "seer"}}})
			c := b.callFrom(t, ofProxy)
			c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions")
			c.requestBody(chat(400), true)
			c.pickOf(c.recv())
			c.echoed(false)
			c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
			c.recv()
			c.echo(tokenChunk, false)
			tc.rest(c)
			request, _ := b.spans(t)
			got := valuesOf(request)
			for _, key := range []attribute.Key{span.SeenFirst, span.SeenPerToken, span.SeenResponse} {
				ms, ok := got[string(key)].(float64)
				if want := slices.Contains(tc.want, key); ok != want || want && !(ms > 0) {
					t.Errorf("%s: %v (%t), want it: %t", key, ms, ok, want)
				}
			}
			if got[string(span.FirstTokenMs)] != 264.0 {
				t.Errorf("nothing was predicted: %v", got)
			}
		})
	}
}

// TestSeenAttributesOfAHeldCharge: the first token is told where the rest of the answer is not looked at.
func TestSeenAttributesOfAHeldCharge(t *testing.T) {
	o := endsAt(EndAfterFirstToken, time.Hour, 2*time.Hour)
	o.types, o.specs = []scheduling.PluginType{foreseeing()}, []scheduling.Spec{{Name: "seer", Type: "seer"}}
	b := newTraced(t, o)
	c := b.callFrom(t, ofProxy)
	c.pc = protocolOf(modeFullDuplex, modeStreamed)
	c.requestHeaders(false, ":method", "POST", ":path", "/v1/chat/completions")
	c.requestBody(chat(400), true)
	c.pickOf(c.recv())
	c.echoed(false)
	c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
	c.recv()
	c.responseBody(tokenChunk, false)
	c.recv()
	c.noAnswer()
	request, _ := b.spans(t)
	b.server.Close()
	got := valuesOf(request)
	if ms, _ := got[string(span.SeenFirst)].(float64); !(ms > 0) || got[string(span.SeenPerToken)] != nil || got[string(span.EndReason)] != "estimated" {
		t.Errorf("%v", got)
	}
}

// TestSeenResponseAttribute: of a whole response that was predicted, the whole is what was seen.
func TestSeenResponseAttribute(t *testing.T) {
	of := scheduling.LatencyPrediction{TTFTMs: 900, WholeResponse: true}
	end := record.Ending{Status: 200, FirstToken: 100 * time.Millisecond, Total: time.Second, Usage: scheduling.Usage{CompletionTokens: 10}}
	if diff := cmp.Diff([]attribute.KeyValue{span.SeenResponse.Float64(1000)}, seenAttributes(&of, &end, 1), cmp.AllowUnexported(attribute.Value{})); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
