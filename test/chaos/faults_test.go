//go:build linux

package chaos

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/envoytest"
)

// patience is how long a step of a fault may take on a busy machine.
const patience = 40 * time.Second

// play makes the faults of a plan happen, each at its time, and returns when all are lifted.
func (s *stage) play(ctx context.Context, plan []fault) (count map[kind]int) {
	began := time.Now()
	s.raging = began
	count = map[kind]int{}
	var group sync.WaitGroup
	defer group.Wait()
	for _, f := range plan {
		pause(ctx, time.Until(began.Add(f.at)))
		if ctx.Err() != nil {
			return count
		}
		count[f.kind]++
		group.Go(func() { s.happen(ctx, f) })
	}
	return count
}

// happen makes one fault happen, and lifts it. The plan leaves time between faults that exclude one another; on a machine
// that is slower than planned they wait for one another here.
func (s *stage) happen(ctx context.Context, f fault) {
	if f.engine >= 0 {
		e := s.engines[f.engine]
		e.struck.Lock()
		defer e.struck.Unlock()
		if slices.Contains(unable, f.kind) {
			s.unable <- struct{}{}
			defer func() { <-s.unable }()
		}
		s.tell(f)
		s.befall(ctx, e, f)
		s.patiently(e.args.Name+" to be well again", func() bool { return s.up(e) })
		return
	}
	one := s.single(f.kind)
	one.Lock()
	defer one.Unlock()
	s.tell(f)
	switch f.kind {
	case noTokenizer, lateTokenizer:
		s.tokenizers(ctx, f)
	case otherConfig:
		s.writeConfig(1 + f.n%3)
		pause(ctx, f.lasts)
		s.writeConfig(0)
	case badConfig:
		s.write("sluice.yaml", []string{"server: [", "", "plugins: [{type: no-such-plugin}]\n"}[f.n%3])
		pause(ctx, f.lasts)
		s.writeConfig(0)
	case badEndpoints:
		if f.n%3 == 0 {
			if err := os.Remove(s.path("endpoints.yaml")); err != nil {
				s.oddity("%v", err)
			}
		} else {
			s.write("endpoints.yaml", []string{"", "", "endpoints:\n  - {address: 127."}[f.n%3])
		}
		pause(ctx, f.lasts)
		s.writeEndpoints(-1)
	case nextCertificate:
		s.writeCertificate()
	case badCertificate:
		_, key := envoytest.WriteCertificate(s.t, "sluice.test")
		s.copy(key, "tls.key")
		pause(ctx, f.lasts)
		s.writeCertificate()
	case takeOver:
		s.takeOver()
	default:
		s.oddity("no fault is named %q", f.kind)
	}
}

// tell says when a fault takes place, beside when it was to.
func (s *stage) tell(f fault) { s.say("%7.2fs, planned %s", time.Since(s.raging).Seconds(), f) }

// single is held by faults of what there is once.
func (s *stage) single(k kind) *sync.Mutex {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.singles == nil {
		s.singles = map[kind]*sync.Mutex{}
	}
	of := group(k)
	if s.singles[of] == nil {
		s.singles[of] = &sync.Mutex{}
	}
	return s.singles[of]
}

// befall makes a fault of one engine happen.
func (s *stage) befall(ctx context.Context, e *engineUnit, f fault) {
	switch f.kind {
	case kill:
		e.cut()
		e.now().kill()
		e.cut()
		pause(ctx, f.lasts)
		s.startEngine(e)
	case freeze:
		e.now().signal(syscall.SIGSTOP)
		pause(ctx, f.lasts)
		e.now().signal(syscall.SIGCONT)
	case stutter:
		for until := time.Now().Add(f.lasts); time.Now().Before(until) && ctx.Err() == nil; {
			e.now().signal(syscall.SIGSTOP)
			pause(ctx, 80*time.Millisecond)
			e.now().signal(syscall.SIGCONT)
			pause(ctx, 40*time.Millisecond)
		}
	case slow:
		s.mode(e, mode{SlowMs: 20 + f.n%100})
		pause(ctx, f.lasts)
		s.mode(e, mode{})
	case lyingMetrics:
		s.mode(e, mode{Page: []string{"numbers", "life", "bytes", endless}[f.n%4]})
		pause(ctx, f.lasts)
		s.mode(e, mode{})
	case refuse, restart:
		e.cut()
		s.fault(e, engine.Faults{RefuseMs: int(f.lasts.Milliseconds()), Restart: f.kind == restart})
		e.cut()
		pause(ctx, f.lasts)
	case fewerEndpoints:
		one := s.single(badEndpoints)
		one.Lock()
		defer one.Unlock()
		s.writeEndpoints(e.index)
		pause(ctx, f.lasts)
		s.writeEndpoints(-1)
	default:
		s.inject(ctx, e, f)
	}
}

