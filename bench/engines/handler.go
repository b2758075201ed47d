package engines

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/sluice-epp/sluice/bench/chat"
)

// defaultChunks is the number of chunks of an answer until SetChunks.
const defaultChunks = 3

// modelName is the one model that is served.
const modelName = "meta-llama/Llama-3.1-8B-Instruct"

// usage is what an answer says of its prompt, in tokens.
type usage struct{ prompt, cached int }

func sum(body []byte) uint64 { return xxh3.Hash(body) }

// SetChunks sets the number of chunks of the answers to come.
func (p *Pool) SetChunks(n int) {
	chunks := chat.Answer(n, 0)
	events := chunks[:n-1]
	p.answer.Store(&events)
}

func (p *Pool) handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", p.metrics)
	mux.HandleFunc("POST /v1/chat/completions", p.chat)
	mux.HandleFunc("POST /v1/chat/completions/render", p.render)
	mux.HandleFunc("GET /kv_event_sources", p.eventSources)
	mux.HandleFunc("GET /health", func(http.ResponseWriter, *http.Request) {})
	fixed := func(text string) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, text) // the reader may have gone
		}
	}
	mux.HandleFunc("GET /version", fixed(`{"version":"0.33.0"}`))
	mux.HandleFunc("GET /v1/models", fixed(`{"object":"list","data":[{"id":"`+modelName+`","object":"model","owned_by":"vllm","max_model_len":1048576}]}`))
	// What sglang-router asks of a worker before it sends requests there.
	info := fixed(`{"model_path":"` + modelName + `","served_model_name":"` + modelName + `","model_id":"` + modelName + `","version":"0.5.0"}`)
	for _, path := range []string{"/server_info", "/get_server_info", "/model_info", "/get_model_info"} {
		mux.HandleFunc("GET "+path, info)
	}
	return mux
}

func (p *Pool) metrics(w http.ResponseWriter, _ *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(p.pages[p.read.Add(1)%2]) // the reader may have gone
}

// buffers hold the bodies of requests.
var buffers = sync.Pool{New: func() any { return new(bytes.Buffer) }}

// body reads a request's body; done gives its memory back.
func body(r *http.Request) (b []byte, done func(), err error) {
	buffer, _ := buffers.Get().(*bytes.Buffer)
	buffer.Reset()
	_, err = buffer.ReadFrom(r.Body)
	return buffer.Bytes(), func() { buffers.Put(buffer) }, err
}

// chat streams an answer, each chunk written by itself.
func (p *Pool) chat(w http.ResponseWriter, r *http.Request) {
	b, done, err := body(r)
	defer done()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	u, known := p.prompts[sum(b)]
	p.answered.Add(1)
	if !known {
		p.strays.Add(1)
		u = usageOf(b)
	}
	w.Header().Set("Content-Type", "text/event-stream; charset=utf-8")
	flusher, _ := w.(http.Flusher)
	events := *p.answer.Load()
	for _, c := range events {
		if _, err := w.Write(c); err != nil {
			return // the client has gone
		}
		flusher.Flush()
	}
	_, _ = w.Write(chat.Last(len(events)+1, u.prompt, u.cached)) // as above
}

// render answers with the prompt's tokens, as vLLM's render route does.
func (p *Pool) render(w http.ResponseWriter, r *http.Request) {
	b, done, err := body(r)
	defer done()
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	out := fmt.Appendf(nil, `{"request_id":"render-%d","token_ids":[`, time.Now().UnixNano())
	for i, t := range Tokens(b) {
		if i > 0 {
			out = append(out, ',')
		}
		out = strconv.AppendUint(out, uint64(t), 10)
	}
	_, _ = w.Write(append(out, `]}`...)) // the reader may have gone
}

// eventSources tells where the engine that was asked publishes.
func (p *Pool) eventSources(w http.ResponseWriter, r *http.Request) {
	address, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	if !ok || len(p.sources) == 0 {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = io.WriteString(w, p.sources[p.byAddress[address.String()]].describe()) // the reader may have gone
}
