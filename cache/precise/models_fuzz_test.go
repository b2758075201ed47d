package precise

import (
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
)

// says answers every question in the same way.
type says struct{ body string }

func (s *says) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{}, Body: io.NopCloser(strings.NewReader(s.body)), Request: r,
	}, nil
}

// FuzzModels lets an engine list whatever it likes: what is read is what the JSON says, within its bounds, and the same
// when it is written in another way.
func FuzzModels(f *testing.F) {
	for _, body := range []string{
		`{"object":"list","data":[{"id":"qwen","object":"model","parent":null,"max_model_len":4096},{"id":"sql","parent":"qwen"}]}`,
		`{"data":[{"id":"a"},{"id":"a"},{"id":""},{}]}`, `{"data":[{"id":"` + strings.Repeat("x", maxNameBytes) + `"},{"id":"` + strings.Repeat("x", maxNameBytes+1) + `"}]}`,
		`{"data":[` + strings.Repeat(`{"id":"m"},`, maxBases) + `{"id":"one too many"}]}`, `{"data":null}`, `{"data":{}}`, `{"data":[{"id":5}]}`,
		`{"data":[{"id":"a","parent":5}]}`, `{"data":[{"ID":"a","id":"b","id":"c"}]}`, "{\"data\":[{\"id\":\"\xff\"}]}", `[]`, `{}`, ``, `{"data":[]}x`,
	} {
		f.Add(body)
	}
	transport := &says{}
	h, err := firstHub(&Producer{params: defaultParameters()}, nil, Options{
		Transport: transport, Logger: slog.New(slog.DiscardHandler), Now: func() time.Duration { return 0 },
	})
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		if err := h.leave(); err != nil {
			f.Error(err)
		}
	})
	e := &scheduling.Endpoint{EndpointSpec: scheduling.EndpointSpec{Address: "10.0.0.5:8000"}}
	f.Fuzz(func(t *testing.T, body string) {
		transport.body = body
		bases, err := h.fetchModels(t.Context(), e)
		if err != nil {
			if bases != nil {
				t.Fatalf("%q is refused, and lists %q", body, bases)
			}
			return
		}
		var page map[string]any
		exact := json.NewDecoder(strings.NewReader(body))
		exact.UseNumber()
		if err := exact.Decode(&page); err != nil {
			t.Fatalf("%q is no JSON and lists %q: %v", body, bases, err)
		}
		if want := basesOf(page); !slices.Equal(bases, want) {
			t.Fatalf("%q lists %q, want %q", body, bases, want)
		}
		again, err := json.Marshal(page)
		if err != nil {
			t.Fatal(err)
		}
		transport.body = string(again)
		if same, err := h.fetchModels(t.Context(), e); err != nil || !slices.Equal(bases, same) {
			t.Fatalf("%q lists %q, and %q lists %q, %v", body, bases, again, same, err)
		}
	})
}

// basesOf are the names on a page that have no parent.
func basesOf(page map[string]any) (bases []string) {
	data, _ := page["data"].([]any)
	for _, entry := range data {
		model, _ := entry.(map[string]any)
		id, _ := model["id"].(string)
		if model["parent"] == nil && len(id) <= 512 && len(bases) < 64 {
			bases = append(bases, id)
		}
	}
	return bases
}
