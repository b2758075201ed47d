package subject

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math"
	"strconv"
)

// Heap counts what a process has allocated since its start.
type Heap struct {
	// Objects is the number of allocations.
	Objects float64
	// Bytes is their size.
	Bytes float64
}

// Minus is what was allocated since before.
func (h Heap) Minus(before Heap) Heap {
	return Heap{h.Objects - before.Objects, h.Bytes - before.Bytes}
}

// The Go runtime's counters on a metrics page.
const (
	objectsMetric = "go_memstats_mallocs_total"
	bytesMetric   = "go_memstats_alloc_bytes_total"
)

// Heap reads the counters off the metrics page. Making the page allocates too, see PageHeap.
func (p *Process) Heap(ctx context.Context) (Heap, error) {
	page, err := p.Metrics(ctx)
	if err != nil {
		return Heap{}, err
	}
	h, err := parseHeap(page)
	if err != nil {
		return Heap{}, fmt.Errorf("metrics of %s: %w", p.name, err)
	}
	return h, nil
}

// Metrics is the metrics page of the admin port.
func (p *Process) Metrics(ctx context.Context) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var page bytes.Buffer
	if err := p.get(ctx, "/metrics", &page); err != nil {
		return nil, fmt.Errorf("metrics of %s: %w", p.name, err)
	}
	return page.Bytes(), nil
}

// Sum adds up the samples of a metric, on a page in the text format, that have all these labels, each written name="value".
// Without a sample it is 0.
func Sum(page []byte, name string, labels ...string) (sum float64) {
samples:
	for line := range bytes.Lines(page) {
		rest, ok := bytes.CutPrefix(line, []byte(name))
		if !ok || len(rest) == 0 || rest[0] != ' ' && rest[0] != '{' {
			continue
		}
		at := bytes.LastIndexByte(bytes.TrimRight(rest, "\n"), ' ')
		for _, l := range labels {
			if !bytes.Contains(rest[:at], []byte(l)) {
				continue samples
			}
		}
		if v, err := strconv.ParseFloat(string(bytes.TrimSpace(rest[at:])), 64); err == nil {
			sum += v
		}
	}
	return sum
}

// PageHeap is what making one metrics page allocates: the least of a few times, since the first ones also fill pools.
func (p *Process) PageHeap(ctx context.Context) (Heap, error) {
	least := Heap{Objects: math.Inf(1), Bytes: math.Inf(1)}
	before, err := p.Heap(ctx)
	for i := 0; i < 5 && err == nil; i++ {
		var after Heap
		if after, err = p.Heap(ctx); err == nil {
			page := after.Minus(before)
			least = Heap{min(least.Objects, page.Objects), min(least.Bytes, page.Bytes)}
			before = after
		}
	}
	return least, err
}

func parseHeap(page []byte) (h Heap, err error) {
	for name, to := range map[string]*float64{objectsMetric: &h.Objects, bytesMetric: &h.Bytes} {
		if *to, err = sample(page, name); err != nil {
			return Heap{}, err
		}
	}
	return h, nil
}

// sample finds a metric without labels on a page in the text format.
func sample(page []byte, name string) (float64, error) {
	for line := range bytes.Lines(page) {
		value, ok := bytes.CutPrefix(line, []byte(name+" "))
		if !ok {
			continue
		}
		v, err := strconv.ParseFloat(string(bytes.TrimSpace(value)), 64)
		if err != nil {
			return 0, fmt.Errorf("%s: %w", name, err)
		}
		return v, nil
	}
	return 0, fmt.Errorf("%s: %w", name, io.ErrUnexpectedEOF)
}
