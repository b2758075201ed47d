package decisionlog

import (
	"errors"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// Why a decision is not written, or without its outcome.
const (
	droppedFull    = iota // MaxPendingBytes are taken
	droppedWrite          // it was lost with a file
	droppedPanic          // its record could not be made
	droppedReasons = iota
)

const (
	unfinishedFull     = iota // three quarters of MaxPendingBytes are taken
	unfinishedShutdown        // the process ended first
	unfinishedReasons  = iota
)

var (
	droppedNames    = [droppedReasons]string{"full", "write_error", "panic"}
	unfinishedNames = [unfinishedReasons]string{"full", "shutdown"}
)

// stats are what a Log counts.
type stats struct {
	rows, bytes, errors, finished, deleted, recovered atomic.Int64

	files, fileBytes atomic.Int64 // in the folder
	dropped          [droppedReasons]atomic.Int64
	unfinished       [unfinishedReasons]atomic.Int64
}

func newStats() *stats { return &stats{} }

// register registers the metrics, which are read at the moment of a scrape.
func (l *Log) register(reg prometheus.Registerer) error {
	var errs []error
	counter := func(name, help string, of *atomic.Int64, labels prometheus.Labels) {
		errs = append(errs, reg.Register(prometheus.NewCounterFunc(
			prometheus.CounterOpts{Name: "sluice_decision_log_" + name, Help: help, ConstLabels: labels}, func() float64 { return float64(of.Load()) })))
	}
	gauge := func(name, help string, of *atomic.Int64) {
		errs = append(errs, reg.Register(prometheus.NewGaugeFunc(
			prometheus.GaugeOpts{Name: "sluice_decision_log_" + name, Help: help}, func() float64 { return float64(of.Load()) })))
	}
	s := l.stats
	counter("rows_total", "Decisions added to a file of the decision log.", &s.rows, nil)
	counter("written_bytes_total", "Bytes written to files of the decision log.", &s.bytes, nil)
	counter("write_errors_total", "Failed tries to open, write or finish a file of the decision log.", &s.errors, nil)
	counter("files_finished_total", "Files of the decision log that are complete.", &s.finished, nil)
	counter("files_deleted_total", "Files of the decision log deleted because there are newer ones.", &s.deleted, nil)
	counter("files_recovered_total", "Files of the decision log that an earlier process had left unfinished.", &s.recovered, nil)
	for i := range s.dropped {
		counter("dropped_total", "Sampled decisions that the decision log lacks, by reason: full (telemetry.decisionLog.maxPendingBytes), write_error (lost with a file), panic.",
			&s.dropped[i], prometheus.Labels{"reason": droppedNames[i]})
	}
	for i := range s.unfinished {
		counter("unfinished_total", "Decisions written without their outcome, by reason: full (telemetry.decisionLog.maxPendingBytes), shutdown.",
			&s.unfinished[i], prometheus.Labels{"reason": unfinishedNames[i]})
	}
	gauge("files", "Finished files in the decision log's folder.", &s.files)
	gauge("file_bytes", "Size of the finished files in the decision log's folder, in bytes.", &s.fileBytes)
	gauge("pending", "Sampled decisions whose requests have not ended.", &l.pending)
	gauge("queue_length", "Decisions that wait for the decision log's writer.", &l.queued)
	gauge("pending_bytes", "Memory of the decisions that the decision log has not written, in bytes.", &l.held)
	return errors.Join(errs...)
}
