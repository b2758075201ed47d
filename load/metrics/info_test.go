package metrics

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// TestC34_SleepAndRestartLoseTheCache follows one engine through sleep and restarts in place.
func TestC34_SleepAndRestartLoseTheCache(t *testing.T) {
	t.Parallel()
	const awake, asleep = "vllm:engine_sleep_state{sleep_state=\"awake\"} 1\n", "vllm:engine_sleep_state{sleep_state=\"awake\"} 0\n"
	cache := func(n int) string {
		return fmt.Sprintf("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n", n)
	}
	start := func(at float64) string { return fmt.Sprintf("process_start_time_seconds %v\n", at) }
	queries := func(n int) string { return fmt.Sprintf("vllm:prefix_cache_queries_total %d\n", n) }
	bubble(t, func(w *world) {
		type instance struct {
			ordinal    int
			generation uint64
		}
		var losses []instance
		var last bool
		stop := w.store.OnCacheLost(func(ordinal int, generation uint64, restarted bool) {
			losses, last = append(losses, instance{ordinal, generation}), restarted
		})
		w.configure(config("", true))
		host := w.endpoints(1)[0]
		for _, step := range []struct {
			name, page string
			want       int
			blocks     int
		}{
			{"first page", awake + start(100) + queries(50) + cache(1000), 0, 1000},
			{"nothing new", awake + start(100) + queries(60), 0, 1000}, // the cache's shape is remembered
			{"falls asleep", asleep + start(100) + queries(60), 1, 1000},
			{"sleeps on", asleep + start(100) + queries(60), 0, 1000},
			{"wakes", awake + start(100) + queries(60), 0, 1000},
			{"restarts", awake + start(200) + queries(0), 1, 0},
			{"has another cache now", awake + start(200) + queries(0) + cache(500), 0, 500},
			{"older clock", awake + start(199) + queries(9) + cache(500), 0, 500},
			{"no start time", awake + queries(10) + cache(500), 0, 500},
			{"back with it", awake + start(300) + queries(1) + cache(500), 1, 500},
			{"restarts and falls asleep", asleep + start(310) + queries(0) + cache(500), 2, 500},
			{"restarts, and sleeps again", asleep + start(320) + queries(0) + cache(500), 2, 500},
		} {
			losses = nil
			w.set(host, text(load(0, 0, 0)+step.page))
			time.Sleep(time.Second)
			synctest.Wait()
			if len(losses) != step.want || step.want > 0 && losses[0] != (instance{0, 1}) {
				t.Errorf("%s: losses %+v, want %d", step.name, losses, step.want)
			}
			if step.want == 2 && last {
				t.Errorf("%s: the sleep, which came after, is not told last", step.name)
			}
			if _, blocks, _ := w.store.CacheConfig(0, 1); blocks != step.blocks {
				t.Errorf("%s: %d blocks, want %d", step.name, blocks, step.blocks)
			}
		}
		if sleeps, restarts := w.store.stats.losses[lostBySleep].Load(), w.store.stats.losses[lostByRestart].Load(); sleeps != 3 || restarts != 4 {
			t.Errorf("counted %d sleeps and %d restarts", sleeps, restarts)
		}
		stop()
		w.set(host, text(load(0, 0, 0)+start(400)))
		time.Sleep(time.Second)
		synctest.Wait()
		if len(losses) != 2 {
			t.Errorf("told after the end: %+v", losses)
		}
	})
}

// TestRestartByCounters follows an engine whose page does not say when it was started.
func TestRestartByCounters(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		restarts := 0
		w.store.OnCacheLost(func(int, uint64, bool) { restarts++ })
		w.configure(config("", false))
		host := w.endpoints(1)[0]
		for _, step := range []struct {
			name, page string
			want       int
		}{
			{"first page", `vllm:prefix_cache_queries_total{engine="0"} 50` + "\n" + `vllm:prefix_cache_queries_total{engine="1"} 50` + "\n", 0},
			{"one engine is missing", `vllm:prefix_cache_queries_total{engine="0"} 60` + "\n", 0},
			{"back", `vllm:prefix_cache_queries_total{engine="0"} 61` + "\n" + `vllm:prefix_cache_queries_total{engine="1"} 50` + "\n", 0},
			{"counts anew", `vllm:prefix_cache_queries_total{engine="0"} 1` + "\n" + `vllm:prefix_cache_queries_total{engine="1"} 2` + "\n", 1},
			{"counts on", `vllm:prefix_cache_queries_total{engine="0"} 5` + "\n" + `vllm:prefix_cache_queries_total{engine="1"} 2` + "\n", 1},
		} {
			w.set(host, text(step.page))
			time.Sleep(time.Second)
			synctest.Wait()
			if restarts != step.want {
				t.Errorf("%s: %d restarts, want %d", step.name, restarts, step.want)
			}
		}
	})
}

// TestInfoAloneReadsSeldom has nobody who needs the load: the first pages are read soon, then few.
func TestInfoAloneReadsSeldom(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		cfg := scheduling.Config{ProfileName: "p", MaxPicks: 1, Profile: []scheduling.Ref{{Name: "first-picker", Path: "profile[0]"}},
			Plugins: []scheduling.Spec{{Name: infoUserType, Type: infoUserType}}}
		w.configure(cfg)
		if _, ok := w.scheduler.Plugin(InfoTypeName).(*InfoProducer); !ok {
			t.Fatal("the need did not create the producer")
		}
		hosts := w.endpoints(20)
		for _, h := range hosts {
			w.set(h, text("vllm:cache_config_info{block_size=\"32\",num_gpu_blocks=\"9\"} 1\n"))
		}
		time.Sleep(200 * time.Millisecond)
		synctest.Wait()
		for i := range hosts {
			if size, blocks, ok := w.store.CacheConfig(i, uint64(i+1)); !ok || size != 32 || blocks != 9 {
				t.Errorf("endpoint %d: %d, %d, %v", i, size, blocks, ok)
			}
		}
		w.forget()
		time.Sleep(time.Minute)
		synctest.Wait()
		if n := len(w.all()); n < 20*11 || n > 20*13 {
			t.Errorf("%d scrapes of 20 endpoints in a minute; one per 5 s is meant", n)
		}
	})
}

// TestInfoBesideMetricsReadsNothing has the load read often: what the other plugin needs stands on the same pages.
func TestInfoBesideMetricsReadsNothing(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		w.configure(config("scrapeInterval: 1s", true))
		hosts := w.endpoints(20)
		for _, h := range hosts {
			w.set(h, text(load(0, 0, 0)))
		}
		time.Sleep(3 * time.Second)
		w.forget()
		time.Sleep(time.Minute)
		synctest.Wait()
		for _, h := range hosts {
			if n := len(w.asked(h)); n < 59 || n > 62 {
				t.Errorf("%s was asked %d times in a minute at 1 s", h, n)
			}
		}
	})
}
