package telemetry

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"
)

// NewLogger returns a JSON logger whose every message is bounded to burst records per interval: a fault that comes with
// every request must not become a second fault, of the disk. Suppressed records are counted and the count is written
// with the next record of the same message that passes. level may change at any time.
func NewLogger(w io.Writer, level *slog.LevelVar, burst int, interval time.Duration) *slog.Logger {
	h := &limited{
		Handler: slog.NewJSONHandler(w, &slog.HandlerOptions{Level: level}),
		limits:  &limits{burst: burst, interval: interval, messages: make(map[string]*limit)},
	}
	return slog.New(h)
}

// maxMessages bounds the number of distinct messages that are limited one by one; messages are constants in the code,
// so this is a net. Further ones share one limit.
const maxMessages = 1000

type limits struct {
	burst    int
	interval time.Duration

	mu       sync.Mutex
	messages map[string]*limit
}

type limit struct {
	mu         sync.Mutex
	start      time.Time
	passed     int
	suppressed atomic.Int64
}

// allow reports whether a record may pass, and how many were suppressed before it.
func (l *limits) allow(message string, at time.Time) (ok bool, suppressed int64) {
	l.mu.Lock()
	m := l.messages[message]
	if m == nil {
		if len(l.messages) >= maxMessages {
			message = ""
		}
		if m = l.messages[message]; m == nil {
			m = &limit{start: at}
			l.messages[message] = m
		}
	}
	l.mu.Unlock()
	m.mu.Lock()
	defer m.mu.Unlock()
	if at.Sub(m.start) >= l.interval {
		m.start, m.passed = at, 0
	}
	if m.passed >= l.burst {
		m.suppressed.Add(1)
		return false, 0
	}
	m.passed++
	return true, m.suppressed.Swap(0)
}

type limited struct {
	slog.Handler
	limits *limits
}

// Handle writes the record, unless its message came too often.
func (h *limited) Handle(ctx context.Context, r slog.Record) error {
	ok, suppressed := h.limits.allow(r.Message, r.Time)
	if !ok {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int64("suppressed", suppressed))
	}
	return h.Handler.Handle(ctx, r)
}

// WithAttrs keeps the limits.
func (h *limited) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limited{Handler: h.Handler.WithAttrs(attrs), limits: h.limits}
}

// WithGroup keeps the limits.
func (h *limited) WithGroup(name string) slog.Handler {
	return &limited{Handler: h.Handler.WithGroup(name), limits: h.limits}
}
