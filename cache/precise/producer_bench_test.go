package precise

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/cache/approx"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/cache/kvevents"
	"github.com/sluice-epp/sluice/cache/kvevents/cursor"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

// mute is a feed that says nothing by itself.
type mute struct{ ready chan struct{} }

func (mute) Restarted()               {}
func (m mute) Ready() <-chan struct{} { return m.ready }
func (mute) Close() error             { return nil }

// BenchmarkProduce is a look-up as a request makes it, with all that is around it: 4,096 tokens, all but the last 256 of
// which every endpoint has.
func BenchmarkProduce(b *testing.B) {
	for _, n := range []int{8, 64, 512} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			table := schedtest.Table{Endpoints: make([]schedtest.Endpoint, n)}
			r := rand.New(rand.NewPCG(1, 2))
			tokens := make([]uint32, 4096)
			for i := range tokens {
				tokens[i] = r.Uint32N(100_000)
			}
			table.Prompt = &scheduling.TokenizedPrompt{Tokens: tokens, Count: len(tokens), Exact: true, BytesPerToken: 4}
			var sinks []kvevents.Sink
			o := Options{
				Now: func() time.Duration { return 0 }, Seed: blockhash.SeedOf("bench"),
				Approximate: approx.NewFamily(approx.Options{Seed: blockhash.SeedOf("bench")}),
				Follow: func(_ *scheduling.Endpoint, _ kvevents.Config, _ kvevents.Options, open func(int) kvevents.Sink) Feed {
					sinks = append(sinks, open(0))
					return mute{}
				},
			}
			types := append(table.Types(), Type(o), schedtest.First)
			types[0].DefaultFor = types[0].DefaultFor[1:]
			s, err := scheduling.Build(types, schedtest.Config([]scheduling.Spec{{Name: "p", Type: TypeName}}, schedtest.First.Type), nil)
			if err != nil {
				b.Fatal(err)
			}
			defer func() { _ = s.Close() }()
			pool := table.Pool()
			s.SnapshotChanged(pool.Snapshot())
			for _, sink := range sinks {
				names := make([]uint64, 240)
				for i := range names {
					names[i] = r.Uint64()
				}
				sink.State(cursor.Live)
				sink.Apply(&wire.Batch{Events: []wire.Event{{Kind: wire.Stored, Hashes: names, Tokens: tokens[:240*16], BlockSize: 16, Medium: "gpu"}}})
			}
			request := &scheduling.Request{Operation: scheduling.OperationCompletions, Model: "m"}
			id := uint64(0)
			b.ReportAllocs()
			for b.Loop() {
				id++
				request.ID = id
				c := s.Begin(pool.Snapshot(), request, time.Duration(id)*time.Millisecond)
				s.Produce(b.Context(), c)
				f, _ := s.Commit(c)
				s.End(c)
				f.Done(scheduling.Outcome{Status: 200, Usage: scheduling.Usage{PromptTokens: 4096, CompletionTokens: 1, CachedTokens: 3840}}, time.Duration(id)*time.Millisecond)
			}
		})
	}
}
