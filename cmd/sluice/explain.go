package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/term"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/cmd/sluice/admin"
	"github.com/sluice-epp/sluice/cmd/sluice/display"
	"github.com/sluice-epp/sluice/cmd/sluice/explanation"
)

// ExplainCommand says why requests went where they went.
type ExplainCommand struct {
	RequestID []string `arg:"" name:"request-id" help:"The x-request-id of a request: every decision that carries it. Several may be given. - reads a request's body from standard input and says where it would go. Without any: the newest decision." optional:""`

	ID         atLeastOne `name:"id" help:"The decision with this id." placeholder:"N"`
	Last       atLeastOne `help:"The newest N decisions, or the newest N that carry the request id." placeholder:"N"`
	Path       string     `help:"With -: the path that the request goes to." default:"/v1/chat/completions" placeholder:"PATH" group:"Where would this go (with -):"`
	Header     []string   `help:"With -: a header of the request; may be repeated." placeholder:"NAME:VALUE" sep:"none" group:"Where would this go (with -):"`
	Subset     []string   `help:"With -: the endpoints that the proxy allows; all without any." placeholder:"IP:PORT" group:"Where would this go (with -):"`
	Output     string     `short:"o" help:"text, or json: one object on a line for each decision." default:"text" enum:"text,json" placeholder:"FORMAT"`
	Candidates uint32     `help:"How many endpoints of each decision to show: the picks, the best others, and those that a gate compared; 0 shows all." default:"10" placeholder:"N"`

	Admin admin.Flags `embed:"" group:"The server:"`
}

// Help is shown below the usage.
func (*ExplainCommand) Help() string {
	return `Says first in words why the request went there, then what that rests on: how it ended, the gate with its gap and its bar, every endpoint
with what was known of it, the scores, and the smallest changes that would have made the pick another one. Decisions are kept for a while
only (telemetry.maxDecisionBytes). docs/explain.md reads an answer line by line. Examples:

  sluice explain                          the newest decision
  sluice explain 5d0f8b1c-2f6e            all decisions with this x-request-id
  sluice explain --last 20 -o json | jq -r .reason
  sluice explain - < body.json            where would this request go? No engine computes it
  sluice explain - --header x-session-id:42 --subset 10.0.0.5:8000,10.0.0.6:8000 < body.json
  sluice explain --admin sluice.example:9090 --ca ca.pem --cert me.pem --key me.key`
}

// stdin stands for standard input.
const stdin = "-"

// tries reports whether a request is tried that is not there.
func (e *ExplainCommand) tries() bool { return len(e.RequestID) == 1 && e.RequestID[0] == stdin }

// Validate checks what belongs together.
func (e *ExplainCommand) Validate() error {
	for _, id := range e.RequestID {
		if id == "" || id == stdin && len(e.RequestID) > 1 {
			return fmt.Errorf("REQUEST-ID: %q cannot stand among request ids", id)
		}
	}
	switch {
	case e.ID != 0 && len(e.RequestID) > 0:
		return errors.New("--id: give it or a REQUEST-ID, not both")
	case e.ID != 0 && e.Last != 0:
		return errors.New("--last: an --id names one decision")
	case e.tries() && e.Last != 0:
		return errors.New("--last: does nothing with -")
	case !e.tries() && (len(e.Header) > 0 || len(e.Subset) > 0):
		return errors.New("--header, --subset: belong to -, which reads a request's body from standard input")
	}
	if _, err := e.headers(); err != nil {
		return err
	}
	return e.Admin.Check()
}

func (e *ExplainCommand) headers() ([]*schedulerv1.Header, error) {
	var all []*schedulerv1.Header
	for _, h := range e.Header {
		name, value, ok := strings.Cut(h, ":")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return nil, fmt.Errorf("--header: must be \"name:value\", got %q", h)
		}
		all = append(all, &schedulerv1.Header{Name: name, Value: strings.TrimSpace(value)})
	}
	return all, nil
}

// patience is how long an answer is waited for.
const patience = 15 * time.Second

// Run prints the decisions.
func (e *ExplainCommand) Run() error {
	client, closeIt, err := e.Admin.Dial()
	if err != nil {
		return err
	}
	defer closeIt()
	out := &explained{command: e, client: client}
	if e.tries() {
		return out.try(os.Stdin)
	}
	ids := e.RequestID
	if len(ids) == 0 {
		ids = []string{""}
	}
	var faults []error
	for _, id := range ids { // one that is not there does not hide the others
		faults = append(faults, out.find(id))
	}
	return errors.Join(faults...)
}

// explained is the output of one run.
type explained struct {
	command   *ExplainCommand
	client    schedulerv1.SchedulerServiceClient
	endpoints []*schedulerv1.Endpoint
	asked     bool
	written   int
}

