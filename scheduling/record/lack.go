package record

import (
	"fmt"
	"slices"
	"strings"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
)

// Lack is the error of a record that does not hold what a scheduler's decisions rest on.
type Lack struct {
	// ID is the decision's.
	ID uint64
	// Inputs say what is not there. They are the same for all records of one configuration.
	Inputs []string
}

// Error names the decision and the inputs.
func (l *Lack) Error() string {
	return fmt.Sprintf("decision %d: %s", l.ID, strings.Join(l.Inputs, "\n"))
}

// lackingLabels are the labels that s reads and the record does not tell of. A record of the same configuration has them
// all, and so has one in which an endpoint has the label.
func lackingLabels(s *scheduling.Scheduler, d *decisionv1.Decision) (lacking []string) {
	if hash := s.ConfigHash(); hash != "" && hash == d.GetConfigHash() {
		return nil
	}
	for _, key := range s.LabelKeys() {
		key = clean(key, maxName)
		has := func(e *decisionv1.Candidate) bool { _, ok := e.GetLabels()[key]; return ok }
		if !slices.Contains(d.GetLabelKeys(), key) && !slices.ContainsFunc(d.GetCandidates(), has) {
			lacking = append(lacking, fmt.Sprintf("the record has no label %q of endpoints", key))
		}
	}
	return lacking
}

// Substitute is a column that takes the recorded values of a producer of another name, or none.
type Substitute struct {
	// Column is the scheduler's.
	Column scheduling.ColumnInfo
	// Recorded is the name of the producer whose values take its place; empty where there is none, and no endpoint is taken to
	// have a value.
	Recorded string
}

// Substitutes are the columns that s's decisions rest on and for which a record has the values of a producer of another
// name: s's own producer might have found others. They are the same for all records of one configuration.
func Substitutes(s *scheduling.Scheduler, d *decisionv1.Decision) (all []Substitute) {
	for _, info := range s.Columns() {
		if !info.Decisive {
			continue
		}
		switch from, _, err := source(d, info); {
		case err != nil && scheduling.AssumedAbsent(info.DataType):
			all = append(all, Substitute{Column: info})
		case err == nil && from.GetProducer() != info.Producer:
			all = append(all, Substitute{Column: info, Recorded: from.GetProducer()})
		}
	}
	return all
}
