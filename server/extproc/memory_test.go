package extproc

import (
	"context"
	"os"
	"os/exec"
	"runtime"
	"sync"
	"testing"
	"time"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
)

// TestMemoryOfABody holds eight requests with bodies of 1 MiB at once: when each is about to be picked for, and when all
// answers wait for a proxy that does not read. In neither may a body take as much as three copies of it.
func TestMemoryOfABody(t *testing.T) {
	if os.Getenv(aloneVariable) == "" {
		alone(t)
		return
	}
	const bodies, size, piece = 8, 1 << 20, 64 << 10
	at := runtime.NumGoroutine()
	body := []byte(chat(size))
	for name, opening := range map[string]bodyMode{"full duplex": modeFullDuplex, "buffered": modeBuffered} {
		t.Run(name, func(t *testing.T) {
			waitFor(t, func() bool { return runtime.NumGoroutine() <= at+1 }) // what the test before had is gone
			var arrived sync.WaitGroup
			release := make(chan struct{})
			b := newBench(t, options{
				addresses: []string{"10.0.0.1:8000"},
				produce: func(ctx context.Context) {
					arrived.Done()
					select {
					case <-release:
					case <-ctx.Done():
					}
				},
				configure: func(c *Config) { c.ProduceTimeout = time.Minute },
			})
			before := liveBytes()
			arrived.Add(bodies)
			calls := make([]*call, bodies)
			for i := range calls {
				c := b.call(t, opening, modeNone)
				calls[i] = c
				c.requestHeaders(false)
				if opening == modeBuffered {
					c.recv()
					c.send(bodyMessage(body, true))
					continue
				}
				for at := 0; at < len(body); at += piece {
					end := min(at+piece, len(body))
					c.send(bodyMessage(body[at:end], end == len(body)))
				}
			}
			arrived.Wait()
			if copies := perBody(t, "before the pick", before, bodies, len(body)); copies < 0.9 {
				t.Errorf("%.2f copies are in memory: the bodies are not where they are looked for", copies)
			}
			close(release)
			waitFor(t, func() bool { return b.notes.picks() == bodies })
			perBody(t, "while answers wait", before, bodies, len(body))
			runtime.KeepAlive(calls)
		})
	}
}

func bodyMessage(body []byte, end bool) *extprocv3.ProcessingRequest {
	return &extprocv3.ProcessingRequest{Request: &extprocv3.ProcessingRequest_RequestBody{
		RequestBody: &extprocv3.HttpBody{Body: body, EndOfStream: end}}}
}

func perBody(t *testing.T, when string, before int64, bodies, size int) (copies float64) {
	t.Helper()
	copies = float64(liveBytes()-before) / float64(bodies*size)
	t.Logf("%s: %.2f copies of a body", when, copies)
	if copies >= 3 {
		t.Errorf("%s: %.2f copies of a body are in memory, want fewer than 3", when, copies)
	}
	return copies
}

// aloneVariable is set in a process that runs one test only.
const aloneVariable = "SLUICE_TEST_ALONE"

// alone runs a test in a process of its own, where no other test's memory comes and goes.
func alone(t *testing.T) {
	t.Helper()
	child := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v", "-test.timeout=2m")
	child.Env = append(os.Environ(), aloneVariable+"=1")
	out, err := child.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
}

// liveBytes is the memory in use after garbage and what pools keep is gone, once it stays the same.
func liveBytes() int64 {
	var m runtime.MemStats
	for last := int64(0); ; {
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		now := int64(m.HeapAlloc)
		if now-last < 64<<10 && last-now < 64<<10 {
			return now
		}
		last = now
		time.Sleep(10 * time.Millisecond)
	}
}
