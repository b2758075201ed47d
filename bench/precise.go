package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/engines"
	"github.com/sluice-epp/sluice/bench/proxy"
	"github.com/sluice-epp/sluice/bench/subject"
)

// exchanges are the bodies' requests and their answers, as engines would give them.
func (f field) exchanges(chunks int) (all []*proxy.Exchange, err error) {
	for _, body := range f.bodies {
		prompt, cached := engines.Usage(body)
		x, err := proxy.NewExchange(body, chat.AnswerCached(chunks, prompt, cached))
		if err != nil {
			return nil, err
		}
		all = append(all, x)
	}
	return all, nil
}

// liveTimeout is how long the precise index gets to learn everything.
const liveTimeout = time.Minute

// awaitLive waits until every engine's events were read, to the last block.
func awaitLive(ctx context.Context, p *subject.Process, pool *engines.Pool) error {
	ctx, cancel := context.WithTimeout(ctx, liveTimeout)
	defer cancel()
	poll := time.NewTicker(50 * time.Millisecond)
	defer poll.Stop()
	for {
		page, err := p.Metrics(ctx)
		if err != nil {
			return err
		}
		live := subject.Sum(page, "sluice_kv_sources", `state="live"`)
		blocks := subject.Sum(page, "sluice_kv_index_holder_blocks")
		if live == float64(len(pool.Addresses())) && blocks >= float64(pool.HeldBlocks()) {
			return nil
		}
		select {
		case <-ctx.Done():
			return errors.Join(ctx.Err(), p.Err(), fmt.Errorf("of %d engines %.0f are live in the precise index, with %.0f of %d blocks",
				len(pool.Addresses()), live, blocks, pool.HeldBlocks()))
		case <-poll.C:
		}
	}
}

// lookups are what the picker says of its look-ups so far.
type lookups struct{ exact, approximate, right float64 }

func lookupsOf(ctx context.Context, p *subject.Process) (lookups, error) {
	page, err := p.Metrics(ctx)
	return lookups{
		exact:       subject.Sum(page, "sluice_token_exact_prompts_total"),
		approximate: subject.Sum(page, "sluice_prefix_cache_approximate_requests_total"),
		right:       subject.Sum(page, "sluice_prefix_cache_predictions_total", `index="precise"`, `outcome="exact"`),
	}, err
}

func (l lookups) minus(o lookups) lookups {
	return lookups{l.exact - o.exact, l.approximate - o.approximate, l.right - o.right}
}

// How many of the requests may go without exact tokens: a few of those that show that the prompts are known, and one round
// of five of those that are measured, since the tokens of an older quarter of an hour are rendered again.
const (
	mostUnproved    = 0.05
	mostApproximate = 0.2
)

// provePrecise sends the bodies, again and again where engines had no time to render them, until each is looked up in the
// precise index by its exact tokens and, where engines report what they had cached, predictions are exact. What it returns
// wants the like of the rounds to come.
func (b *bench) provePrecise(ctx context.Context, s *side, f field) (check func(context.Context) error, err error) {
	since := func(ctx context.Context, before lookups, most float64) error {
		now, err := lookupsOf(ctx, s.picker)
		if err != nil {
			return err
		}
		l := now.minus(before)
		if l.exact == 0 || l.approximate > most*(l.exact+l.approximate) {
			return fmt.Errorf("%.0f requests were looked up by exact tokens and %.0f in the approximate index", l.exact, l.approximate)
		}
		if _, cached := engines.Usage(f.bodies[0]); cached >= 0 && l.right == 0 {
			return errors.New("no prediction of the precise index was exact")
		}
		return nil
	}
	deadline := time.Now().Add(liveTimeout)
	for {
		before, err := lookupsOf(ctx, s.picker)
		if err != nil {
			return nil, err
		}
		if _, err := s.send(ctx, usualChunks, distinctBodies); err != nil {
			return nil, err
		}
		err = since(ctx, before, mostUnproved)
		if err == nil {
			return func(ctx context.Context) error { return since(ctx, before, mostApproximate) }, nil
		}
		if time.Now().After(deadline) {
			return nil, err
		}
		if err := pass(ctx, time.Second); err != nil { // rendering that took too long goes on meanwhile
			return nil, err
		}
	}
}
