package discovery

import (
	"bytes"
	"log/slog"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/scheduling"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wait is how long a test waits for what must happen.
const wait = 10 * time.Second

// feed receives what a source publishes.
type feed chan []scheduling.EndpointSpec

func newFeed() feed { return make(feed, 100) }

func (f feed) publish(specs []scheduling.EndpointSpec) { f <- specs }

// next returns the addresses of the next published set.
func (f feed) next(t *testing.T) []string {
	t.Helper()
	select {
	case specs := <-f:
		return addresses(specs)
	case <-time.After(wait):
		t.Fatal("nothing was published")
		return nil
	}
}

func addresses(specs []scheduling.EndpointSpec) []string {
	list := make([]string, len(specs))
	for i := range specs {
		list[i] = specs[i].Address
	}
	return list
}

func mustEntries(t testing.TB, list ...string) []Entry {
	t.Helper()
	entries, err := ParseEntries(list)
	if err != nil {
		t.Fatal(err)
	}
	return entries
}

// logBuffer is a log that a test reads while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBuffer) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

// eventually waits until ok reports true.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(wait)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: did not happen within %s", what, wait)
		}
		time.Sleep(time.Millisecond)
	}
}
