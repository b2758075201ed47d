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
	// maxBases is how many models one engine may list, and maxNameBytes how long a name may be: what is beyond is not taken.
	maxBases     = 64
	maxNameBytes = 512
)

// listModels asks a member's engine which models it serves that are no adapters, again and again until it says so or ctx,
// which the endpoint's going ends, is over.
func (h *hub) listModels(ctx context.Context, m *member) {
	for wait := firstModelsWait; ; wait = min(2*wait, maxModelsWait) {
		bases, err := h.fetchModels(ctx, m.endpoint)
		if err == nil {
			h.listed(m, bases)
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

// listed notes what a member's engine lists, for as long as the member is there.
func (h *hub) listed(m *member, bases []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.gone {
		m.bases = bases
		h.adapters.list(bases)
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
		if m.Parent == nil && len(bases) < maxBases && len(m.ID) <= maxNameBytes {
			bases = append(bases, m.ID)
		}
	}
	return bases, nil
}
