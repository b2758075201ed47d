package metrics

import (
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestAutomaticInterval(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		endpoints  int
		load, info time.Duration
	}{
		{0, 200 * time.Millisecond, 5 * time.Second},
		{1, 200 * time.Millisecond, 5 * time.Second},
		{50, 200 * time.Millisecond, 5 * time.Second},
		{51, 204 * time.Millisecond, 5 * time.Second},
		{512, 2048 * time.Millisecond, 10240 * time.Millisecond},
	} {
		if got := loadPace.interval(tc.endpoints); got != tc.load {
			t.Errorf("load, %d endpoints: %v, want %v", tc.endpoints, got, tc.load)
		}
		if got := infoPace.interval(tc.endpoints); got != tc.info {
			t.Errorf("info, %d endpoints: %v, want %v", tc.endpoints, got, tc.info)
		}
	}
}

func TestBackoff(t *testing.T) {
	t.Parallel()
	const ms = time.Millisecond
	for _, tc := range []struct {
		interval time.Duration
		failures int
		want     time.Duration
	}{
		{200 * ms, 0, 200 * ms}, {200 * ms, 1, 400 * ms}, {200 * ms, 2, 800 * ms}, {200 * ms, 5, 6400 * ms},
		{200 * ms, 6, maxBackoff}, {200 * ms, 1 << 30, maxBackoff}, {time.Minute, 3, time.Minute},
	} {
		if got := backoff(tc.interval, tc.failures); got != tc.want {
			t.Errorf("backoff(%v, %d) = %v, want %v", tc.interval, tc.failures, got, tc.want)
		}
	}
}

func TestPhasesLieEvenly(t *testing.T) {
	t.Parallel()
	for _, n := range []int{2, 3, 8, 50, 64, 100, 512, 1000} {
		for _, offset := range []float64{0, 0.37, 0.999} {
			phases := make([]float64, n, n+1)
			for i := range phases {
				phases[i] = phaseOf(i, offset)
				if phases[i] < 0 || phases[i] >= 1 {
					t.Fatalf("phase %v", phases[i])
				}
			}
			slices.Sort(phases)
			phases = append(phases, phases[0]+1)
			narrow, wide := math.Inf(1), 0.0
			for i := range n {
				gap := (phases[i+1] - phases[i]) * float64(n)
				narrow, wide = min(narrow, gap), max(wide, gap)
			}
			if narrow < 0.38 || wide > 1.9 {
				t.Errorf("%d endpoints: gaps of %.2f to %.2f times the even one", n, narrow, wide)
			}
		}
	}
}

func TestNextAt(t *testing.T) {
	t.Parallel()
	const interval = 100
	for _, tc := range []struct {
		now, pause time.Duration
		phase      float64
		want       time.Duration
	}{
		{30, 100, 0.3, 130}, // prompt
		{79, 100, 0.3, 130}, // slow
		{81, 100, 0.3, 230}, // slower: half an interval is left to the engine
		{0, 100, 0.9, 90},   // the first
		{30, 400, 0.3, 430}, // backing off
		{30, 100, 0, 100},
	} {
		if got := nextAt(tc.now, interval, tc.pause, tc.phase); got != tc.want {
			t.Errorf("nextAt(%d, pause %d, phase %v) = %d, want %d", tc.now, tc.pause, tc.phase, got, tc.want)
		}
	}
}

func TestOnTick(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct{ at, interval, want time.Duration }{
		{0, 320, 0}, {1, 320, 10}, {10, 320, 10}, {311, 320, 320}, {325, 320, 330},
		{7, 10, 7}, // an interval that cannot be divided
	} {
		if got := onTick(tc.at, tc.interval); got != tc.want {
			t.Errorf("onTick(%d, %d) = %d, want %d", tc.at, tc.interval, got, tc.want)
		}
	}
}

// mostWithin is the largest number of requests that began within any window of the given length.
func mostWithin(asks []ask, window time.Duration) int {
	most, from := 0, 0
	for i := range asks {
		for asks[i].at-asks[from].at >= window {
			from++
		}
		most = max(most, i-from+1)
	}
	return most
}

func TestScrapesAreSpread(t *testing.T) {
	t.Parallel()
	for _, n := range []int{1, 8, 100, 512} {
		bubble(t, func(w *world) {
			w.configure(config("", false))
			hosts := w.endpoints(n)
			for _, h := range hosts {
				w.set(h, text(load(1, 2, 0.5)))
			}
			interval := loadPace.interval(n)
			time.Sleep(interval)
			synctest.Wait()
			if got := len(w.see()); got != n {
				t.Errorf("%d endpoints: %d known after the first interval", n, got)
			}
			time.Sleep(10 * interval)
			synctest.Wait()
			asks := w.all()
			const slices = 10
			allowed := int(1.9*float64(n)/slices*(1+1.0/16)) + 2
			if got := mostWithin(asks, interval/slices); got > allowed {
				t.Errorf("%d endpoints: %d scrapes within a tenth of the interval, %d allowed", n, got, allowed)
			}
			for _, h := range hosts {
				times := w.asked(h)
				if len(times) < 10 || len(times) > 12 {
					t.Errorf("%d endpoints: %s was asked %d times in 11 intervals", n, h, len(times))
				}
				for i := 1; i < len(times); i++ {
					if gap := times[i] - times[i-1]; gap < interval/2 || gap > interval*3/2 {
						t.Errorf("%d endpoints: %s: gap of %v, interval %v", n, h, gap, interval)
					}
				}
			}
		})
	}
}

// TestC49_ScrapeCostIsBounded reads 200 endpoints with pages of 500 KB.
func TestC49_ScrapeCostIsBounded(t *testing.T) {
	t.Parallel()
	bubble(t, func(w *world) {
		long := make([]byte, 0, 500<<10)
		for len(long) < 500_000 {
			long = append(long, "vllm:request_success_bucket{le=\"0.5\",model_name=\"m\"} 1.0\n"...)
		}
		big := string(long) + load(3, 4, 0.5)
		w.configure(config("", false))
		for _, h := range w.endpoints(200) {
			w.set(h, text(big))
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if got := len(w.see()); got != 200 {
			t.Errorf("%d endpoints are known", got)
		}
		asks := w.all()
		if n := len(asks); n > 2700 || n < 2300 {
			t.Errorf("%d scrapes in 10 s; one per 4 ms is meant", n)
		}
		if n := mostWithin(asks, 100*time.Millisecond); n > 52 {
			t.Errorf("%d scrapes within 100 ms; 25 are meant", n)
		}
	})
}
