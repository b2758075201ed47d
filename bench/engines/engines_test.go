package engines_test

import (
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/bench/engines"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestEveryEngineAnswersUntilClosed(t *testing.T) {
	p, err := engines.Start(5)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	seen := map[string]bool{}
	for _, address := range p.Addresses() {
		seen[address] = true
		answer, err := client.Get("http://" + address + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		page, err := io.ReadAll(answer.Body)
		answer.Body.Close()
		if err != nil || !strings.Contains(string(page), "vllm:cache_config_info{") {
			t.Errorf("%s: %v, page %q", address, err, page)
		}
	}
	if len(seen) != 5 {
		t.Errorf("%d addresses, want 5", len(seen))
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	for address := range seen {
		if conn, err := net.Dial("tcp", address); err == nil {
			conn.Close()
			t.Errorf("%s still listens", address)
		}
	}
}
