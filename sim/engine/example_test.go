package engine_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/sluice-epp/sluice/sim"
	"github.com/sluice-epp/sluice/sim/engine"
)

// A server in the same process, ten times faster than the engine that it models.
func Example() {
	s, err := engine.New(engine.Config{
		Name: "engine-0", Models: []string{"demo"}, Adapters: []string{"sql"}, Speed: 10,
		Params: sim.Params{NumBlocks: 8192},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := s.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer s.Close()
	res, err := http.Post(s.URL()+"/v1/chat/completions", "application/json",
		strings.NewReader(`{"model":"demo","max_tokens":3,"messages":[{"role":"user","content":"Hello!"}]}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	fmt.Println(res.Status, res.Header.Get("X-Sim-Endpoint"), strings.Contains(string(body), `"completion_tokens":3`), err)
	// Output: 200 OK engine-0 true <nil>
}
