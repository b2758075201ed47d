package calibrate

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestRedirectsAreNotFollowed: the key is for the endpoint alone.
func TestRedirectsAreNotFollowed(t *testing.T) {
	var asked atomic.Int64
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { asked.Add(1) }))
	defer other.Close()
	engine := httptest.NewServer(http.RedirectHandler(other.URL, http.StatusTemporaryRedirect))
	defer engine.Close()
	_, err := NewProber(t.Context(), ProbeOptions{
		Endpoint: engine.URL, API: APICompletions, Header: http.Header{"X-Api-Key": {"secret"}}, MaxRequests: 100, MaxTokens: 1 << 20,
		Timeout: 10 * time.Second, LongestPrompt: 4096, Typical: 1000,
	})
	if err == nil || !strings.Contains(err.Error(), "status 307") || asked.Load() != 0 {
		t.Errorf("%v, the other was asked %d times", err, asked.Load())
	}
}

// TestPromptsAreBounded whatever an engine says that it counted.
func TestPromptsAreBounded(t *testing.T) {
	var p Prober
	p.learn(1<<20, answer{prompt: 1})
	if p.perToken != mostPerToken {
		t.Errorf("%v words for a token", p.perToken)
	}
}
