package lab

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// Traffic is a steady stream of requests from several clients, each of which must succeed.
type Traffic struct {
	cancel  context.CancelFunc
	group   sync.WaitGroup
	mu      sync.Mutex
	sent    int
	engines map[string]int
	faults  []error
}

// StartTraffic starts clients that send one request after another to a URL for chats, until Stop.
func StartTraffic(t testing.TB, c *http.Client, url string, clients int) *Traffic {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	f := &Traffic{cancel: cancel, engines: map[string]int{}}
	t.Cleanup(func() { cancel(); f.group.Wait() })
	for i := range clients {
		bodies := []string{Chat(t, fmt.Sprint("a", i), 100, 3, false), Chat(t, fmt.Sprint("b", i), 200, 5, true)}
		f.group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				f.send(ctx, c, url, bodies[n%2])
			}
		})
	}
	return f
}

func (f *Traffic) send(ctx context.Context, c *http.Client, url, body string) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body))
	if err != nil {
		f.note("", err)
		return
	}
	r.Header.Set("content-type", "application/json")
	a, err := Try(c, r)
	switch {
	case ctx.Err() != nil:
		return
	case err == nil && a.Status != http.StatusOK:
		err = fmt.Errorf("status %d (%s): %s", a.Status, a.Header.Get("x-sluice-reason"), a.Body)
	}
	f.note(a.Header.Get("x-sim-endpoint"), err)
}

func (f *Traffic) note(engine string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	f.engines[engine]++
	if err != nil && len(f.faults) < 5 {
		f.faults = append(f.faults, err)
	}
}

// Answered is how many requests an engine has answered, or all with no name.
func (f *Traffic) Answered(engine string) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if engine == "" {
		return f.sent
	}
	return f.engines[engine]
}

// Stop ends the traffic and fails the test if any request did.
func (f *Traffic) Stop(t testing.TB) {
	t.Helper()
	f.cancel()
	f.group.Wait()
	if err := errors.Join(f.faults...); err != nil {
		t.Errorf("of %d requests some failed: %v", f.sent, err)
	}
}
