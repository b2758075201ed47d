package metrics

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/schedtest"
)

func TestHangingPageDelaysNobody(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", false))
		hosts := w.endpoints(40)
		for i, h := range hosts {
			if i%2 == 0 {
				w.set(h, text(load(1, 2, 0.5)))
			} else {
				w.set(h, hang)
			}
		}
		time.Sleep(20 * time.Second)
		synctest.Wait()
		for i, h := range hosts {
			times := w.asked(h)
			if i%2 == 0 && (len(times) < 98 || len(times) > 102) {
				t.Errorf("%s answers at once and was asked %d times in 20 s, 100 are meant", h, len(times))
			}
			if i%2 == 1 && (len(times) < 3 || len(times) > 6) {
				t.Errorf("%s hangs and was asked %d times in 20 s", h, len(times))
			}
		}
		if w.most != 1 {
			t.Errorf("%d requests at once to one endpoint", w.most)
		}
		if w.store.Scrapes(ResultTimeout) < 50 || w.store.Scrapes(ResultOK) < 1900 {
			t.Errorf("%d timeouts, %d successes", w.store.Scrapes(ResultTimeout), w.store.Scrapes(ResultOK))
		}
	})
}

func TestSlowPageIsAskedOnceAtATime(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		cfg := config("", true)
		cfg.Plugins = append(cfg.Plugins, scheduling.Spec{Name: InfoTypeName, Type: InfoTypeName, Decode: schedtest.YAML("scrapeInterval: 200ms")})
		w.configure(cfg) // two that ask equally often
		host := w.endpoints(1)[0]
		w.set(host, slow(load(1, 2, 0.5), 700*time.Millisecond))
		time.Sleep(20 * time.Second)
		synctest.Wait()
		if w.most != 1 {
			t.Errorf("%d requests at once", w.most)
		}
		if n := len(w.asked(host)); n < 20 || n > 26 {
			t.Errorf("asked %d times in 20 s", n)
		}
		if len(w.see()) != 1 {
			t.Error("the slow endpoint is unknown")
		}
	})
}

func TestFailuresBackOffAndRecover(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", false))
		host := w.endpoints(1)[0]
		time.Sleep(time.Minute)
		synctest.Wait()
		times := w.asked(host)
		if n := len(times); n < 9 || n > 13 {
			t.Errorf("a refusing endpoint was asked %d times in a minute", n)
		}
		if last := times[len(times)-1] - times[len(times)-2]; last > maxBackoff+200*time.Millisecond {
			t.Errorf("pause of %v", last)
		}
		w.set(host, text(load(1, 2, 0.5)))
		time.Sleep(maxBackoff + 200*time.Millisecond)
		w.forget()
		time.Sleep(2 * time.Second)
		synctest.Wait()
		if n := len(w.asked(host)); n < 9 || n > 11 {
			t.Errorf("after it answers again it was asked %d times in 2 s", n)
		}
		if w.store.Scrapes(ResultUnreachable) != int64(len(times))+1 && w.store.Scrapes(ResultUnreachable) != int64(len(times)) {
			t.Errorf("%d refusals counted, %d seen", w.store.Scrapes(ResultUnreachable), len(times))
		}
	})
}

func TestReadinessForgivesFailures(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", false))
		spec := scheduling.EndpointSpec{Address: "10.0.0.1:8000", State: scheduling.EndpointNotReady}
		w.set(spec.Address, text(load(1, 2, 0.5)))
		w.pool.Update([]scheduling.EndpointSpec{spec})
		time.Sleep(time.Second)
		w.set(spec.Address, answer{})
		time.Sleep(time.Minute) // far into the backoff
		w.set(spec.Address, text(load(1, 2, 0.5)))
		spec.State = scheduling.EndpointReady
		w.pool.Update([]scheduling.EndpointSpec{spec})
		time.Sleep(350 * time.Millisecond) // an interval and a half, and the jitter
		synctest.Wait()
		if len(w.see()) != 1 {
			t.Error("unknown 350 ms after it became ready")
		}
	})
}

