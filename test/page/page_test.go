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
  - type: predicted-latency-producer
  - type: prefix-cache-affinity-filter
    parameters: {penaltyMode: matchedTokens, explorationProbability: 0}
  - type: prefill-cost-scorer
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
	r.Header.Set("x-sluice-slo-ttft-ms", "30")
	r.Header.Set("x-sluice-slo-tpot-ms", "40")
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

// bright is how bright a colour is, from 0 to 1.
func bright(red, green, blue uint32) float64 { return float64(red+green+blue) / (3 * 0xffff) }

// appearances looks at a page in both colours and in a wide and a narrow window: it fits, its text can be read.
func appearances(t *testing.T, b *browser, name string) {
	t.Helper()
	for _, scheme := range []string{"light", "dark"} {
		for _, width := range []int{1400, 380} {
			b.look(width, 900, scheme)
			if over := eval[int](b, "document.documentElement.scrollWidth - innerWidth"); over > 0 {
				t.Errorf("%s, %d pixels wide: %d too many", name, width, over)
			}
			const nested = "[...document.querySelectorAll('main *')].filter((e) => e.scrollHeight > e.clientHeight + 1 && ['auto', 'scroll'].includes(getComputedStyle(e).overflowY)).length"
			if n := eval[int](b, nested); width < 600 && n > 0 { // on a phone the page alone scrolls
				t.Errorf("%s, %d pixels wide: %d elements scroll by themselves", name, width, n)
			}
			for _, low := range eval[[]string](b, lowContrast) {
				t.Errorf("%s, %s: hard to read: %s", name, scheme, low)
			}
			light := bright(keep(t, fmt.Sprintf("%s-%s-%d", name, scheme, width), b.screenshot(true)))
			if (scheme == "light") != (light > 0.8) || (scheme == "dark") != (light < 0.2) {
				t.Errorf("%s: %s has a brightness of %.2f", name, scheme, light)
			}
		}
	}
	b.look(1400, 900, "light")
}

// lowContrast lists elements whose text has less than 4.5 times the luminance of what is behind, or the other way round.
const lowContrast = `(() => {
  const parts = (c) => c.match(/[\d.]+/g).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (e) => {
    for (; e; e = e.parentElement) {
      const c = parts(getComputedStyle(e).backgroundColor);
      if (c.length < 4 || c[3] === 1) return c;
    }
    return [255, 255, 255];
  };
  const bad = new Set();
  let seen = 0;
  for (const e of document.querySelectorAll("body *")) {
    if (![...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) || !e.getClientRects().length) continue;
    seen++;
    const style = getComputedStyle(e);
    const a = luminance(parts(e.namespaceURI.endsWith("svg") ? style.fill : style.color)), b = luminance(behind(e));
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) bad.add(e.nodeName + "." + e.getAttribute("class") + " " + ratio.toFixed(2) + ": " + e.textContent.trim().slice(0, 30));
  }
  if (seen < 10) bad.add("only " + seen + " elements have text");
  return [...bad];
})()`

const (
	newest = "(document.querySelector('#decisions li') || {dataset: {}}).dataset.key"
	loads  = "[...document.querySelectorAll('#endpoints .bar.load .fill')].map((e) => Number(e.getAttribute('width')))"
)

// What happens shows without a reload: decisions as they are made, loads as they rise and fall.
func TestPageLives(t *testing.T) {
	b := open(t)
	s := newStage(t, 3, 0)
	b.look(1400, 900, "light")
	b.visit("http://" + s.host + "/")
	if path := eval[string](b, "location.pathname"); path != "/ui/" {
		t.Fatalf("a browser is led to %s", path)
	}
	b.until("the page to follow", "document.querySelector('#connection.live')")
	if n := eval[int](b, "document.querySelectorAll('#endpoints tr').length"); n != 3 || !strings.Contains(b.text("#decisions-note"), "No decision") {
		t.Fatalf("at first: %d endpoints, %s", n, b.text("#decisions-note"))
	}
	eval[any](b, "window.mark = 1")

	stop := s.traffic(t, 24)
	b.until("decisions", "document.querySelectorAll('#decisions li').length > 10")
	b.until("load", loads+".some((w) => w > 0)")
	first := eval[string](b, newest)
	b.until("newer decisions", newest+" !== '"+first+"'")
	b.until("a request that ended", "document.querySelector('#decisions .outcome.good')")
	b.until("a request that the gate kept", "document.querySelector('#decisions .badge.held')")
	b.until("a plot of the gate", "document.querySelectorAll('#gates svg rect').length > 2")
	b.until("what the caches hold", "[...document.querySelectorAll('#endpoints .bar.cache .fill')].some((e) => e.getAttribute('width') > 0)")

	eval[any](b, "document.querySelector('#status a').focus(); window.up = document.querySelector('#status').innerText")
	b.until("the head to change", "document.querySelector('#status').innerText !== window.up")
	if !eval[bool](b, "document.activeElement === document.querySelector('#status a')") {
		t.Error("an update takes the focus away")
	}

	eval[any](b, "document.querySelector('#pause').click()")
	held := eval[string](b, newest)
	time.Sleep(2500 * time.Millisecond)
	if now := eval[string](b, newest); now != held || b.text("#connection") != "paused" {
		t.Errorf("paused at %s, now at %s: %s", held, now, b.text("#connection"))
	}
	eval[any](b, "document.querySelector('#pause').click()")
	b.until("the page to go on", newest+" !== '"+held+"'")
	eval[any](b, "document.activeElement.blur()")
	appearances(t, b, "overview")
	stop()
	s.Sluice.Settle(t)
	b.until("no load", loads+".every((w) => w === 0)")
	b.until("no request to be in flight", "![...document.querySelectorAll('#decisions .outcome')].some((e) => e.innerText === 'in flight')")
	if eval[int](b, "window.mark") != 1 {
		t.Error("the page was loaded again")
	}
	b.healthy(s.host)
}

