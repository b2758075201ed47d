package engines_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/sluice-epp/sluice/bench/chat"
	"github.com/sluice-epp/sluice/bench/engines"
	"github.com/sluice-epp/sluice/cache/kvevents/wire"
	"github.com/sluice-epp/sluice/cache/kvevents/zmtp"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var client = &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}

func start(t *testing.T, o engines.Options) *engines.Pool {
	t.Helper()
	p, err := engines.Start(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func get(t *testing.T, url string) string {
	t.Helper()
	return read(t)(client.Get(url))
}

func post(t *testing.T, url string, body []byte) string {
	t.Helper()
	return read(t)(client.Post(url, "application/json", bytes.NewReader(body)))
}

func read(t *testing.T) func(*http.Response, error) string {
	return func(answer *http.Response, err error) string {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		if err != nil || answer.StatusCode != http.StatusOK {
			t.Fatalf("%s: %v", answer.Status, err)
		}
		return string(text)
	}
}

func prompts(t *testing.T, n, groups, size int) [][]byte {
	t.Helper()
	bodies, err := chat.Set{Bodies: n, Groups: groups, Size: size}.Make()
	if err != nil {
		t.Fatal(err)
	}
	return bodies
}

func TestEveryEngineAnswersUntilClosed(t *testing.T) {
	p, err := engines.Start(engines.Options{Engines: 5})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, address := range p.Addresses() {
		seen[address] = true
		if page := get(t, "http://"+address+"/metrics"); !strings.Contains(page, "vllm:cache_config_info{") {
			t.Errorf("%s: page %q", address, page)
		}
		if models := get(t, "http://"+address+"/v1/models"); !strings.Contains(models, `"id":"meta-llama/`) {
			t.Errorf("%s: models %q", address, models)
		}
	}
	if len(seen) != 5 || p.PagesRead() != 5 {
		t.Errorf("%d addresses, %d pages read, want 5", len(seen), p.PagesRead())
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

func TestRealPage(t *testing.T) {
	p := start(t, engines.Options{Engines: 1, RealPage: true})
	first, second := get(t, "http://"+p.Addresses()[0]+"/metrics"), get(t, "http://"+p.Addresses()[0]+"/metrics")
	if len(first) != p.PageBytes() || len(first) < 50_000 || first == second {
		t.Errorf("%d bytes of %d; two readings are the same: %t", len(first), p.PageBytes(), first == second)
	}
	for _, name := range []string{"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"} {
		if !strings.Contains(first, "\n"+name+"{") {
			t.Errorf("the page has no %s", name)
		}
	}
}

func TestChat(t *testing.T) {
	bodies := prompts(t, 2, 1, 4<<10)
	p := start(t, engines.Options{Engines: 1, Prompts: bodies})
	url := "http://" + p.Addresses()[0] + "/v1/chat/completions"
	for _, n := range []int{3, 10} {
		p.SetChunks(n)
		prompt, cached := engines.Usage(bodies[0])
		want := string(bytes.Join(chat.AnswerCached(n, prompt, cached), nil))
		if diff := cmp.Diff(want, post(t, url, bodies[0])); diff != "" {
			t.Errorf("%d chunks: %s", n, diff)
		}
	}
	if answer := post(t, url, append(bodies[1], ' ')); !strings.HasSuffix(answer, "[DONE]\n\n") {
		t.Errorf("another body: %q", answer)
	}
	if all, strays := p.Answered(); all != 3 || strays != 1 {
		t.Errorf("%d answered, of which %d strays, want 3 and 1", all, strays)
	}
}

func TestTokens(t *testing.T) {
	bodies := prompts(t, 3, 2, 4<<10)
	tokens := make([][]uint32, len(bodies))
	for i, b := range bodies {
		tokens[i] = engines.Tokens(b)
		if n := len(tokens[i]); n < 900 || n > 1024 {
			t.Errorf("body %d of 4 KiB has %d tokens", i, n)
		}
	}
	alike := func(a, b []uint32) (n int) {
		for n < min(len(a), len(b)) && a[n] == b[n] {
			n++
		}
		return n
	}
	// The half that bodies of a group share, less what comes before the messages; others begin with the same role only.
	if n := alike(tokens[0], tokens[2]); n < 450 || n > 520 {
		t.Errorf("a group's bodies share %d tokens", n)
	}
	if n := alike(tokens[0], tokens[1]); n >= engines.BlockTokens {
		t.Errorf("bodies of two groups share %d tokens", n)
	}
	// What is put around the messages does not change them.
	edited := append(bytes.TrimSuffix(slices.Clone(bodies[0]), []byte("}")), `,"mm_payload":"none"}`...)
	if diff := cmp.Diff(tokens[0], engines.Tokens(edited)); diff != "" {
		t.Errorf("with another field: %s", diff)
	}
	p := start(t, engines.Options{Engines: 1})
	var answer struct {
		Tokens []uint32 `json:"token_ids"`
	}
	rendered := post(t, "http://"+p.Addresses()[0]+"/v1/chat/completions/render", edited)
	if err := json.Unmarshal([]byte(rendered), &answer); err != nil || !slices.Equal(answer.Tokens, tokens[0]) {
		t.Errorf("rendered %d tokens, want %d: %v", len(answer.Tokens), len(tokens[0]), err)
	}
}

func TestUsage(t *testing.T) {
	for _, size := range []int{1 << 10, 16 << 10, 64 << 10} {
		body := prompts(t, 1, 1, size)[0]
		n := len(engines.Tokens(body))
		want := (n - 1) / engines.BlockTokens * engines.BlockTokens
		if n/engines.BlockTokens > engines.HeldBlocksOfAPrompt {
			want = -1
		}
		if prompt, cached := engines.Usage(body); prompt != n || cached != want {
			t.Errorf("%d bytes: %d tokens of which %d cached, want %d and %d", size, prompt, cached, n, want)
		}
	}
}

// What an engine publishes is what its group's prompts begin with, in order, live and in the replay.
func TestEvents(t *testing.T) {
	const groups = 2
	bodies := prompts(t, 4, groups, 20<<10)
	p := start(t, engines.Options{Engines: 3, Prompts: bodies, Groups: groups, Events: true})
	all := 0
	for i, address := range p.Addresses() {
		ports := sources(t, address)
		batch := replay(t, ports.replay)
		stored := check(t, batch)
		for b := i % groups; b < len(bodies); b += groups {
			tokens := engines.Tokens(bodies[b])[:engines.HeldBlocksOfAPrompt*engines.BlockTokens]
			if !stored[fmt.Sprint(tokens)] {
				t.Errorf("engine %d does not hold the beginning of prompt %d", i, b)
			}
		}
		all += len(stored)
		if c, err := zmtp.Dial(t.Context(), ports.live, zmtp.SUB, zmtp.Options{}); err != nil {
			t.Errorf("engine %d publishes nowhere: %v", i, err)
		} else if err := c.Close(); err != nil {
			t.Error(err)
		}
	}
	if all != p.HeldBlocks() {
		t.Errorf("%d blocks published, %d are said to be held", all, p.HeldBlocks())
	}
}

type ports struct{ live, replay string }

func sources(t *testing.T, address string) ports {
	t.Helper()
	var s map[string]struct {
		Endpoint string `json:"endpoint"`
		Replay   string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal([]byte(get(t, "http://"+address+"/kv_event_sources")), &s); err != nil {
		t.Fatal(err)
	}
	local := func(a string) string { return strings.Replace(a, "tcp://*", "127.0.0.1", 1) }
	return ports{local(s["0"].Endpoint), local(s["0"].Replay)}
}

// replay asks for everything and returns the one batch that there is.
func replay(t *testing.T, address string) *wire.Batch {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	c, err := zmtp.Dial(ctx, address, zmtp.DEALER, zmtp.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if err := c.Send(nil, make([]byte, 8)); err != nil {
		t.Fatal(err)
	}
	var batch *wire.Batch
	for want := range uint64(2) {
		frames, err := c.Receive()
		if err != nil {
			t.Fatal(err)
		}
		seq, payload, err := wire.ParseReply(frames)
		if want == 1 {
			want = wire.ReplayEnd
		}
		if err != nil || seq != want {
			t.Fatalf("reply %d, want %d: %v", seq, want, err)
		}
		if want == 0 {
			var d wire.Decoder
			if batch, err = d.Decode(bytes.Clone(payload)); err != nil {
				t.Fatal(err)
			}
		}
	}
	return batch
}

// check wants stores of blocks whose parents are there, and returns the prompts, from their beginning, that they make up.
func check(t *testing.T, b *wire.Batch) map[string]bool {
	t.Helper()
	upTo := map[uint64][]uint32{}
	whole := map[string]bool{}
	for _, e := range b.Events {
		if e.Kind != wire.Stored || e.BlockSize != engines.BlockTokens || len(e.Tokens) != len(e.Hashes)*e.BlockSize {
			t.Fatalf("%v of %d blocks of %d, with %d tokens", e.Kind, len(e.Hashes), e.BlockSize, len(e.Tokens))
		}
		var prompt []uint32
		if e.HasParent {
			if prompt = upTo[e.Parent]; prompt == nil {
				t.Fatalf("the parent %d was not stored before", e.Parent)
			}
		}
		for i, h := range e.Hashes {
			prompt = append(slices.Clip(prompt), e.Tokens[i*e.BlockSize:(i+1)*e.BlockSize]...)
			upTo[h] = prompt
			whole[fmt.Sprint(prompt)] = true
		}
	}
	return whole
}