func TestKeepsUntilStale(t *testing.T) {
	t.Parallel()
	for name, broken := range map[string]answer{
		"hangs":        hang,
		"HTML":         text("<html><body>vllm:num_requests_waiting 0</body></html>\n"),
		"other engine": text("sglang:num_queue_reqs 0\nprocess_start_time_seconds 9\n"),
		"empty":        text(""),
		"404":          body(http.StatusNotFound, strings.NewReader(load(0, 0, 0))),
		"redirect":     body(http.StatusFound, strings.NewReader(load(0, 0, 0))),
		"cut":          body(http.StatusOK, io.MultiReader(strings.NewReader(load(0, 0, 0)), iotest.ErrReader(io.ErrUnexpectedEOF))),
		"too long":     text(load(0, 0, 0) + strings.Repeat("x 1\n", 2<<20)),
		"says too long": {func(*http.Request) (*http.Response, error) {
			r := response(http.StatusOK, strings.NewReader(load(0, 0, 0)))
			r.ContentLength = 5 << 20
			return r, nil
		}},
		"refuses": {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.configure(config("", false))
				host := w.endpoints(1)[0]
				w.set(host, text(load(7, 2, 0.5)))
				time.Sleep(time.Second)
				synctest.Wait()
				w.set(host, broken)
				before := w.see()[0]
				time.Sleep(3 * time.Second)
				after, ok := w.see()[0]
				if !ok || after.Waiting != 7 || after.AgeMs < before.AgeMs+2500 {
					t.Errorf("after 3 s: %+v (known %v), before %+v", after, ok, before)
				}
				time.Sleep(3 * time.Second)
				if got, ok := w.see()[0]; ok {
					t.Errorf("after 6 s still %+v", got)
				}
				if r, ok := w.store.Reading(0, 1); !ok || r.Load.Waiting != 7 {
					t.Errorf("last reading %+v, %v", r, ok)
				}
			})
		})
	}
}

func TestResults(t *testing.T) {
	t.Parallel()
	for result, broken := range map[Result]answer{
		ResultTimeout:     hang,
		ResultUnreachable: {},
		ResultStatus:      body(http.StatusInternalServerError, strings.NewReader(load(0, 0, 0))),
		ResultTooLarge:    text(strings.Repeat("x 1\n", 2<<20)),
		ResultUnknownPage: text("<html>\n"),
		ResultBroken:      body(http.StatusOK, iotest.ErrReader(errors.New("reset"))),
	} {
		t.Run(result.String(), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(w *world) {
				w.configure(config("", false))
				w.set(w.endpoints(1)[0], broken)
				time.Sleep(5 * time.Second)
				synctest.Wait()
				for r := range numResults {
					if got := w.store.Scrapes(r); (got > 0) != (r == result) {
						t.Errorf("%s: %d", r, got)
					}
				}
			})
		})
	}
}

func TestReloadKeepsReadings(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", true))
		hosts := w.endpoints(10)
		for _, h := range hosts {
			w.set(h, text(load(1, 2, 0.5)))
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		w.forget()
		w.configure(config("scrapeInterval: 500ms", true))
		if got := len(w.see()); got != 10 {
			t.Errorf("%d endpoints are known right after the reload", got)
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		for _, h := range hosts {
			if n := len(w.asked(h)); n < 19 || n > 21 {
				t.Errorf("%s was asked %d times in 10 s at 500 ms", h, n)
			}
		}
		if w.most != 1 {
			t.Errorf("%d requests at once to one endpoint", w.most)
		}
	})
}

func TestEmptyWithoutPlugin(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", false))
		w.set(w.endpoints(1)[0], text(load(1, 2, 0.5)))
		time.Sleep(time.Second)
		synctest.Wait()
		with := w.types
		w.types = append(w.types[:0:0], w.types[2:]...)
		w.configure(scheduling.Config{ProfileName: "p", MaxPicks: 1, Profile: []scheduling.Ref{{Name: "first-picker", Path: "profile[0]"}}})
		w.forget()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(w.all()); n != 0 {
			t.Errorf("%d scrapes without a plugin", n)
		}
		if r, ok := w.store.Reading(0, 1); ok {
			t.Errorf("still knows %+v", r)
		}
		w.types = with
		w.configure(config("", false)) // over the same snapshot
		time.Sleep(time.Second)
		synctest.Wait()
		if len(w.see()) != 1 {
			t.Error("unknown with the plugin back")
		}
	})
}

