package simulate

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/trace"
)

// Revision is part of every run's key. It is raised when the same run would come out otherwise and the probe does not show it:
// the traces' transforms or the figures have changed.
const Revision = 1

// key names a run by all that decides how it comes out: the requests, engines and sight, what the candidate does, and the
// seed, but not what they are called. The candidate must have been validated.
func key(s *Scenario, c *Candidate, seed int, digests *digests) string {
	decides := struct {
		Revision  int
		Scenario  Scenario
		B2B       trace.B2B
		Requests  string
		Model     sim.Params
		Candidate string
		Seed      int
	}{Revision: Revision, Scenario: *s, Model: s.model(), Candidate: c.hash + c.behaviour, Seed: seed}
	d := &decides.Scenario
	d.Name, d.Family, d.Axis, d.Value, d.Load, d.To, d.ProfileName = "", "", "", 0, 0, s.end(), ""
	if s.Trace != nil {
		decides.Requests = digests.of(s.Trace)
	} else {
		decides.B2B = *s.B2B
	}
	// Nothing is written by its address. The model has what the profile says.
	decides.Scenario.Trace, decides.Scenario.B2B, decides.Scenario.Profile = nil, nil, nil
	text := strings.Replace(fmt.Sprintf("%+v", decides), "Profile:<nil> ProfileName: ", "", 1)
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:12])
}

// digests remembers traces' contents by their hashes.
type digests struct {
	mu  sync.Mutex
	all map[*trace.Trace]string
}

func (d *digests) of(t *trace.Trace) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	if found, ok := d.all[t]; ok {
		return found
	}
	h := sha256.New()
	var b []byte
	for i := range t.Requests {
		r := &t.Requests[i]
		b = b[:0]
		for _, v := range []uint64{uint64(r.At), uint64(r.PromptTokens), uint64(r.OutputTokens), r.Session, uint64(len(r.Blocks))} {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		for _, v := range r.Blocks {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		_, _ = h.Write(b) // a hash takes everything
	}
	_, _ = h.Write(binary.LittleEndian.AppendUint64(nil, uint64(t.BlockTokens)))
	if d.all == nil {
		d.all = map[*trace.Trace]string{}
	}
	d.all[t] = hex.EncodeToString(h.Sum(nil))
	return d.all[t]
}
