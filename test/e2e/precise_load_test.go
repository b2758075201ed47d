package e2e

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/test/lab"
)

// load is conversations in token ids, several at a time, of which every answer is kept.
type load struct {
	p      *precise
	t      *testing.T
	cancel context.CancelFunc
	group  sync.WaitGroup

	mu      sync.Mutex
	answers []observed
	failed  []string // why requests had no whole answer
}

// observed is a request of a load, and when it was sent.
type observed struct {
	asked
	name string
	sent time.Time
}

func (p *precise) startLoad(t *testing.T, name string, clients int) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	l := &load{p: p, t: t, cancel: cancel}
	t.Cleanup(func() { cancel(); l.group.Wait() })
	for i := range clients {
		l.group.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				l.converse(ctx, fmt.Sprintf("%s %d.%d", name, i, n))
			}
		})
	}
	return l
}

// converse goes through a conversation; a turn that fails is asked again.
func (l *load) converse(ctx context.Context, name string) {
	prompt := ids(name, 250)
	for turn := range 6 {
		prompt = append(prompt, ids(fmt.Sprint(name, " question ", turn), 30)...)
		for ok := false; !ok; {
			sent := time.Now()
			got, err := l.try(ctx, prompt)
			if ctx.Err() != nil {
				return
			}
			l.mu.Lock()
			if ok = err == nil; ok {
				l.answers = append(l.answers, observed{asked: got, name: fmt.Sprint(name, ", turn ", turn), sent: sent})
				prompt = append(prompt, got.output...)
			} else {
				l.failed = append(l.failed, err.Error())
			}
			l.mu.Unlock()
			if !ok {
				time.Sleep(10 * time.Millisecond) // as a client would
			}
		}
	}
}

func (l *load) try(ctx context.Context, prompt []int) (asked, error) {
	body := lab.JSON(l.t, continueIDs(prompt, 30))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.p.envoy.URL("/v1/completions"), strings.NewReader(body))
	if err != nil {
		return asked{}, err
	}
	r.Header.Set("content-type", "application/json")
	a, err := lab.Try(l.p.Client, r)
	if err != nil {
		return asked{}, err
	}
	if a.Status != http.StatusOK {
		return asked{}, fmt.Errorf("status %d after the decision %q: %.300s", a.Status, a.Header.Get("x-sluice-decision"), a.Body)
	}
	got := readAsked(l.t, a)
	got.output = read[idsAnswer](l.t, a.Body).Choices[0].TokenIDs
	return got, nil
}

// wait waits for n more answers of an engine.
func (l *load) wait(name string, n int) {
	l.t.Helper()
	from := time.Now()
	lab.Wait(l.t, fmt.Sprintf("%d answers of %s", n, name), func() bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		got := 0
		for _, o := range l.answers {
			if o.engine == name && o.sent.After(from) {
				got++
			}
		}
		return got >= n
	})
}

// failures are why requests had no whole answer so far.
func (l *load) failures() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.failed)
}

// stop ends the load and gives what was answered.
func (l *load) stop() []observed {
	l.cancel()
	l.group.Wait()
	return slices.Clone(l.answers)
}