// A decision is found by its request's id, shown in full, and what would be decided can be tried.
func TestForms(t *testing.T) {
	b := open(t)
	s := newStage(t, 3, 0)
	for i := range 3 {
		s.send(t.Context(), t, fmt.Sprint("request-", i), "conversation ", 800, 3)
	}
	b.look(1400, 900, "light")
	b.visit("http://" + s.host + "/ui/")
	eval[any](b, "document.querySelector('#lookup').value = 'request-1'; document.querySelector('.lookup').requestSubmit()")
	b.until("the decision", "location.pathname.startsWith('/ui/decisions/') && document.querySelector('tr.picked')")
	for _, want := range []string{"request-1", "Candidates", "prefill-cost-scorer", "Load gate", "What would have changed the pick", "complete",
		"Predicted TTFT", "Predicted TPOT", "Confidence", "Asked TTFT", "Seen TTFT", "times what was predicted"} {
		if !strings.Contains(b.text("body"), want) {
			t.Errorf("the decision does not say %q: %s", want, b.text("main"))
		}
	}
	appearances(t, b, "decision")
	b.visit("http://" + s.host + "/ui/try")
	appearances(t, b, "try")
	eval[any](b, "document.querySelector('#body').value = "+lab.JSON(t, lab.Chat(t, "conversation ", 800, 3, false))+"; document.querySelector('.try').requestSubmit()")
	b.until("the trial", "document.querySelector('h1').innerText === 'What would be decided'")
	if n := eval[int](b, "document.querySelectorAll('tbody tr').length"); n != 3 || strings.Contains(b.text("body"), "conversation") {
		t.Errorf("%d candidates: %s", n, b.text("main"))
	}
	b.healthy(s.host)
}

// What clients send stays text, also where an update brings it.
func TestHostileRequest(t *testing.T) {
	b := open(t)
	s := newStage(t, 1, 0)
	b.visit("http://" + s.host + "/ui/")
	b.until("the page to follow", "document.querySelector('#connection.live')")
	const evil = `<img src=x onerror="window.hacked=1"><script>window.hacked=2</script>`
	body := lab.JSON(t, map[string]any{"model": "\u202e" + evil, "messages": []map[string]string{{"role": "user", "content": "secret prompt"}}})
	lab.Post(t, s.Client, s.url, body, "x-request-id", evil)
	b.until("the decision", "document.querySelector('#decisions .rid')")
	if got := b.text("#decisions .rid"); got != evil {
		t.Errorf("the request's id is %q", got)
	}
	page := eval[string](b, "document.documentElement.outerHTML")
	if eval[int](b, "document.querySelectorAll('#decisions img, #decisions script').length") != 0 || eval[any](b, "window.hacked") != nil ||
		strings.Contains(page, "secret prompt") || strings.ContainsRune(page, 0x202e) {
		t.Error(b.text("#decisions"))
	}
	b.healthy(s.host)
	// The policy holds even where the page were wrong.
	b.quietly(func() {
		eval[any](b, "document.body.insertAdjacentHTML('beforeend', '<i id=made onclick=\"window.hacked=3\">x</i>'); document.querySelector('#made').click()")
		eval[any](b, "document.head.append(Object.assign(document.createElement('script'), {textContent: 'window.hacked=4'}))")
		if eval[string](b, "fetch('http://127.0.0.2:9/').then(() => 'sent', () => 'refused')") != "refused" || eval[any](b, "window.hacked") != nil {
			t.Errorf("what was put into the page ran: %v", eval[any](b, "window.hacked"))
		}
	})
}

// The end of the process shows, and a page that is left open follows the next one.
func TestDrainShows(t *testing.T) {
	b := open(t)
	s := newStage(t, 1, 0)
	b.visit("http://" + s.host + "/ui/")
	b.until("the page to follow", "document.querySelector('#connection.live')")
	b.quietly(func() {
		s.Sluice.Terminate()
		select {
		case <-s.Sluice.Done():
		case <-time.After(lab.Timeout):
			t.Fatal("an open page holds the end up")
		}
		b.until("the loss to show", "document.querySelector('#connection.lost')")
	})
}

// With 512 endpoints the page stays small enough to read.
func TestManyEndpoints(t *testing.T) {
	b := open(t)
	s := newStage(t, 3, 509)
	stop := s.traffic(t, 100)
	b.look(1400, 900, "light")
	b.visit("http://" + s.host + "/ui/")
	b.until("load in the grid", "document.querySelectorAll('#grid .cell.l1, #grid .cell.l2, #grid .cell.l3, #grid .cell.l4, #grid .cell.l5, #grid .cell.l6, #grid .cell.l7, #grid .cell.l8').length > 10")
	if cells, rows := eval[int](b, "document.querySelectorAll('#grid a').length"), eval[int](b, "document.querySelectorAll('#endpoints tr').length"); cells != 512 || rows != 24 {
		t.Errorf("%d cells, %d rows", cells, rows)
	}
	if high := eval[int](b, "document.querySelector('#grid').offsetHeight"); high > 320 {
		t.Errorf("the grid is %d pixels high", high)
	}
	appearances(t, b, "many")
	eval[any](b, "document.querySelectorAll('#grid a')[300].click()")
	b.until("one endpoint to be found", "document.querySelectorAll('#endpoints tr').length === 1 && document.querySelector('#connection.live')")
	stop()
	b.healthy(s.host)
}
