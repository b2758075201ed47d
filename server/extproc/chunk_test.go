package extproc

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// pieces counts the pieces of answers that it is told of.
type pieces struct{ n atomic.Int64 }

func (p *pieces) Committed(*scheduling.Cycle, *scheduling.Flight) {}
func (p *pieces) FirstToken(*scheduling.Flight, time.Duration)    {}
func (p *pieces) Done(*scheduling.Flight, time.Duration)          {}
func (p *pieces) Chunk(*scheduling.Flight, time.Duration)         { p.n.Add(1) }

// TestPiecesOfAnswersAreTold: who follows them hears of every piece after the one with the first token, in streamed and full duplex
// mode.
func TestPiecesOfAnswersAreTold(t *testing.T) {
	const token = `data: {"choices":[{"delta":{"content":"a"}}]}` + "\n\n"
	for name, mode := range map[string]bodyMode{"streamed": modeStreamed, "full duplex": modeFullDuplex} {
		t.Run(name, func(t *testing.T) {
			p := &pieces{}
			b := newBench(t, options{
				types: []scheduling.PluginType{{Type: "pieces", New: func(*scheduling.Builder) (any, error) { return p, nil }}},
				specs: []scheduling.Spec{{Name: "pieces", Type: "pieces"}},
			})
			c, _ := b.picked(t, mode, 4000)
			c.responseHeaders(false, ":status", "200", "content-type", "text/event-stream")
			c.recv()
			for i, piece := range []string{": nothing yet\n\n", token, token, token, "data: [DONE]\n\n"} {
				c.responseBody(piece, i == 4)
				c.recv()
			}
			b.settles(t, 0, 0)
			if n := p.n.Load(); n != 3 {
				t.Errorf("told of %d pieces, want 3", n)
			}
		})
	}
}
