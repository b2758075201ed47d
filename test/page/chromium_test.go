package page

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

// browser is a headless Chromium, driven by its DevTools protocol over a pipe.
type browser struct {
	t  *testing.T
	to *os.File

	mu      sync.Mutex
	last    int
	waiting map[int]chan answer
	session string
	faults  []string // what the console and the page complained of
	asked   []string // the addresses that were fetched
	ignore  bool
}

// answer is a message of the browser.
type answer struct {
	ID     int             `json:"id"`
	Method string          `json:"method"`
	Params json.RawMessage `json:"params"`
	Result json.RawMessage `json:"result"`
	Error  *struct {
		Message string `json:"message"`
	} `json:"error"`
}

const patience = 60 * time.Second

// open starts a browser with one empty tab. It ends with the test.
func open(t *testing.T) *browser {
	t.Helper()
	path := os.Getenv("SLUICE_CHROMIUM")
	if path == "" {
		if os.Getenv("SLUICE_CHROMIUM_REQUIRED") != "" {
			t.Fatal("SLUICE_CHROMIUM is not set")
		}
		t.Skip("SLUICE_CHROMIUM is not set: make test-page sets it")
	}
	fromUs, to := pipe(t)
	from, toUs := pipe(t)
	profile := t.TempDir()
	cmd := exec.CommandContext(t.Context(), path, "--headless=new", "--no-sandbox", "--remote-debugging-pipe", "--user-data-dir="+profile,
		"--disable-gpu", "--disable-dev-shm-usage", "--disable-background-networking", "--disable-component-update", "--disable-sync",
		"--no-first-run", "--no-default-browser-check", "--no-proxy-server", "--hide-scrollbars", "--force-device-scale-factor=1", "about:blank")
	cmd.Env = append(os.Environ(), "HOME="+profile)
	cmd.ExtraFiles = []*os.File{fromUs, toUs}
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_, _ = fromUs.Close(), toUs.Close()
	b := &browser{t: t, to: to, waiting: map[int]chan answer{}}
	read := make(chan struct{})
	go func() { defer close(read); b.read(from) }()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_, _ = to.Close(), from.Close()
		<-read
		if t.Failed() {
			t.Logf("the end of what chromium wrote:\n%s", said.Bytes()[max(0, said.Len()-1000):])
		}
	})
	var tab struct{ TargetID string }
	b.call("Target.createTarget", map[string]any{"url": "about:blank"}, &tab)
	var attached struct{ SessionID string }
	b.call("Target.attachToTarget", map[string]any{"targetId": tab.TargetID, "flatten": true}, &attached)
	b.session = attached.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log", "Network"} {
		b.call(domain+".enable", nil, nil)
	}
	return b
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	return r, w
}

// read hands out answers and notes what happens.
func (b *browser) read(from *os.File) {
	in := bufio.NewReaderSize(from, 1<<20)
	for {
		raw, err := in.ReadBytes(0)
		if err != nil {
			return
		}
		var a answer
		if err := json.Unmarshal(raw[:len(raw)-1], &a); err != nil {
			continue
		}
		b.mu.Lock()
		if c := b.waiting[a.ID]; c != nil && a.ID != 0 {
			delete(b.waiting, a.ID)
			c <- a
		} else {
			b.note(a)
		}
		b.mu.Unlock()
	}
}

func (b *browser) note(a answer) {
	switch a.Method {
	case "Network.requestWillBeSent":
		var p struct{ Request struct{ URL string } }
		if json.Unmarshal(a.Params, &p) == nil {
			b.asked = append(b.asked, p.Request.URL)
		}
	case "Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled":
		if !b.ignore {
			b.faults = append(b.faults, a.Method+": "+string(a.Params))
		}
	}
}

// call calls a method and reads its result.
func (b *browser) call(method string, params map[string]any, result any) {
	b.t.Helper()
	if err := b.try(method, params, result); err != nil {
		b.t.Fatal(err)
	}
}

