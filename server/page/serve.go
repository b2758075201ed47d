package page

import (
	"bytes"
	"context"
	"errors"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/operator"
)

// overview is the page of everything.
type overview struct {
	Seq, Search string
	Grid        bool
	state       *state
}

// List is a list of the page. Its HTML was made by templates.
func (o overview) List(name string) template.HTML { return template.HTML(o.state.html(name)) } //nolint:gosec // escaped when it was made

// serveOverview serves the page as it is now.
func (p *Page) serveOverview(w http.ResponseWriter, r *http.Request) {
	q := searchOf(r)
	s, err := p.live.now().search(q)
	if err != nil {
		p.fail(w, http.StatusInternalServerError, err.Error())
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.whole == nil {
		var b bytes.Buffer
		o := overview{Seq: p.live.id(s), Search: q, Grid: len(s.view.endpoints) > shownEndpoints, state: s}
		if err := templates.ExecuteTemplate(&b, "overview.html", o); err != nil {
			p.fail(w, http.StatusInternalServerError, err.Error())
			return
		}
		s.whole = b.Bytes()
	}
	send(w, http.StatusOK, s.whole)
}

func send(w http.ResponseWriter, code int, html []byte) {
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("Content-Length", strconv.Itoa(len(html)))
	w.WriteHeader(code)
	if _, err := w.Write(html); err != nil {
		return // the reader has gone
	}
}

// show serves a page made by a template.
func (p *Page) show(w http.ResponseWriter, code int, layout string, data any) {
	var b bytes.Buffer
	if err := templates.ExecuteTemplate(&b, layout, data); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	send(w, code, b.Bytes())
}

// message is a page that says one thing.
type message struct {
	Title, Text string
	Near        []string // request ids to look up instead
}

func (p *Page) fail(w http.ResponseWriter, code int, text string) {
	p.show(w, code, "message.html", message{Title: http.StatusText(code), Text: visible(text)})
}

// failCall serves a call's error.
func (p *Page) failCall(w http.ResponseWriter, err error) {
	s := status.Convert(err)
	code := map[codes.Code]int{
		codes.NotFound: http.StatusNotFound, codes.InvalidArgument: http.StatusBadRequest, codes.Canceled: http.StatusServiceUnavailable,
		codes.DeadlineExceeded: http.StatusGatewayTimeout,
	}[s.Code()]
	if code == 0 {
		code = http.StatusInternalServerError
	}
	p.fail(w, code, s.Message())
}

// failLookup serves the error of a look-up, with links to the ids that are like the one that was looked up.
func (p *Page) failLookup(w http.ResponseWriter, id string, err error) {
	near := p.config.Decisions.Near(id)
	if status.Code(err) != codes.NotFound || len(near) == 0 {
		p.failCall(w, err)
		return
	}
	text := strings.TrimSuffix(status.Convert(err).Message(), operator.Near+strings.Join(near, ", "))
	p.show(w, http.StatusNotFound, "message.html", message{Title: http.StatusText(http.StatusNotFound), Text: visible(text), Near: near})
}

// detailPage is a decision's page.
type detailPage struct {
	detail
	All bool
}

// serveDecision serves one decision in full.
func (p *Page) serveDecision(w http.ResponseWriter, r *http.Request) {
	id, err := strconv.ParseUint(r.PathValue("id"), 10, 64)
	if err != nil || id == 0 {
		p.fail(w, http.StatusNotFound, "a decision's id is a number above 0")
		return
	}
	all := r.URL.Query().Get("all") == "1"
	request := &schedulerv1.ExplainRequest{Id: id, MaxCandidates: shownCandidates}
	if all {
		request.MaxCandidates = 0
	}
	p.explained(w, r.Context(), func(ctx context.Context) (*schedulerv1.Explanation, error) {
		answer, err := p.config.Explainer.Explain(ctx, request)
		if err != nil {
			return nil, err
		}
		return answer.GetExplanations()[0], nil
	}, false, all)
}

// explained serves what f explains.
func (p *Page) explained(w http.ResponseWriter, ctx context.Context, f func(context.Context) (*schedulerv1.Explanation, error), tried, all bool) { //nolint:revive // the writer goes first
	p.work(ctx, func() {
		x, err := f(ctx)
		if err != nil {
			p.failCall(w, err)
			return
		}
		p.show(w, http.StatusOK, "detail.html", detailPage{detailOf(x, tried), all})
	})
}

// found is the page of a look-up that found several decisions.
type found struct {
	RequestID string
	Rows      []decisionRow
	More      string
}

// serveLookup finds decisions by the request's id, or by their own.
func (p *Page) serveLookup(w http.ResponseWriter, r *http.Request) {
	id := strings.TrimSpace(r.URL.Query().Get("id"))
	if id == "" {
		http.Redirect(w, r, "/ui/", http.StatusSeeOther)
		return
	}
	p.work(r.Context(), func() {
		answer, err := p.config.Explainer.Explain(r.Context(), &schedulerv1.ExplainRequest{RequestId: id, MaxCandidates: 1})
		if status.Code(err) == codes.NotFound {
			if n, bad := strconv.ParseUint(id, 10, 64); bad == nil && n > 0 {
				if _, ok := p.config.Decisions.Get(n); ok {
					http.Redirect(w, r, "/ui/decisions/"+url.PathEscape(id), http.StatusSeeOther)
					return
				}
			}
		}
		if err != nil {
			p.failLookup(w, id, err)
			return
		}
		all := answer.GetExplanations()
		if len(all) == 1 {
			http.Redirect(w, r, "/ui/decisions/"+strconv.FormatUint(all[0].GetDecision().GetId(), 10), http.StatusSeeOther)
			return
		}
		f := found{RequestID: short(id)}
		for _, x := range all {
			f.Rows = append(f.Rows, decisionRowOf(x.GetDecision()))
			f.Rows[len(f.Rows)-1].Reason = visible(x.GetReason()) // of all candidates
		}
		if n := answer.GetLeftOut(); n > 0 {
			f.More = count(n)
		}
		p.show(w, http.StatusOK, "found.html", f)
	})
}

// trialPaths are the paths that the form offers.
var trialPaths = []string{"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"}

// tryForm is the form for trying a request.
type tryForm struct {
	Paths    []string
	MaxBytes string
}

func (p *Page) serveTryForm(w http.ResponseWriter, _ *http.Request) {
	p.show(w, http.StatusOK, "try.html", tryForm{trialPaths, size(MaxTrialBytes)})
}

// serveTry decides about the request of the form. It charges nothing and learns nothing.
func (p *Page) serveTry(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("Content-Type") != "application/x-www-form-urlencoded" {
		p.fail(w, http.StatusUnsupportedMediaType, "the form of this page is what may be sent here")
		return
	}
	select {
	case p.reading <- struct{}{}:
		defer func() { <-p.reading }()
	case <-r.Context().Done():
		return
	}
	var tooLong *http.MaxBytesError
	switch err := p.readForm(w, r); {
	case errors.As(err, &tooLong):
		p.fail(w, http.StatusRequestEntityTooLarge, "the body is longer than "+size(MaxTrialBytes))
		return
	case err != nil:
		p.fail(w, http.StatusBadRequest, "the form cannot be read")
		return
	}
	body, path := r.PostForm.Get("body"), r.PostForm.Get("path")
	switch {
	case len(body) > MaxTrialBytes:
		p.fail(w, http.StatusRequestEntityTooLarge, "the body is longer than "+size(MaxTrialBytes))
		return
	case !slices.Contains(trialPaths, path):
		p.fail(w, http.StatusBadRequest, "path: want one of "+strings.Join(trialPaths, ", "))
		return
	}
	p.explained(w, r.Context(), func(ctx context.Context) (*schedulerv1.Explanation, error) {
		answer, err := p.config.Explainer.DryRun(ctx, &schedulerv1.DryRunRequest{Path: path, BodyText: body, MaxCandidates: shownCandidates})
		return answer.GetExplanation(), err
	}, true, true)
}

// readForm reads a request's form, which must come in time: others wait for its place in memory.
func (p *Page) readForm(w http.ResponseWriter, r *http.Request) error {
	control := http.NewResponseController(w)
	_ = control.SetReadDeadline(time.Now().Add(p.patience))        // a writer without deadlines is a test's
	r.Body = http.MaxBytesReader(w, r.Body, 3*MaxTrialBytes+1<<12) // a byte may take three
	if err := r.ParseForm(); err != nil {
		return err // the rest of it is not waited for either
	}
	_ = control.SetReadDeadline(time.Time{})
	return nil
}
