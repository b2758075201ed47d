package server

import (
	"bufio"
	"bytes"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/credentials/insecure"

	schedulerv1 "github.com/sluice-epp/sluice/api/sluice/scheduler/v1"
	"github.com/sluice-epp/sluice/server/config"
)

// browse asks the admin port and follows no redirect.
func (p *process) browse(t *testing.T, path, accept string) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+p.app.AdminAddr().String()+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", accept)
	res, err := http.DefaultTransport.RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = res.Body.Close() })
	return res
}

// Browsers are shown the page, and everybody else the list of what the admin port serves.
func TestAdminRoot(t *testing.T) {
	p := launch(t, "", nil)
	const browser = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
	for _, tc := range []struct {
		path, accept string
		code         int
		text         string
	}{
		{"/", browser, http.StatusSeeOther, ""},
		{"/", "*/*", http.StatusOK, "sluice admin\n/ui/"},
		{"/index.txt", browser, http.StatusOK, "sluice admin\n/ui/"},
		{"/ui/", browser, http.StatusOK, "<!DOCTYPE html>"},
		{"/ui", browser, http.StatusTemporaryRedirect, "<a href"},
	} {
		res := p.browse(t, tc.path, tc.accept)
		body, err := io.ReadAll(res.Body)
		if err != nil || res.StatusCode != tc.code || !strings.HasPrefix(string(body), tc.text) {
			t.Errorf("%s for %q: %v, %d %.40s", tc.path, tc.accept, err, res.StatusCode, body)
		}
		if tc.code == http.StatusSeeOther && res.Header.Get("Location") != "/ui/" {
			t.Errorf("%s leads to %q", tc.path, res.Header.Get("Location"))
		}
	}
	if list, err := io.ReadAll(p.browse(t, "/index.txt", "*/*").Body); err != nil || !strings.Contains(string(list), schedulerv1.SchedulerService_ServiceDesc.ServiceName) {
		t.Errorf("the gRPC service is not named: %v\n%s", err, list)
	}
	body, err := io.ReadAll(p.browse(t, "/ui/", browser).Body)
	if err != nil || !strings.Contains(string(body), "127.0.0.1:1") || !strings.Contains(string(body), p.app.current.Load().hash) || !strings.Contains(string(body), ">ready<") {
		t.Errorf("%v: %s", err, body)
	}
}

// What net/http says of a client that does not speak TLS says where it came in.
func TestAdminPortIsNamedInTheLog(t *testing.T) {
	var log bytes.Buffer
	newHTTPServer(http.NotFoundHandler(), nil, slog.New(slog.NewTextHandler(&log, nil))).ErrorLog.Print("http: TLS handshake error from 10.0.0.9:4711: EOF")
	if !strings.Contains(log.String(), `level=WARN msg="http: TLS handshake error from 10.0.0.9:4711: EOF" listener="admin port"`) {
		t.Error(log.String())
	}
}

// Those who follow the page see the drain, and do not hold the end up.
func TestPageWhileDraining(t *testing.T) {
	p := launch(t, "", func(o *Options) {
		set := o.Override
		o.Override = func(c *config.Config) { set(c); c.Server.DrainDelay = 1500 * time.Millisecond }
	})
	events := bufio.NewReader(p.browse(t, "/ui/events", "text/event-stream").Body)
	read := func(want string) {
		t.Helper()
		for {
			line, err := events.ReadString('\n')
			if err != nil {
				t.Fatalf("waiting for %s: %v", want, err)
			}
			if strings.Contains(line, want) {
				return
			}
		}
	}
	o := p.operator(t, insecure.NewCredentials())
	said := func(want schedulerv1.ProcessState) { // to sluice top
		t.Helper()
		if a, err := o.ListEndpoints(t.Context(), &schedulerv1.ListEndpointsRequest{}); err != nil || a.GetProcess() != want {
			t.Errorf("%v, %v, want %v", a.GetProcess(), err, want)
		}
	}
	read(">ready<")
	said(schedulerv1.ProcessState_PROCESS_STATE_READY)
	p.stop()
	read(">draining<")
	said(schedulerv1.ProcessState_PROCESS_STATE_DRAINING)
	began := time.Now()
	if err := p.wait(t); err != nil {
		t.Error(err)
	}
	if _, err := io.Copy(io.Discard, events); err != nil {
		t.Errorf("the stream breaks off: %v", err)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("the end took %v", took)
	}
}