func (b *browser) try(method string, params map[string]any, result any) error {
	b.mu.Lock()
	b.last++
	id := b.last
	c := make(chan answer, 1)
	b.waiting[id] = c
	b.mu.Unlock()
	message := map[string]any{"id": id, "method": method}
	if params != nil {
		message["params"] = params
	}
	if b.session != "" {
		message["sessionId"] = b.session
	}
	raw, err := json.Marshal(message)
	if err != nil {
		return err
	}
	if _, err := b.to.Write(append(raw, 0)); err != nil {
		return fmt.Errorf("%s: %w", method, err)
	}
	select {
	case a := <-c:
		if a.Error != nil {
			return fmt.Errorf("%s: %s", method, a.Error.Message)
		}
		if result == nil {
			return nil
		}
		if err := json.Unmarshal(a.Result, result); err != nil {
			return fmt.Errorf("%s: %w in %.300s", method, err, a.Result)
		}
		return nil
	case <-time.After(patience):
		return fmt.Errorf("%s: no answer", method)
	}
}

// visit goes to an address and waits until the page is there.
func (b *browser) visit(address string) {
	b.t.Helper()
	var gone struct{ ErrorText string }
	b.call("Page.navigate", map[string]any{"url": address}, &gone)
	if gone.ErrorText != "" {
		b.t.Fatalf("%s: %s", address, gone.ErrorText)
	}
	b.until("the page to be loaded", "document.readyState === 'complete' && location.href !== 'about:blank'")
}

// eval evaluates an expression in the page.
func eval[T any](b *browser, expression string) T {
	b.t.Helper()
	var r struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails json.RawMessage
	}
	b.call("Runtime.evaluate", map[string]any{"expression": expression, "returnByValue": true, "awaitPromise": true}, &r)
	if r.ExceptionDetails != nil {
		b.t.Fatalf("%s: %s", expression, r.ExceptionDetails)
	}
	var v T
	if r.Result.Value != nil {
		if err := json.Unmarshal(r.Result.Value, &v); err != nil {
			b.t.Fatalf("%s: %v", expression, err)
		}
	}
	return v
}

// until waits for an expression to be true. A page that is about to be another one is waited for.
func (b *browser) until(what, expression string) {
	b.t.Helper()
	params := map[string]any{"expression": "(() => { try { return Boolean(" + expression + ") } catch { return false } })()", "returnByValue": true}
	for deadline := time.Now().Add(patience); ; time.Sleep(50 * time.Millisecond) {
		var r struct{ Result struct{ Value bool } }
		if err := b.try("Runtime.evaluate", params, &r); err == nil && r.Result.Value {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("waited in vain for %s: %s", what, eval[string](b, "document.body.innerText.slice(0, 2000)"))
		}
	}
}

// look makes the window a size and the colours light or dark.
func (b *browser) look(width, height int, scheme string) {
	b.t.Helper()
	b.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 500}, nil)
	b.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// screenshot returns the page as a PNG, the whole of it or what the window shows.
func (b *browser) screenshot(whole bool) []byte {
	b.t.Helper()
	params := map[string]any{"format": "png"}
	if whole {
		var m struct {
			CSSContentSize struct{ Width, Height float64 }
		}
		b.call("Page.getLayoutMetrics", nil, &m)
		params["captureBeyondViewport"] = true
		params["clip"] = map[string]any{"x": 0, "y": 0, "width": m.CSSContentSize.Width, "height": min(m.CSSContentSize.Height, 6000), "scale": 1}
	}
	var r struct{ Data string }
	b.call("Page.captureScreenshot", params, &r)
	png, err := base64.StdEncoding.DecodeString(r.Data)
	if err != nil {
		b.t.Fatal(err)
	}
	return png
}

// healthy fails the test where the page complained, or anything was fetched from elsewhere.
func (b *browser) healthy(host string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, f := range b.faults {
		b.t.Errorf("the console says: %s", f)
	}
	if len(b.asked) == 0 {
		b.t.Error("nothing was fetched")
	}
	for _, a := range b.asked {
		if u, err := url.Parse(a); err != nil || u.Host != host && u.Scheme != "about" {
			b.t.Errorf("%s was fetched", a)
		}
	}
	b.faults = nil
}

// quietly runs f and does not mind what the console says of it.
func (b *browser) quietly(f func()) {
	b.set(true)
	defer b.set(false)
	f()
}

func (b *browser) set(ignore bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ignore = ignore
}

// text is the text of the first element that a selector finds.
func (b *browser) text(selector string) string {
	b.t.Helper()
	return strings.TrimSpace(eval[string](b, fmt.Sprintf("(document.querySelector(%q) || {}).innerText || ''", selector)))
}
