package replay

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
	"math"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	decisionv1 "github.com/sluice-epp/sluice/api/sluice/decision/v1"
	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/scheduling/explain"
	"github.com/sluice-epp/sluice/scheduling/record"
	"github.com/sluice-epp/sluice/server/decisionlog"
)

// Configuration is one that decides.
type Configuration struct {
	// Name is what people call it.
	Name string
	// Hash is what records name it by.
	Hash string
	// Scheduler is built of it. It is only asked to decide: its producers never run.
	Scheduler *scheduling.Scheduler
}

// Plan is what is made again.
type Plan struct {
	// Decisions are the recorded ones, in the order in which they are told; an error beside a nil decision is a row that could
	// not be read.
	Decisions iter.Seq2[*decisionv1.Decision, error]
	// New is the configuration that decides again; nil means the one that decided.
	New *Configuration
	// Recorded finds the configuration with a hash; nil where it is not known.
	Recorded func(hash string) (*Configuration, error)
	// Examples is how many flips are kept whole.
	Examples int
	// Each is called after every row that was read, with how many there were; nil for nobody.
	Each func(rows int64)
	// Logger gets what is wrong with single rows; nil for nobody.
	Logger *slog.Logger
}

// ErrDiffers is part of the error of decisions that do not come out the same under the configuration that made them.
var ErrDiffers = errors.New("made again by the configuration that made it, a decision is not the same")

// Run makes every decision again. Memory does not grow with their number. Where ctx ends first, the result is that of the
// decisions until then, beside ctx's error.
func (p *Plan) Run(ctx context.Context) (*Result, error) {
	if p.Logger == nil {
		p.Logger = slog.New(slog.DiscardHandler)
	}
	r := newResult(p.New)
	rows := int64(0)
	for d, err := range p.Decisions {
		if ctx.Err() != nil {
			r.finish()
			return r, ctx.Err()
		}
		if rows++; p.Each != nil {
			p.Each(rows)
		}
		if err != nil {
			r.unread(err)
			p.Logger.Debug("a row is left out", "error", err)
			continue
		}
		if err := p.one(r, d); err != nil {
			r.finish()
			return r, err
		}
	}
	r.finish()
	return r, nil
}

// one makes a decision again and adds what came of it.
func (p *Plan) one(r *Result, d *decisionv1.Decision) error {
	r.Rows++
	config := p.New
	if config == nil {
		var err error
		if config, err = p.Recorded(d.GetConfigHash()); err != nil {
			return err
		}
		if config == nil {
			r.leaveOut(fmt.Sprintf("the configuration %s is not known", named(d.GetConfigHash())))
			return nil
		}
	}
	if config.Hash == d.GetConfigHash() {
		if what := otherVersion(config.Scheduler, d); what != "" {
			r.leaveOut(what)
			return nil
		}
	}
	again, err := record.Replay(config.Scheduler, d, config.Hash)
	if lack := (*record.Lack)(nil); errors.As(err, &lack) {
		r.leaveOut(strings.Join(lack.Inputs, "; "))
		return nil
	}
	if err != nil { // such as an endpoint that stands there twice
		r.leaveOut("the record cannot be: " + withoutID(err, d))
		return nil
	}
	r.substitutes(config, d)
	same := identical(d, again)
	if config.Hash == d.GetConfigHash() {
		r.Verified++
		if !same {
			r.differs(d, again)
		}
	}
	if same || identical(renamed(d, config.Hash), again) {
		r.Identical++
	}
	r.add(d, again, explain.Compare(d, again), p.Examples)
	return nil
}

// otherVersion says that a record is of another version of this program, whose producers filled other columns; empty where it
// is not.
func otherVersion(s *scheduling.Scheduler, d *decisionv1.Decision) string {
	columns := s.Columns()
	for i, info := range columns {
		if i >= len(d.GetColumns()) || d.GetColumns()[i].GetDataType() != info.DataType || d.GetColumns()[i].GetProducer() != info.Producer {
			return fmt.Sprintf("the record is of another version of the same configuration: it has no %s of %s in its place", info.DataType, info.Producer)
		}
	}
	if len(d.GetColumns()) > len(columns) {
		return fmt.Sprintf("the record is of another version of the same configuration: it has a %s too", d.GetColumns()[len(columns)].GetDataType())
	}
	return ""
}

func named(hash string) string {
	if hash == "" {
		return "of rows that name none"
	}
	return hash
}

// withoutID is an error without the decision's number, so that errors of one kind count together.
func withoutID(err error, d *decisionv1.Decision) string {
	return strings.TrimPrefix(err.Error(), fmt.Sprintf("decision %d: ", d.GetId()))
}

// identical reports whether two records are the same bytes, their outcomes aside, which nobody decides.
func identical(recorded, again *decisionv1.Decision) bool {
	outcome := recorded.Outcome
	recorded.Outcome = nil
	defer func() { recorded.Outcome = outcome }()
	a, errA := record.Marshal(recorded)
	b, errB := record.Marshal(again)
	return errA == nil && errB == nil && slices.Equal(a, b)
}

// renamed is a record as a configuration of another name would have made it: that makes no difference to what it decides.
func renamed(d *decisionv1.Decision, hash string) *decisionv1.Decision {
	if d.GetConfigHash() == hash {
		return d
	}
	c := proto.CloneOf(d)
	c.ConfigHash = hash
	return c
}

// Configurations finds configurations by the files beside a log, and builds each once.
type Configurations struct {
	// Build builds one from a file.
	Build func(path string) (*scheduling.Scheduler, error)
	// Paths are the files by their hashes.
	Paths map[string]string

	built map[string]*Configuration
}

// Find is the configuration with a hash; nil where there is no file of it. The file's name is what says its hash: secrets
// are not in the file, so that it does not follow from the content.
func (c *Configurations) Find(hash string) (*Configuration, error) {
	if found, ok := c.built[hash]; ok {
		return found, nil
	}
	path, ok := c.Paths[hash]
	if !ok {
		return nil, nil //nolint:nilnil // not known is no error: the rows are counted
	}
	s, err := c.Build(path)
	if err != nil {
		return nil, err
	}
	c.Add(&Configuration{Name: path, Hash: hash, Scheduler: s})
	return c.built[hash], nil
}

// Add makes a configuration known.
func (c *Configurations) Add(config *Configuration) {
	if c.built == nil {
		c.built = map[string]*Configuration{}
	}
	c.built[config.Hash] = config
}

// Close closes what was built.
func (c *Configurations) Close() error {
	var errs []error
	for _, config := range c.built {
		errs = append(errs, config.Scheduler.Close())
	}
	return errors.Join(errs...)
}

// unread counts a row, or the rest of a file, that could not be read.
func (r *Result) unread(err error) {
	reason := err.Error()
	if skip := (*decisionlog.Skip)(nil); errors.As(err, &skip) {
		reason = skip.Reason
		if skip.Row == 0 || skip.Reason == decisionlog.SkippedFile {
			reason = skip.Error() // files are few
		}
	}
	r.Unread.add(reason, 1)
}

// Counts are numbers by name. Names beyond a bound are counted together.
type Counts map[string]int64

const (
	maxNames   = 256
	otherNames = "(others)"
)

func (c Counts) add(name string, n int64) {
	if _, known := c[name]; !known && len(c) >= maxNames {
		name = otherNames
	}
	c[name] += n
}

// Total is the sum.
func (c Counts) Total() (sum int64) {
	for _, n := range c {
		sum += n
	}
	return sum
}

// share is a part of a whole; NaN of nothing.
func share(part, whole float64) float64 {
	if whole == 0 {
		return math.NaN()
	}
	return part / whole
}
