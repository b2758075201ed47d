package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-epp/sluice/test/lab"
)

// traffic is a steady stream of requests from several clients, each of which must succeed.
type traffic struct {
	cancel  context.CancelFunc
	group   sync.WaitGroup
	mu      sync.Mutex
	sent    int
	engines map[string]int
	faults  []error
}

func startTraffic(t *testing.T, c *http.Client, url string, clients int) *traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &traffic{cancel: cancel, engines: map[string]int{}}
	t.Cleanup(func() { cancel(); f.group.Wait() })
	for i := range clients {
		bodies := []string{lab.Chat(t, fmt.Sprint("a", i), 100, 3, false), lab.Chat(t, fmt.Sprint("b", i), 200, 5, true)}
		f.group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				f.send(ctx, c, url, bodies[n%2])
			}
		})
	}
	return f
}

func (f *traffic) send(ctx context.Context, c *http.Client, url, body string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		f.note("", err)
		return
	}
	r.Header.Set("content-type", "application/json")
	a, err := lab.Try(c, r)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil && a.Status != http.StatusOK:
		err = fmt.Errorf("status %d (%s): %s", a.Status, a.Header.Get("x-sluice-reason"), a.Body)
	}
	f.note(a.Header.Get("x-sim-endpoint"), err)
}

func (f *traffic) note(engine string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	f.engines[engine]++
	if err != nil && len(f.faults) < 5 {
		f.faults = append(f.faults, err)
	}
}

// answered is how many requests an engine has answered, or all with no name.
func (f *traffic) answered(engine string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if engine == "" {
		return f.sent
	}
	return f.engines[engine]
}

// stop ends the traffic and fails the test if any request did.
func (f *traffic) stop(t *testing.T) {
	t.Helper()
	f.cancel()
	f.group.Wait()
	if err := errors.Join(f.faults...); err != nil {
		t.Errorf("of %d requests some failed: %v", f.sent, err)
	}
}
