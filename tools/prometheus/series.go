package main

import (
	"context"
	"time"

	"github.com/prometheus/prometheus/model/histogram"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/tsdb/chunkenc"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"github.com/prometheus/prometheus/util/annotations"
)

// series are those that a test gives; they are queried as a database would be.
type series []storage.Series

// add reads a series with its values, one an interval from time 0 on, in the notation of Prometheus' own tests.
func (s *series) add(description string, every time.Duration) error {
	of, values, err := promQL.ParseSeriesDesc(description)
	if err != nil {
		return err
	}
	var samples []chunks.Sample
	for i, v := range values {
		if !v.Omitted {
			samples = append(samples, sample{int64(i) * every.Milliseconds(), v.Value})
		}
	}
	*s = append(*s, storage.NewListSeries(of, samples))
	return nil
}

// sample is one value; times are in ms.
type sample struct {
	at    int64
	value float64
}

func (s sample) T() int64                                    { return s.at }
func (sample) ST() int64                                     { return 0 }
func (s sample) F() float64                                  { return s.value }
func (sample) H() *histogram.Histogram                       { return nil }
func (sample) FH() *histogram.FloatHistogram                 { return nil }
func (sample) Type() chunkenc.ValueType                      { return chunkenc.ValFloat }
func (s sample) Copy() chunks.Sample                         { return s }
func (s series) Close() error                                { return nil }
func (s series) Querier(_, _ int64) (storage.Querier, error) { return s, nil }

// LabelValues and LabelNames are of no use for evaluating expressions.
func (series) LabelValues(context.Context, string, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// LabelNames is described with LabelValues.
func (series) LabelNames(context.Context, *storage.LabelHints, ...*labels.Matcher) ([]string, annotations.Annotations, error) {
	return nil, nil, nil
}

// Select are the series that match.
func (s series) Select(_ context.Context, _ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
	found := &selected{at: -1}
	for _, one := range s {
		of, all := one.Labels(), true
		for _, m := range matchers {
			all = all && m.Matches(of.Get(m.Name))
		}
		if all {
			found.series = append(found.series, one)
		}
	}
	return found
}

type selected struct {
	series series
	at     int
}

func (s *selected) Next() bool                        { s.at++; return s.at < len(s.series) }
func (s *selected) At() storage.Series                { return s.series[s.at] }
func (s *selected) Err() error                        { return nil }
func (s *selected) Warnings() annotations.Annotations { return nil }
