package gatereport

import (
	"context"
	"errors"
	"iter"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// Run reads decisions to their end and reports. What cannot be read is counted. It stops with ctx.
func Run(ctx context.Context, decisions iter.Seq2[*decisionv1.Decision, error], o Options) (*Report, error) {
	c, err := New(o)
	if err != nil {
		return nil, err
	}
	if err := c.addAll(ctx, decisions); err != nil {
		return nil, err
	}
	return c.Report(), nil
}

func (c *Collector) addAll(ctx context.Context, decisions iter.Seq2[*decisionv1.Decision, error]) error {
	for d, err := range decisions {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if skip := new(decisionlog.Skip); errors.As(err, &skip) {
			c.Skip(skip.Reason)
			continue
		} else if err != nil {
			return err
		}
		if err := c.Add(d); err != nil {
			return err
		}
	}
	return nil
}
