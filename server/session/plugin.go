package session

import (
	"context"
	"crypto/rand"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-epp/sluice/scheduling"
)

// Options are what the plugin is given by the process.
type Options struct {
	// Now is the wall clock, which replicas share.
	Now func() time.Time
	// Registerer is where metrics go; nil for nowhere.
	Registerer prometheus.Registerer
	// Offline means that what is built will not serve: key files, which may be on other machines, are not read.
	Offline bool
}

// Type describes the plugin. To be called once per Registerer.
func Type(o Options) scheduling.PluginType {
	defaults := DefaultParameters()
	tokens := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sluice_session_tokens_total",
		Help: "Requests by their session token: none, valid, gone (of an endpoint that cannot be picked), expired, forged (not signed with the key) or malformed.",
	}, []string{"result"})
	if o.Registerer != nil {
		o.Registerer.MustRegister(tokens)
	}
	drawn := make([]byte, 32) // of a process without a configured key; a reload keeps it
	_, _ = rand.Read(drawn)   // it never fails
	return scheduling.PluginType{
		Type:       TypeName,
		Summary:    "Prefers the endpoint that served the session before, which a signed token in a header names.",
		Parameters: &defaults,
		New: func(b *scheduling.Builder) (any, error) {
			p := DefaultParameters()
			if err := b.Parameters(&p); err != nil {
				return nil, err
			}
			if err := p.Validate(); err != nil {
				return nil, err
			}
			s := &Scorer{
				header: strings.ToLower(p.HeaderName), lifetime: p.TokenLifetime, keyFile: p.KeyFile,
				drawn: p.Key == "" && p.KeyFile == "", now: o.Now, home: scheduling.ProduceColumn[scheduling.SessionHome](b),
			}
			key := drawn
			switch {
			case p.Key != "":
				key = []byte(p.Key)
			case p.KeyFile != "" && !o.Offline:
				read, err := readKey(p.KeyFile)
				if err != nil {
					return nil, fmt.Errorf("parameters.keyFile: %w", err)
				}
				key = read
			}
			s.signer = newSigner(key)
			s.endpoints.Store(&directory{})
			for v := range numVerdicts {
				s.counts[v] = tokens.WithLabelValues(v.String())
			}
			return s, nil
		},
	}
}

// Scorer scores 1 for the endpoint that served the session before and 0 for the others. Where no token that counts says so,
// everybody scores 0.5. A token that is expired, forged or no token at all is as none, and is counted.
//
// The producer's part reads the token; the score is made from the column alone.
type Scorer struct {
	header    string
	lifetime  time.Duration
	keyFile   string
	drawn     bool // the key is this process's own
	now       func() time.Time
	home      scheduling.Key[scheduling.SessionHome]
	signer    *signer
	endpoints atomic.Pointer[directory]
	counts    [numVerdicts]prometheus.Counter
}

var (
	_ scheduling.Producer = (*Scorer)(nil)
	_ scheduling.Scorer   = (*Scorer)(nil)
	_ scheduling.Answerer = (*Scorer)(nil)
	_ scheduling.Watcher  = (*Scorer)(nil)
)

// directory knows the endpoints of a snapshot by their tags, and the tags by the instances' generations.
type directory struct {
	byTag map[tag]*scheduling.Endpoint
	tags  map[uint64]tag
}

// SnapshotChanged makes tags for the endpoints that came.
func (s *Scorer) SnapshotChanged(snapshot *scheduling.Snapshot) {
	before := s.endpoints.Load()
	next := &directory{
		byTag: make(map[tag]*scheduling.Endpoint, snapshot.Len()), tags: make(map[uint64]tag, snapshot.Len()),
	}
	for _, e := range snapshot.Endpoints {
		if e == nil {
			continue
		}
		t, known := before.tags[e.Generation]
		if !known {
			t = s.signer.tagOf(e)
		}
		next.byTag[t], next.tags[e.Generation] = e, t
	}
	s.endpoints.Store(next)
}

// Produce finds the endpoint of the request's token among the candidates.
func (s *Scorer) Produce(_ context.Context, c *scheduling.Cycle) error {
	v := verdictNone
	if text, ok := c.Request.Header(s.header); ok {
		var t tag
		if t, v = s.signer.read(text, s.now().Unix()); v == verdictValid {
			// The directory may be of another snapshot than the cycle by a moment.
			if e := s.endpoints.Load().byTag[t]; e != nil && c.Snapshot.Holds(e.Ordinal, e.Generation) && c.Candidates.Has(e.Ordinal) {
				s.home.In(c).Set(e.Ordinal, scheduling.SessionHome{})
			} else {
				v = verdictGone
			}
		}
	}
	if !c.Request.Trial {
		s.counts[v].Inc()
	}
	return nil
}

// Score implements scheduling.Scorer.
func (s *Scorer) Score(c *scheduling.Cycle, candidates scheduling.Set, scores []float64) {
	home := s.home.In(c).Present()
	none := home.Empty()
	for e := range candidates.All() {
		switch {
		case none:
			scores[e] = 0.5
		case home.Has(e):
			scores[e] = 1
		}
	}
}

// AnswerHeader is the token of who served.
func (s *Scorer) AnswerHeader(f *scheduling.Flight) (name, value string) {
	t, known := s.endpoints.Load().tags[f.Endpoint.Generation]
	if !known {
		t = s.signer.tagOf(f.Endpoint)
	}
	return s.header, s.signer.sign(t, s.now().Add(s.lifetime).Unix())
}

// OwnKey reports whether tokens count in this process only.
func (s *Scorer) OwnKey() bool { return s.drawn }

// Files are the files that the parameters name, by parameter.
func (s *Scorer) Files() map[string]string {
	if s.keyFile == "" {
		return nil
	}
	return map[string]string{"keyFile": s.keyFile}
}