// find prints recorded decisions.
func (o *explained) find(requestID string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	c := o.command
	a, err := o.client.Explain(ctx, &schedulerv1.ExplainRequest{RequestId: requestID, Id: uint64(c.ID), Limit: uint32(min(uint64(c.Last), maxLast)), MaxCandidates: c.Candidates})
	if err != nil {
		return c.notFound(requestID, err)
	}
	for _, x := range a.GetExplanations() {
		if err := o.write(ctx, x); err != nil {
			return err
		}
	}
	if n := a.GetLeftOut(); n > 0 && (c.Last > 0 || requestID != "") {
		_, _ = fmt.Fprintf(os.Stderr, "sluice: %d older ones are left out: --last N shows more, 100 at most\n", n)
	}
	return nil
}

// maxLast is above what the server gives at once.
const maxLast = 1 << 20

// notFound says of a decision that is not there where it may be.
func (e *ExplainCommand) notFound(requestID string, err error) error {
	words := e.Admin.Error(err)
	if status.Code(err) != codes.NotFound {
		return words
	}
	hint := "another replica may have decided it: --admin names one (kubectl port-forward deploy/… picks one pod)"
	if _, bad := strconv.ParseUint(requestID, 10, 64); bad == nil {
		hint = "--id " + requestID + " is the decision of that number; or " + hint
	}
	return fmt.Errorf("%w; %s", words, hint)
}

// atLeastOne is a number above 0; 0 where it was not given.
type atLeastOne uint64

// Decode implements kong.MapperValue. It takes -1 for a number, which it refuses, and not for a flag.
func (n *atLeastOne) Decode(c *kong.DecodeContext) error {
	text := fmt.Sprint(c.Scan.Pop().Value)
	v, err := strconv.ParseUint(text, 10, 64)
	if err != nil || v == 0 {
		return fmt.Errorf("must be a number of at least 1, got %q", text)
	}
	*n = atLeastOne(v)
	return nil
}

// maxBodyBytes bounds what is read from standard input. The server has a bound of its own, server.maxBodyBytes.
const maxBodyBytes = 1 << 30

// try prints where a request would go.
func (o *explained) try(body *os.File) error {
	c := o.command
	if term.IsTerminal(int(body.Fd())) {
		_, _ = fmt.Fprintln(os.Stderr, "sluice: reading a request's body from the terminal; Ctrl-D ends it")
	}
	b, err := io.ReadAll(io.LimitReader(body, maxBodyBytes+1))
	switch {
	case err != nil:
		return fmt.Errorf("standard input: %w", err)
	case len(b) > maxBodyBytes:
		return errors.New("standard input: more than 1 GiB")
	case len(bytes.TrimSpace(b)) == 0:
		return errors.New("standard input: is empty, and should be a request's body, as clients send it")
	}
	headers, err := c.headers()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	a, err := o.client.DryRun(ctx, &schedulerv1.DryRunRequest{
		Path: c.Path, Headers: headers, Body: b, Subset: c.Subset, MaxCandidates: c.Candidates,
	})
	if err != nil {
		return c.Admin.Error(err)
	}
	return o.write(ctx, a.GetExplanation())
}

// write prints one decision.
func (o *explained) write(ctx context.Context, x *schedulerv1.Explanation) error {
	if o.command.Output == "json" {
		return writeJSON(os.Stdout, x)
	}
	if o.written++; o.written > 1 {
		if _, err := fmt.Println(); err != nil {
			return err
		}
	}
	if !o.asked { // what has been learnt is not part of a decision
		o.asked = true
		if a, err := o.client.ListEndpoints(ctx, &schedulerv1.ListEndpointsRequest{}); err == nil {
			o.endpoints = a.GetEndpoints()
		}
	}
	width, styles := paper(os.Stdout)
	return explanation.Write(os.Stdout, x, explanation.Options{
		Width: width, Styles: styles, Now: time.Now(), Tried: o.command.tries(), Endpoints: o.endpoints,
	})
}

// writeJSON writes a message as one line.
func writeJSON(w io.Writer, x *schedulerv1.Explanation) error {
	b, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(x)
	if err != nil {
		return err
	}
	var line bytes.Buffer
	if err := json.Compact(&line, b); err != nil { // protojson varies its spaces
		return err
	}
	line.WriteByte('\n')
	_, err = w.Write(line.Bytes())
	return err
}

// How wide text is: in a file or a pipe, and at most on a terminal, where long lines read badly.
const (
	usualWidth  = 80
	usualHeight = 24
	widestPaper = 120
)

// paper is the width that a file is written in, and whether with styles: on a terminal, and there unless NO_COLOR is set.
func paper(f *os.File) (width int, styles display.Styles) {
	if !term.IsTerminal(int(f.Fd())) {
		return usualWidth, false
	}
	width, _, err := term.GetSize(int(f.Fd()))
	if err != nil || width <= 0 {
		width = usualWidth
	}
	return min(width, widestPaper), colours()
}

// colours reports whether the environment allows them; see https://no-color.org.
func colours() display.Styles {
	return os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
