// Package sample holds what predictors of latency are judged by: one row a request, with what was known at its pick, what the
// embedded model predicted then, and what came of it. Files of rows are JSON lines.
package sample

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
)

// Row is one request that was served to its end. Times are in ms since the run began.
type Row struct {
	// PickMs, FirstMs and EndMs are when the endpoint was picked, and when its first and last tokens came.
	PickMs  float64 `json:"pick_ms"`
	FirstMs float64 `json:"first_ms"`
	EndMs   float64 `json:"end_ms"`
	// Endpoint is the number of the endpoint.
	Endpoint int `json:"endpoint"`

	// What llm-d's router sends its predictor at the pick, by the names that it has there. Of the endpoint's metrics page, as old as
	// the last reading: the used share of the KV cache, 0 to 1, and the requests that wait.
	KVCachePercentage float64 `json:"kv_cache_percentage"`
	NumRequestWaiting float64 `json:"num_request_waiting"`
	// Of the router's own ledger, without this request: requests in flight, and uncached prompt tokens before their first token. The
	// router puts the first in the place of the page's running requests, and always sends 0 for tokens in decode.
	NumRequestRunning     float64 `json:"num_request_running"`
	PrefillTokensInFlight float64 `json:"prefill_tokens_in_flight"`
	DecodeTokensInFlight  float64 `json:"decode_tokens_in_flight"`
	// Of the request: its length in tokens, and the share of it that the endpoint's cache holds, 0 to 1.
	InputTokenLength float64 `json:"input_token_length"`
	PrefixCacheScore float64 `json:"prefix_cache_score"`

	// What a router can know besides: the request's uncached tokens, the requests past their first token, and how long ago the
	// endpoint last streamed anything, in ms; -1 where that is not known.
	UncachedTokens float64 `json:"uncached_tokens"`
	Decoding       float64 `json:"decoding"`
	SinceChunkMs   float64 `json:"since_chunk_ms"`

	// ActualTTFTMs is the time from the pick to the first token, ActualTPOTMs that per token after it, in ms; 0 for an answer of one.
	ActualTTFTMs float64 `json:"actual_ttft_ms"`
	ActualTPOTMs float64 `json:"actual_tpot_ms"`

	// What the embedded model said at the pick, in ms: medians and 90th percentiles; 0 where it said nothing. Confidence is 0 to 1.
	PredictedTTFTMs    float64 `json:"predicted_ttft_ms"`
	PredictedTTFTP90Ms float64 `json:"predicted_ttft_p90_ms"`
	PredictedTPOTMs    float64 `json:"predicted_tpot_ms"`
	PredictedTPOTP90Ms float64 `json:"predicted_tpot_p90_ms"`
	Confidence         float64 `json:"confidence"`
}

// MaxRows is how many rows a file may have.
const MaxRows = 1_000_000

// validate reports what cannot be in a row.
func (r *Row) validate() error {
	switch {
	case !(r.PickMs >= 0) || !(r.FirstMs >= r.PickMs) || !(r.EndMs >= r.FirstMs) || math.IsInf(r.EndMs, 1):
		return fmt.Errorf("pick_ms, first_ms, end_ms: want 0 <= pick <= first <= end, got %v, %v, %v", r.PickMs, r.FirstMs, r.EndMs)
	case !(r.ActualTTFTMs > 0) || math.IsInf(r.ActualTTFTMs, 1):
		return fmt.Errorf("actual_ttft_ms: must be > 0, got %v", r.ActualTTFTMs)
	case !(r.ActualTPOTMs >= 0) || math.IsInf(r.ActualTPOTMs, 1):
		return fmt.Errorf("actual_tpot_ms: must be >= 0, got %v", r.ActualTPOTMs)
	case r.Endpoint < 0:
		return fmt.Errorf("endpoint: must be >= 0, got %d", r.Endpoint)
	}
	return nil
}

// Write writes rows to a file, which appears whole or not at all. Its folder is made.
func Write(path string, rows []Row) error {
	if len(rows) == 0 {
		return fmt.Errorf("%s: no row to write", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(path), filepath.Base(path)+".*")
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	encoder := json.NewEncoder(w)
	for i := range rows {
		if err = rows[i].validate(); err != nil {
			err = fmt.Errorf("row %d: %w", i+1, err)
		} else {
			err = encoder.Encode(&rows[i])
		}
		if err != nil {
			break
		}
	}
	if err = errors.Join(err, w.Flush(), f.Close()); err == nil {
		err = os.Rename(f.Name(), path)
	}
	if err != nil {
		return errors.Join(fmt.Errorf("%s: %w", path, err), os.Remove(f.Name()))
	}
	return nil
}

// Open reads a file of rows, in the order of their picks. An error names the file and the row.
func Open(path string) ([]Row, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	rows, err := Read(f)
	if err = errors.Join(err, f.Close()); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return rows, nil
}

// Read is Open for what is open already.
func Read(r io.Reader) ([]Row, error) {
	var rows []Row
	decoder := json.NewDecoder(bufio.NewReader(r))
	decoder.DisallowUnknownFields()
	for {
		var row Row
		err := decoder.Decode(&row)
		if errors.Is(err, io.EOF) {
			break
		}
		if err == nil {
			err = row.validate()
		}
		if n := len(rows); err == nil && n > 0 && row.PickMs < rows[n-1].PickMs {
			err = fmt.Errorf("pick_ms: %v comes after %v", row.PickMs, rows[n-1].PickMs)
		}
		if err != nil {
			return nil, fmt.Errorf("row %d: %w", len(rows)+1, err)
		}
		if rows = append(rows, row); len(rows) > MaxRows {
			return nil, fmt.Errorf("has more than %d rows", MaxRows)
		}
	}
	if len(rows) == 0 {
		return nil, errors.New("has no rows")
	}
	return rows, nil
}
