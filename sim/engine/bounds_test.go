package engine

import (
	"context"
	"errors"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/sluice-epp/sluice/sim"
)

// Answers for which there is no place, in the queue or in memory, are not made up.
func TestAnswersAreBounded(t *testing.T) {
	s := startServer(t, Config{Speed: 1, Params: sim.Params{MaxWaiting: 2, MaxSeqs: 1}})
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 10 {
		if a := post(t, s, "/v1/completions", `{"prompt":[1,2],"n":1024,"max_tokens":32000}`); a.status != http.StatusServiceUnavailable {
			t.Fatalf("answer %d %s", a.status, a.body)
		}
	}
	if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 64<<20 {
		t.Errorf("%d MB for answers that were refused", (after.TotalAlloc-before.TotalAlloc)>>20)
	}
	l := s.present().loop
	if err := l.do(func() { l.room = 100 }); err != nil {
		t.Fatal(err)
	}
	if a := post(t, s, "/v1/completions", `{"prompt":[1,2],"n":2,"max_tokens":51}`); a.status != http.StatusServiceUnavailable ||
		!strings.Contains(string(a.body), "102 tokens of answers") {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	held := func() float64 { return scrape(t, s)["sim:answer_tokens{engine=0,model_name=sim}"] }
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	left := make(chan error, 1)
	go func() { left <- abandoned(ctx, s, `{"prompt":[1,2],"n":2,"max_tokens":50}`) }()
	eventually(t, "it is under way", func() bool { return held() == 100 })
	if a := post(t, s, "/v1/completions", `{"prompt":[1,2],"max_tokens":1}`); a.status != http.StatusServiceUnavailable {
		t.Errorf("answer %d %s", a.status, a.body)
	}
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	eventually(t, "it is gone", func() bool { return held() == 0 })
	if a := post(t, s, "/v1/completions", `{"prompt":[1,2],"n":2,"max_tokens":2}`); a.status != http.StatusOK || held() != 0 {
		t.Errorf("answer %d %s, %v tokens held", a.status, a.body, held())
	}
}

// abandoned posts a completion that is given up when ctx ends.
func abandoned(ctx context.Context, s *Server, body string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL()+"/v1/completions", strings.NewReader(body))
	if err != nil {
		return err
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	return res.Body.Close()
}
