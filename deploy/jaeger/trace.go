package jaeger

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Span is one span of a trace.
type Span struct {
	// ID is its own, Parent that of the span that it hangs below; empty for none.
	ID, Parent string
	// Service is who made it, Name its name.
	Service, Name string
	// Start is when it began, Duration how long it took; both in whole microseconds.
	Start    time.Time
	Duration time.Duration
	// Tags are its attributes. Numbers are float64.
	Tags map[string]any
}

// maxAnswer bounds an answer of the API, in bytes.
const maxAnswer = 16 << 20

func (a *API) get(ctx context.Context, path string) (body []byte, status int, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+path, http.NoBody)
	if err != nil {
		return nil, 0, fmt.Errorf("jaeger: %w", err)
	}
	res, err := a.Client.Do(req)
	if err != nil {
		return nil, 0, fmt.Errorf("jaeger: %w", err)
	}
	defer func() { _ = res.Body.Close() }()
	if body, err = io.ReadAll(io.LimitReader(res.Body, maxAnswer)); err != nil {
		return nil, 0, fmt.Errorf("jaeger: %s: %w", path, err)
	}
	return body, res.StatusCode, nil
}

// Trace reads what has come of a trace by now; there may be none yet.
func (a *API) Trace(ctx context.Context, traceID string) ([]Span, error) {
	path := "/api/traces/" + traceID
	body, status, err := a.get(ctx, path)
	switch {
	case err != nil:
		return nil, err
	case status == http.StatusNotFound:
		return nil, nil
	case status != http.StatusOK:
		return nil, fmt.Errorf("jaeger: %s: status %d: %.200s", path, status, body)
	}
	spans, err := Parse(body)
	if err != nil {
		return nil, fmt.Errorf("jaeger: %s: %w", path, err)
	}
	return spans, nil
}

// Parse reads the spans of an answer of /api/traces.
func Parse(answer []byte) ([]Span, error) {
	var parsed struct {
		Data []struct {
			Spans []struct {
				SpanID        string `json:"spanID"`
				OperationName string `json:"operationName"`
				References    []struct {
					RefType string `json:"refType"`
					SpanID  string `json:"spanID"`
				} `json:"references"`
				StartTime int64 `json:"startTime"`
				Duration  int64 `json:"duration"`
				Tags      []struct {
					Key   string `json:"key"`
					Value any    `json:"value"`
				} `json:"tags"`
				ProcessID string `json:"processID"`
			} `json:"spans"`
			Processes map[string]struct {
				ServiceName string `json:"serviceName"`
			} `json:"processes"`
		} `json:"data"`
	}
	if err := json.Unmarshal(answer, &parsed); err != nil {
		return nil, fmt.Errorf("reading a trace: %w", err)
	}
	var spans []Span
	for _, trace := range parsed.Data {
		for _, from := range trace.Spans {
			to := Span{
				ID: from.SpanID, Name: from.OperationName, Service: trace.Processes[from.ProcessID].ServiceName,
				Start: time.UnixMicro(from.StartTime), Duration: time.Duration(from.Duration) * time.Microsecond,
				Tags: make(map[string]any, len(from.Tags)),
			}
			for _, r := range from.References {
				if r.RefType == "CHILD_OF" {
					to.Parent = r.SpanID
				}
			}
			for _, tag := range from.Tags {
				to.Tags[tag.Key] = tag.Value
			}
			spans = append(spans, to)
		}
	}
	return spans, nil
}
