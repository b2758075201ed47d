package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
)

// Result is how a scrape ended.
type Result uint8

// The results of scrapes.
const (
	ResultOK          Result = iota
	ResultTimeout            // no complete page within scrapeTimeout
	ResultUnreachable        // no connection
	ResultStatus             // an HTTP status other than 200
	ResultTooLarge           // more than maxPageBytes
	ResultUnknownPage        // a page without any family of the engine: another kind of page, or another engine
	ResultBroken             // the connection broke in the middle of the answer
	ResultGone               // the endpoint left meanwhile: the answer belongs to nobody
	numResults
)

var resultNames = [numResults]string{
	"ok", "timeout", "unreachable", "status", "too_large", "unknown_page", "broken", "gone",
}

// String is the result's name as metrics show it.
func (r Result) String() string {
	if r < numResults {
		return resultNames[r]
	}
	return "unknown"
}

// failure is an error of a scrape with the result that it is counted as.
type failure struct {
	result Result
	err    error
}

func (f *failure) Error() string { return f.err.Error() }
func (f *failure) Unwrap() error { return f.err }

func failed(r Result, format string, args ...any) error {
	return &failure{r, fmt.Errorf(format, args...)}
}

// resultOf sorts an error in. otherwise is what an error is that says nothing of itself.
func resultOf(err error, otherwise Result) Result {
	var f *failure
	var timeout net.Error
	switch {
	case err == nil:
		return ResultOK
	case errors.As(err, &f):
		return f.result
	case errors.Is(err, context.Canceled):
		return ResultGone
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		return ResultTimeout
	}
	return otherwise
}

// newRequest is the request for an endpoint's page; scrapes send shallow copies of it.
func newRequest(url string) (*http.Request, error) {
	r, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		return nil, err
	}
	if r.URL.Scheme != "http" && r.URL.Scheme != "https" || r.URL.Host == "" {
		return nil, fmt.Errorf("metrics URL %q: must be http://HOST… or https://HOST…", url)
	}
	r.Header.Set("Accept", "text/plain;version=0.0.4;q=1,*/*;q=0.1")
	r.Header.Set("Accept-Encoding", "identity")
	r.Header.Set("User-Agent", "sluice")
	if user := r.URL.User; user != nil {
		password, _ := user.Password()
		r.SetBasicAuth(user.Username(), password)
	}
	return r, nil
}

// pageBuffer is the size of the piece in which a page is scanned, and the longest line of a needed family: an order of
// magnitude beyond the longest that engines write, a few KiB of configuration labels.
const pageBuffer = 32 << 10

// workspace is the memory of one scrape.
type workspace struct {
	scanner scanner
	buffer  [pageBuffer]byte
}

var workspaces = sync.Pool{New: func() any { return new(workspace) }}

// fetch reads the page that a request asks for into a workspace's scanner. read is how many bytes the page had.
func (w *workspace) fetch(transport http.RoundTripper, r *http.Request, maxBytes int64) (read int64, err error) {
	response, err := transport.RoundTrip(r)
	if err != nil {
		return 0, &failure{resultOf(err, ResultUnreachable), err}
	}
	defer func() { _ = response.Body.Close() }() // it was read; there is nothing to save
	switch {
	case response.StatusCode != http.StatusOK:
		// A short answer is read to its end, so that the connection can be used again.
		_, _ = io.CopyN(io.Discard, response.Body, 4<<10)
		return 0, failed(ResultStatus, "status %d", response.StatusCode)
	case response.ContentLength > maxBytes:
		return 0, failed(ResultTooLarge, "page of %d bytes: maxPageBytes is %d", response.ContentLength, maxBytes)
	}
	return w.scan(response.Body, maxBytes)
}

// scan reads a page to its end.
func (w *workspace) scan(page io.Reader, maxBytes int64) (read int64, err error) {
	have := 0
	for {
		n, err := page.Read(w.buffer[have:])
		read += int64(n)
		have += n
		if read > maxBytes {
			return read, failed(ResultTooLarge, "page of more than maxPageBytes, %d bytes", maxBytes)
		}
		used := w.scanner.lines(w.buffer[:have])
		have = copy(w.buffer[:], w.buffer[used:have])
		switch {
		case errors.Is(err, io.EOF):
			if have > 0 {
				w.scanner.cut(w.buffer[:have], false)
			}
			return read, nil
		case err != nil:
			return read, &failure{resultOf(err, ResultBroken), err}
		case have == len(w.buffer):
			w.scanner.cut(w.buffer[:have], true)
			have = 0
		}
	}
}
