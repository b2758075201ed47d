package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// maxTold bounds the rows that are named of a log that cannot be read.
const maxTold = 10

// told passes rows on and says which of them could not be read: the first few by file, row and what is wrong, the others by their
// number. What is left out because somebody stopped the reading is nothing to say.
func told(rows iter.Seq2[*decisionv1.Decision, error], to io.Writer) iter.Seq2[*decisionv1.Decision, error] {
	return func(yield func(*decisionv1.Decision, error) bool) {
		skipped := 0
		defer func() {
			if more := skipped - maxTold; more > 0 {
				fmt.Fprintf(to, "sluice: %d more that could not be read\n", more)
			}
		}()
		for d, err := range rows {
			if skip := (*decisionlog.Skip)(nil); errors.As(err, &skip) && !errors.Is(err, context.Canceled) {
				if skipped++; skipped <= maxTold {
					fmt.Fprintln(to, "sluice:", display.Plain(err.Error()))
				}
			}
			if !yield(d, err) {
				return
			}
		}
	}
}
