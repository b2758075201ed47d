package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/sluice-epp/sluice/bench/caller"
	"github.com/sluice-epp/sluice/bench/engines"
	"github.com/sluice-epp/sluice/bench/proxy"
	"github.com/sluice-epp/sluice/bench/report"
	"github.com/sluice-epp/sluice/bench/subject"
)

// preciseConfig is all that the precise index needs; the rest is built in.
const preciseConfig = `plugins:
  - type: token-producer
    parameters: {vllm: {endpoints: true}}
  - type: precise-prefix-cache-producer
`

// connections is how many HTTP/2 connections the streams share, as far as there are as many at once, and how many workers
// an Envoy has, each with a connection of its own.
const connections = 2

// start starts a setup on a way and warms it up. With an error nothing is left.
func (b *bench) start(ctx context.Context, f field, w way) (s *side, err error) {
	s = &side{way: w}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.stop())
			s = nil
		}
	}()
	if err := b.startPicker(ctx, s, f); err != nil {
		return s, err
	}
	if err := b.connect(ctx, s, f); err != nil {
		return s, err
	}
	if s.setup == setupPrecise {
		if err := awaitLive(ctx, s.picker, f.pool); err != nil {
			return s, err
		}
	}
	// Every body at least twice, so that the prefix index is as full as it will be, and as many at once as there will be.
	if _, err := s.send(ctx, usualChunks, max(2*distinctBodies, 2*f.concurrency, b.perRound(f.load)/2)); err != nil {
		return s, err
	}
	if s.setup == setupPrecise {
		if s.check, err = b.provePrecise(ctx, s, f); err != nil {
			return s, err
		}
	}
	if s.goHeap {
		s.page, err = s.picker.PageHeap(ctx)
	}
	return s, err
}

// startPicker starts what picks.
func (b *bench) startPicker(ctx context.Context, s *side, f field) (err error) {
	switch s.setup {
	case setupNone:
	case setupSGLang, setupVLLM:
		s.picker, err = b.startRouter(ctx, s.setup, f)
	case setupNull:
		s.goHeap = true
		s.picker, err = subject.Start(ctx, b.null, "-listen", "127.0.0.1:0", "-admin", "127.0.0.1:0",
			"-pick", strings.Join(f.pool.Addresses(), ","))
	case setupApprox:
		s.goHeap = true
		s.picker, err = b.startSluice(ctx, "", f.pool)
	case setupPrecise:
		s.goHeap = true
		s.picker, err = b.startSluice(ctx, preciseConfig, f.pool)
	}
	return err
}

// startSluice starts Sluice over the engines with a configuration, or with the built-in one.
func (b *bench) startSluice(ctx context.Context, config string, pool *engines.Pool) (*subject.Process, error) {
	args := []string{"serve", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"}
	if config != "" {
		file := filepath.Join(b.folder, "sluice.yaml")
		if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
			return nil, err
		}
		args = append(args, "--config", file)
	}
	for _, e := range pool.Addresses() {
		args = append(args, "--endpoint", e)
	}
	return subject.Start(ctx, b.sluice, args...)
}

// bypassHeader is the request header by which Envoy leaves the picker out.
const bypassHeader = "x-bench-bypass"

// connect puts a client in front of the picker, and an Envoy between the two where that is the way.
func (b *bench) connect(ctx context.Context, s *side, f field) (err error) {
	if s.via == report.ViaStream {
		return s.connectStream(f)
	}
	targets, headers := f.pool.Addresses(), ""
	switch {
	case s.via == report.ViaEnvoy:
		picker := "127.0.0.1:1" // nobody: no request asks it
		if s.picker != nil {
			picker = s.picker.Address
		} else {
			headers = bypassHeader + ": 1\r\n"
		}
		if s.envoy, err = b.startEnvoy(ctx, picker, f.pool.Addresses()); err != nil {
			return err
		}
		targets = []string{s.envoy.Address}
	case s.picker != nil:
		targets = []string{s.picker.Address}
	}
	client := caller.New(targets, f.bodies, f.concurrency, headers)
	s.closing = append(s.closing, client.Close)
	s.run = func(ctx context.Context, chunks int, more func() bool) ([]time.Duration, error) {
		f.pool.SetChunks(chunks)
		_, before := f.pool.Answered()
		waits, err := client.Run(ctx, more)
		_, after := f.pool.Answered()
		// A router may write a body anew; Envoy and a picker must not change a byte of it.
		if err == nil && s.via == report.ViaEnvoy && after != before {
			err = fmt.Errorf("%d requests reached an engine with another body than was sent", after-before)
		}
		return waits, err
	}
	return nil
}

// connectStream plays Envoy towards the picker.
func (s *side) connectStream(f field) error {
	client, err := proxy.Dial(s.picker.Address, min(connections, f.concurrency))
	if err != nil {
		return err
	}
	s.closing = append(s.closing, client.Close)
	exchanges := map[int][]*proxy.Exchange{}
	for _, chunks := range []int{f.chunks, usualChunks} {
		if exchanges[chunks] != nil {
			continue
		}
		if exchanges[chunks], err = f.exchanges(chunks); err != nil {
			return err
		}
	}
	s.run = func(ctx context.Context, chunks int, more func() bool) ([]time.Duration, error) {
		return client.Run(ctx, exchanges[chunks], f.concurrency, more)
	}
	return nil
}