// inject makes the faults happen that an engine has a switch for.
func (s *stage) inject(ctx context.Context, e *engineUnit, f fault) {
	var in engine.Faults
	switch f.kind {
	case fail:
		in = engine.Faults{FailStatus: http.StatusServiceUnavailable, FailCount: 1 + f.n%20}
	case dropEvents:
		in = engine.Faults{DropBatches: 1 + f.n%30}
	case loseEvents:
		in = engine.Faults{LoseBatches: 1 + f.n%30}
	case silentEvents:
		in = engine.Faults{SilenceEvents: true}
	case hangMetrics:
		in = engine.Faults{MetricsDelayMs: int(time.Minute.Milliseconds())}
	case htmlMetrics:
		in = engine.Faults{MetricsHTML: true}
	default:
		s.oddity("no engine's fault is named %q", f.kind)
	}
	s.fault(e, in)
	pause(ctx, f.lasts)
	s.fault(e, engine.Faults{})
	if f.kind == loseEvents || f.kind == silentEvents {
		// What no event told of is known again once the engine has said that it holds nothing.
		s.patiently(e.args.Name+" to reset its cache", func() bool {
			page, err := s.call(http.MethodPost, "http://"+e.address+"/reset_prefix_cache?reset_running_requests=true", "")
			return err == nil && page == `{"success":true}`
		})
	}
}

func (s *stage) tokenizers(ctx context.Context, f fault) {
	in := engine.Faults{RenderStatus: http.StatusInternalServerError}
	if f.kind == lateTokenizer {
		in = engine.Faults{RenderDelayMs: int(time.Minute.Milliseconds())}
	}
	for _, e := range s.engines {
		s.merge(e, func(now *engine.Faults) { now.RenderStatus, now.RenderDelayMs = in.RenderStatus, in.RenderDelayMs })
	}
	pause(ctx, f.lasts)
	for _, e := range s.engines {
		s.merge(e, func(now *engine.Faults) { now.RenderStatus, now.RenderDelayMs = 0, 0 })
	}
}

// fault puts an engine's own faults in force, and leaves those of the render routes as they are.
func (s *stage) fault(e *engineUnit, f engine.Faults) {
	s.merge(e, func(now *engine.Faults) {
		f.RenderStatus, f.RenderDelayMs = now.RenderStatus, now.RenderDelayMs
		*now = f
	})
}

// merge changes the faults in force. An engine that is down or frozen has none: it is passed over.
func (s *stage) merge(e *engineUnit, change func(*engine.Faults)) {
	e.switches.Lock()
	defer e.switches.Unlock()
	ctx, cancel := context.WithTimeout(s.t.Context(), longest+time.Second)
	defer cancel()
	url := "http://" + e.address + "/sim/fault"
	var now engine.Faults
	page, err := s.within(ctx, http.MethodGet, url, nil)
	if err == nil {
		err = json.Unmarshal([]byte(page), &now)
	}
	if err != nil {
		return
	}
	change(&now)
	if _, err := s.within(ctx, http.MethodPost, url, now); err != nil && !now.Restart {
		s.say("faults of %s: %v", e.args.Name, err)
	}
}

func (s *stage) mode(e *engineUnit, m mode) {
	s.patiently(e.args.Name+" to change its ways", func() bool {
		_, err := s.within(s.t.Context(), http.MethodPost, "http://"+e.address+"/chaos/mode", m)
		return err == nil
	})
}

// patiently waits for a step of the stage's own.
func (s *stage) patiently(what string, ok func() bool) {
	for until := time.Now().Add(patience); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(until) {
			s.oddity("waited in vain for %s", what)
			return
		}
	}
}

// begin starts a Sluice and waits until it is ready. Files that are bad at a start are another matter: none is meanwhile.
func (s *stage) begin(i int) *process {
	config, certificate, endpoints := s.single(otherConfig), s.single(nextCertificate), s.single(badEndpoints)
	config.Lock()
	defer config.Unlock()
	certificate.Lock()
	defer certificate.Unlock()
	endpoints.Lock()
	defer endpoints.Unlock()
	p := s.startSluice(i)
	if p != nil {
		s.patiently("the second Sluice to be ready", func() bool { return p.dead() || s.ready(i) })
	}
	if p == nil || p.dead() {
		s.oddity("the second Sluice did not come up")
		return nil
	}
	return p
}

// takeOver starts the other Sluice, waits until Envoy knows it, and tells the one that served until now to go. It must do so
// by itself, and well.
func (s *stage) takeOver() {
	s.mu.Lock()
	old, next := s.sluice, 1-s.now
	s.mu.Unlock()
	p := s.begin(next)
	if p == nil {
		return
	}
	s.patiently("Envoy to find it", func() bool {
		page, err := s.get("http://" + s.envoy.AdminAddr + "/stats?filter=endpoint-picker.membership_healthy")
		return err == nil && page == "cluster.endpoint-picker.membership_healthy: 2\n"
	})
	s.mu.Lock()
	s.now, s.sluice = next, p
	s.mu.Unlock()
	if err := old.finish(patience); err != nil {
		s.misdeed("%s, told to go: %v; its log ends:\n%s", old.name, err, tail(old.log, 4000))
	}
	s.say("%s took over from %s", p.name, old.name)
}

func (s *stage) within(ctx context.Context, method, url string, v any) (string, error) {
	body := ""
	if v != nil {
		b, err := json.Marshal(v)
		if err != nil {
			return "", err
		}
		body = string(b)
	}
	return s.callIn(ctx, method, url, body)
}
