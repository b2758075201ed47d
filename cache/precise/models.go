package precise

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/go-json-experiment/json"

	"github.com/sluice-epp/sluice/scheduling"
)

const (
	modelsTimeout   = 5 * time.Second
	maxModelsBytes  = 4 << 20
	firstModelsWait = time.Second
	maxModelsWait   = time.Minute
)

// listModels asks an engine which models it serves that are no adapters, again and again until it says so or ctx, which
// the endpoint's going ends, is over.
func (h *hub) listModels(ctx context.Context, e *scheduling.Endpoint) {
	for wait := firstModelsWait; ; wait = min(2*wait, maxModelsWait) {
		bases, err := h.fetchModels(ctx, e)
		if err == nil {
			h.adapters.list(bases)
			return
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return
		}
	}
}

// fetchModels reads an engine's /v1/models: an adapter has a parent, a model has none.
func (h *hub) fetchModels(ctx context.Context, e *scheduling.Endpoint) (bases []string, err error) {
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+e.Address+"/v1/models", nil)
	if err != nil {
		return nil, err
	}
	res, err := h.client.Do(req)
	if err != nil {
		return nil, err
	}
	defer func() { _ = res.Body.Close() }() // it was read to its end or is of no use
	if res.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("status %d", res.StatusCode)
	}
	var list struct {
		Data []struct {
			ID     string  `json:"id"`
			Parent *string `json:"parent"`
		} `json:"data"`
	}
	if err := json.UnmarshalRead(io.LimitReader(res.Body, maxModelsBytes), &list); err != nil {
		return nil, err
	}
	for _, m := range list.Data {
		if m.Parent == nil {
			bases = append(bases, m.ID)
		}
	}
	return bases, nil
}
