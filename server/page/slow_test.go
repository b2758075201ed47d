package page

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"
)

// TestSlowForms: who sends a form and then nothing of it takes the place of others for a while only.
func TestSlowForms(t *testing.T) {
	s := newStage(t, 3)
	s.page.patience = 100 * time.Millisecond
	server := httptest.NewServer(s.page)
	defer server.Close()
	address := server.Listener.Addr().String()
	var slow []net.Conn
	for range atWork {
		c, err := net.Dial("tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		if _, err := fmt.Fprintf(c, "POST /ui/try HTTP/1.1\r\nHost: %s\r\nContent-Type: application/x-www-form-urlencoded\r\nContent-Length: 1000\r\n\r\nbody=", address); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	for len(s.page.reading) < atWork {
		time.Sleep(time.Millisecond)
	}
	form := url.Values{"path": {"/v1/completions"}, "body": {`{"model":"m","prompt":"hello"}`}}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/ui/try", strings.NewReader(form.Encode()))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	res, err := server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	if text, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK {
		t.Errorf("behind those who send nothing: %d %s: %v", res.StatusCode, text, err)
	}
	for _, c := range slow {
		if text, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(text), "HTTP/1.1 400 ") {
			t.Errorf("who sends nothing gets %.20s: %v", text, err)
		}
	}
}
