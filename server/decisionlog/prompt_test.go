package decisionlog

import (
	"testing"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cache/blockhash"
	"github.com/sluice-epp/sluice/scheduling"
)

// hashesOf is what a row holds of a request's prompt.
func hashesOf(t *testing.T, h Hashing, r *scheduling.Request) *decisionv1.Request {
	t.Helper()
	b := newBench(t, 1)
	c := b.scheduler.Begin(b.pool.Snapshot(), r, 0)
	defer b.scheduler.End(c)
	p := prompt{hashes: []uint64{1, 2, 3}, cut: true, text: true, session: 5} // of a request before
	h.hash(&p, c)
	to := &decisionv1.Request{}
	h.add(&p, to)
	return to
}

// TestPromptHashesHaveABound: the row says where it holds a part; prompts compare under one seed, model and salt only.
func TestPromptHashesHaveABound(t *testing.T) {
	h := Hashing{Most: 4, BlockTokens: 16, Seed: blockhash.SeedOf("x")}
	tokens := make([]uint32, 100)
	for i := range tokens {
		tokens[i] = uint32(i)
	}
	at := func(change func(*scheduling.Request)) *decisionv1.Request {
		r := &scheduling.Request{Model: "m", Tokens: tokens}
		change(r)
		return hashesOf(t, h, r)
	}
	long := at(func(*scheduling.Request) {})
	if len(long.GetBlockHashes()) != 4 || !long.GetHashesCut() || long.GetHashesText() || long.GetHashSeed() != h.Seed.ID() || long.GetSession() != 0 || long.GetHashBlockTokens() != 16 {
		t.Errorf("%v", long)
	}
	short := at(func(r *scheduling.Request) { r.Tokens = tokens[:79] })
	if len(short.GetBlockHashes()) != 4 || short.GetHashesCut() || short.GetBlockHashes()[3] != long.GetBlockHashes()[3] {
		t.Errorf("%v", short)
	}
	for name, other := range map[string]*decisionv1.Request{
		"model": at(func(r *scheduling.Request) { r.Model = "n" }), "salt": at(func(r *scheduling.Request) { r.CacheSalt = "s" }),
		"seed": hashesOf(t, Hashing{Most: 4, BlockTokens: 16, Seed: blockhash.SeedOf("y")}, &scheduling.Request{Model: "m", Tokens: tokens}),
	} {
		if other.GetBlockHashes()[0] == long.GetBlockHashes()[0] {
			t.Errorf("another %s has the same hashes", name)
		}
	}
	text := at(func(r *scheduling.Request) {
		r.Tokens, r.Body, r.Prompt = nil, make([]byte, 400), []scheduling.Span{{Start: 0, End: 100}, {Start: 100, End: 300}}
		r.Headers = []scheduling.Header{{Name: "x-session-id", Value: []byte("secret-session")}}
	})
	if len(text.GetBlockHashes()) != 4 || text.GetHashesCut() || !text.GetHashesText() || text.GetSession() == 0 {
		t.Errorf("%v", text)
	}
	none := hashesOf(t, Hashing{}, &scheduling.Request{Model: "m", Tokens: tokens, Headers: []scheduling.Header{{Name: "x-session-id", Value: []byte("s")}}})
	if len(none.GetBlockHashes()) != 0 || none.GetHashBlockTokens() != 0 || none.GetSession() != 0 || none.GetHashSeed() != "" {
		t.Errorf("%v", none)
	}
}
