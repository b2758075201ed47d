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
	failed  int // requests without a whole answer
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
		for ok := false; !ok && ctx.Err() == nil; {
			var got asked
			sent := time.Now()
			got, ok = l.try(ctx, prompt)
			if ctx.Err() != nil {
				return
			}
			l.mu.Lock()
			if ok {
				l.answers = append(l.answers, observed{asked: got, name: fmt.Sprint(name, ", turn ", turn), sent: sent})
				prompt = append(prompt, got.output...)
			} else {
				l.failed++
			}
			l.mu.Unlock()
		}
	}
}

func (l *load) try(ctx context.Context, prompt []int) (asked, bool) {
	body := lab.JSON(l.t, continueIDs(prompt, 30))
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, l.p.envoy.URL("/v1/completions"), strings.NewReader(body))
	if err != nil {
		l.t.Error(err)
		return asked{}, false
	}
	r.Header.Set("content-type", "application/json")
	a, err := lab.Try(l.p.Client, r)
	if err != nil || a.Status != http.StatusOK {
		return asked{}, false
	}
	got := readAsked(l.t, a)
	got.output = read[idsAnswer](l.t, a.Body).Choices[0].TokenIDs
	return got, true
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

// failures is the number of requests without a whole answer so far.
func (l *load) failures() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// stop ends the load and gives what was answered.
func (l *load) stop() []observed {
	l.cancel()
	l.group.Wait()
	return slices.Clone(l.answers)
}
