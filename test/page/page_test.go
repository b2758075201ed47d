package page

import (
	"bytes"
	"context"
	"fmt"
	"image/png"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/deploy/envoy"
	"github.com/sluice-epp/sluice/sim/engine"
	"github.com/sluice-epp/sluice/test/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// stage is a lab with traffic that can be turned on.
type stage struct {
	*lab.Lab
	host, url string
}

func newStage(t *testing.T, engines, more int) *stage {
	t.Helper()
	plan := lab.Plan{Engines: engines, Engine: engine.Config{Speed: 2}, Config: `apiVersion: sluice/v1alpha1
kind: EndpointPickerConfig
plugins:
  - type: approx-prefix-cache-producer
  - type: prefix-cache-affinity-filter
    parameters: {penaltyMode: matchedTokens, explorationProbability: 0}
`}
	for i := range more {
		plan.Endpoints = append(plan.Endpoints, lab.Serve(t, fmt.Sprintf("127.0.%d.%d:0", 100+i/250, i%250+1), http.HandlerFunc(slow)))
	}
	l := lab.New(t, plan)
	return &stage{Lab: l, host: l.Sluice.App.AdminAddr().String(), url: l.Envoy(t, envoy.Params{}).URL("/v1/chat/completions")}
}

// slow is an engine that takes its time.
func slow(w http.ResponseWriter, r *http.Request) {
	if r.Method == http.MethodPost {
		_, _ = io.Copy(io.Discard, r.Body)
		wait := time.NewTimer(3 * time.Second)
		defer wait.Stop()
		select {
		case <-wait.C:
		case <-r.Context().Done():
		}
	}
	w.Header().Set("content-type", "application/json")
	_, _ = io.WriteString(w, `{"usage":{"prompt_tokens":100,"completion_tokens":1}}`)
}

// traffic sends conversations, so many at a time, until stop is called.
func (s *stage) traffic(t *testing.T, clients int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	var all sync.WaitGroup
	for i := range clients {
		all.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				tag := fmt.Sprint("conversation ", i%5, " ")
				if n%3 == 2 {
					tag = fmt.Sprintf("once %d %d ", i, n)
				}
				s.send(ctx, t, fmt.Sprintf("client-%d-turn-%d", i, n), tag, 1500+700*(n%6), 40+10*(i%4))
			}
		})
	}
	stop = sync.OnceFunc(func() { cancel(); all.Wait() })
	t.Cleanup(stop)
	return stop
}

func (s *stage) send(ctx context.Context, t *testing.T, id, tag string, size, output int) {
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.url, strings.NewReader(lab.Chat(t, tag, size, output, true)))
	if err != nil {
		t.Error(err)
		return
	}
	r.Header.Set("content-type", "application/json")
	r.Header.Set("x-request-id", id)
	if _, err := lab.Try(s.Client, r); err != nil && ctx.Err() == nil {
		t.Error(err)
	}
}

// keep writes a screenshot for people to look at, and returns the colour of its corner.
func keep(t *testing.T, name string, shot []byte) (red, green, blue uint32) {
	t.Helper()
	folder := filepath.Join("..", "..", "bin", "page")
	if err := os.MkdirAll(folder, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, name+".png"), shot, 0o600); err != nil {
		t.Fatal(err)
	}
	img, err := png.Decode(bytes.NewReader(shot))
	if err != nil {
		t.Fatal(err)
	}
	red, green, blue, _ = img.At(2, img.Bounds().Dy()/2).RGBA()
	return red, green, blue
}

func TestFirstLook(t *testing.T) {
	s := newStage(t, 3, 0)
	b := open(t)
	s.traffic(t, 24)
	b.look(1400, 900, "light")
	b.visit("http://" + s.host + "/")
	time.Sleep(12 * time.Second)
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{1400, 380} {
			b.look(width, 900, scheme)
			time.Sleep(300 * time.Millisecond)
			keep(t, fmt.Sprintf("overview-%s-%d", scheme, width), b.screenshot(true))
		}
	}
	b.look(1400, 900, "light")
	b.visit(eval[string](b, "document.querySelector('#decisions .badge.released, #decisions .badge').closest('li').querySelector('a').href"))
	keep(t, "decision", b.screenshot(true))
	b.look(380, 900, "dark")
	keep(t, "decision-narrow", b.screenshot(true))
	b.healthy(s.host)
}

func TestManyEndpoints(t *testing.T) {
	s := newStage(t, 3, 509)
	b := open(t)
	s.traffic(t, 150)
	b.look(1400, 900, "light")
	b.visit("http://" + s.host + "/")
	time.Sleep(15 * time.Second)
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{1400, 380} {
			b.look(width, 900, scheme)
			time.Sleep(300 * time.Millisecond)
			keep(t, fmt.Sprintf("many-%s-%d", scheme, width), b.screenshot(true))
		}
	}
	b.visit(eval[string](b, "document.querySelector('#decisions a').href"))
	b.look(1400, 900, "light")
	keep(t, "many-decision", b.screenshot(true))
	b.healthy(s.host)
}