// TestOldSnapshots has a request that began before an endpoint was replaced, and a snapshot that comes late.
func TestOldSnapshots(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", false))
		const host = "10.0.0.1:8000"
		w.set(host, text(load(7, 0, 0)))
		old := w.pool.Update([]scheduling.EndpointSpec{{Address: host, UID: "old"}})
		w.pool.Update([]scheduling.EndpointSpec{{Address: host, UID: "new"}})
		time.Sleep(time.Second)
		synctest.Wait()
		if m := w.see()[0]; m.Waiting != 7 {
			t.Fatalf("the new instance is read as %+v", m)
		}
		c := w.scheduler.Begin(old, &scheduling.Request{ID: 1, Choices: 1}, w.now())
		w.scheduler.Produce(t.Context(), c)
		if m, ok := scheduling.ColumnOf[scheduling.EngineMetrics](c).Get(0); ok {
			t.Errorf("the old instance has the new one's %+v", m)
		}
		w.scheduler.End(c)
		w.store.follow(old)
		if _, ok := w.store.Reading(0, 2); !ok {
			t.Error("an old snapshot displaced the newer one")
		}
	})
}

// TestLateAnswerOfOldInstance replaces an endpoint while its page is on the way.
func TestLateAnswerOfOldInstance(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("scrapeTimeout: 30s", false))
		const host = "10.0.0.1:8000"
		release := make(chan struct{})
		w.set(host, answer{func(*http.Request) (*http.Response, error) { // deaf to its context
			<-release
			return response(http.StatusOK, strings.NewReader(load(99, 0, 0))), nil
		}})
		w.pool.Update([]scheduling.EndpointSpec{{Address: host, UID: "old"}})
		time.Sleep(time.Second)
		w.set(host, hang)
		w.pool.Update([]scheduling.EndpointSpec{{Address: host, UID: "new"}})
		close(release)
		time.Sleep(time.Second)
		synctest.Wait()
		if got := w.see(); len(got) != 0 {
			t.Errorf("the new instance has the old one's %+v", got)
		}
		if w.store.Scrapes(ResultGone) != 1 || w.store.Scrapes(ResultOK) != 0 {
			t.Errorf("%d gone, %d ok", w.store.Scrapes(ResultGone), w.store.Scrapes(ResultOK))
		}
		if _, _, ok := w.store.CacheConfig(0, 2); ok {
			t.Error("cache configuration of the old instance")
		}
	})
}

func TestURLs(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", false))
		w.pool.Update([]scheduling.EndpointSpec{
			{Address: "10.0.0.1:8000"},
			{Address: "10.0.0.2:8000", Engine: "trtllm"},
			{Address: "10.0.0.3:8000", MetricsURL: "http://10.0.0.3:9000/m"},
			{Address: "[fd00::1]:8000", Engine: "sglang"},
			{Address: "10.0.0.4:8000", MetricsURL: "ftp://10.0.0.4/m"},
		})
		w.set("[fd00::1]:8000", text("sglang:num_queue_reqs 5\n"))
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		got := map[string]string{}
		for _, a := range w.all() {
			got[a.host] = a.path
		}
		want := map[string]string{
			"10.0.0.1:8000": "/metrics", "10.0.0.2:8000": "/prometheus/metrics", "10.0.0.3:9000": "/m", "[fd00::1]:8000": "/metrics",
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("asked (-want +got):\n%s", diff)
		}
		if m := w.see()[3]; m.Waiting != 5 {
			t.Errorf("SGLang endpoint: %+v", m)
		}
	})
}

func TestPathParameter(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("{path: /other, engine: sglang}", false))
		w.set(w.endpoints(1)[0], text("sglang:num_queue_reqs 5\n"))
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		if got := w.all(); len(got) == 0 || got[0].path != "/other" {
			t.Errorf("asked %+v", got)
		}
		if m := w.see()[0]; m.Waiting != 5 {
			t.Errorf("%+v", m)
		}
	})
}

func TestEndpointsComeAndGo(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("", false))
		hosts := w.endpoints(5)
		for _, h := range hosts {
			w.set(h, text(load(1, 2, 0.5)))
		}
		time.Sleep(time.Second)
		w.endpoints(2)
		synctest.Wait() // what was due at this moment
		w.forget()
		time.Sleep(time.Second)
		synctest.Wait()
		for _, h := range hosts[2:] {
			if n := len(w.asked(h)); n > 0 {
				t.Errorf("%s left and was asked %d times", h, n)
			}
		}
		w.endpoints(5)
		if got := len(w.see()); got != 2 {
			t.Errorf("%d endpoints are known, of which 3 came back this moment", got)
		}
		time.Sleep(250 * time.Millisecond)
		synctest.Wait()
		if got := len(w.see()); got != 5 {
			t.Errorf("%d endpoints are known", got)
		}
	})
}
