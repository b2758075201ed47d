package kube

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-epp/sluice/scheduling"
	"github.com/sluice-epp/sluice/server/discovery"
)

// patience is how long a test waits for what must happen.
const patience = 20 * time.Second

// apiServer plays an API server that cannot stream lists, with one list of each resource and watches that tests write to.
type apiServer struct {
	*httptest.Server

	mu      sync.Mutex // guards what follows
	lists   map[string]string
	asked   []string // each question: list or watch, the resource, and from where
	watches map[string]chan string
	open    map[string]int // watches that are open, by resource and selector
	gone    bool           // the next watch is answered with 410
}

func startAPIServer(t *testing.T) *apiServer {
	t.Helper()
	a := &apiServer{lists: map[string]string{}, watches: map[string]chan string{}, open: map[string]int{}}
	a.Server = httptest.NewServer(http.HandlerFunc(a.serve))
	t.Cleanup(func() {
		a.CloseClientConnections()
		a.Close()
	})
	return a
}

func (a *apiServer) serve(w http.ResponseWriter, r *http.Request) {
	resource := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	query := r.URL.Query()
	w.Header().Set("content-type", "application/json")
	status := func(code int, reason string) {
		w.WriteHeader(code)
		fmt.Fprintf(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"it is %s","reason":%q,"code":%d}`, reason, reason, code)
	}
	a.mu.Lock()
	list, known := a.lists[resource]
	events := a.watches[resource]
	if query.Get("sendInitialEvents") == "" {
		verb := "list"
		if query.Get("watch") != "" {
			verb = "watch from " + query.Get("resourceVersion")
		}
		a.asked = append(a.asked, resource+": "+verb+" "+query.Get("labelSelector")+query.Get("fieldSelector"))
	}
	gone := a.gone && query.Get("watch") != ""
	a.gone = a.gone && !gone
	a.mu.Unlock()
	switch {
	case query.Get("sendInitialEvents") != "":
		status(http.StatusUnprocessableEntity, "Invalid")
	case !known:
		status(http.StatusNotFound, "NotFound")
	case gone:
		status(http.StatusGone, "Expired")
	case query.Get("watch") == "":
		fmt.Fprint(w, list)
	default:
		a.opened(resource+" "+query.Get("labelSelector"), 1)
		defer a.opened(resource+" "+query.Get("labelSelector"), -1)
		w.(http.Flusher).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case event, more := <-events:
				if !more {
					return
				}
				fmt.Fprintln(w, event)
				w.(http.Flusher).Flush()
			}
		}
	}
}

func (a *apiServer) opened(watch string, n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open[watch] += n
}

// watched waits until so many watches are open.
func (a *apiServer) watched(t *testing.T, watch string, n int) {
	t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		a.mu.Lock()
		open := a.open[watch]
		a.mu.Unlock()
		if open == n {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%d watches of %s are open, want %d", open, watch, n)
		}
	}
}

// holds makes a resource's list what is given, at a version.
func (a *apiServer) holds(version, kind, resource string, objects ...string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	apiVersion := map[string]string{"pods": "v1", "inferencepools": "inference.networking.k8s.io/v1", "endpointslices": "discovery.k8s.io/v1"}[resource]
	a.lists[resource] = fmt.Sprintf(`{"kind":"%sList","apiVersion":%q,"metadata":{"resourceVersion":%q},"items":[%s]}`,
		kind, apiVersion, version, strings.Join(objects, ","))
	if a.watches[resource] == nil {
		a.watches[resource] = make(chan string)
	}
}

// tells sends an event to whoever watches a resource.
func (a *apiServer) tells(t *testing.T, resource, kind, object string) {
	t.Helper()
	a.mu.Lock()
	to := a.watches[resource]
	a.mu.Unlock()
	select {
	case to <- fmt.Sprintf(`{"type":%q,"object":%s}`, kind, strings.ReplaceAll(object, "\n", " ")):
	case <-time.After(patience):
		t.Fatalf("nobody watches %s", resource)
	}
}

// breaks ends the watches of a resource, and answers the next with 410 if it is expired.
func (a *apiServer) breaks(resource string, expired bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	close(a.watches[resource])
	a.watches[resource] = make(chan string)
	a.gone = expired
}

func (a *apiServer) questions() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.asked)
}

// running is a source that runs.
type running struct {
	t     *testing.T
	sets  chan []scheduling.EndpointSpec
	stats *discovery.Stats
	log   *lockedBuffer
	stop  func() // waits for the end
}

func run(t *testing.T, a *apiServer, o Options) *running {
	t.Helper()
	o.Kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	if err := os.WriteFile(o.Kubeconfig, []byte(strings.Replace(kubeconfig, "https://127.0.0.1:1", a.URL, 1)), 0o600); err != nil {
		t.Fatal(err)
	}
	if o.retry == 0 {
		o.retry = time.Millisecond
	}
	r := &running{t: t, sets: make(chan []scheduling.EndpointSpec, 100), stats: new(discovery.Stats), log: new(lockedBuffer)}
	o.Stats, o.Logger = r.stats, slog.New(slog.NewTextHandler(r.log, nil))
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := s.Run(ctx, func(specs []scheduling.EndpointSpec) { r.sets <- specs }); err != nil {
			t.Errorf("Run: %v", err)
		}
	}()
	r.stop = func() {
		cancel()
		<-done
	}
	t.Cleanup(func() {
		r.stop()
		if n := r.stats.KubeFailing.Load(); n != 0 {
			t.Errorf("%d queries count as failing after the end", n)
		}
		if t.Failed() {
			t.Logf("the source wrote:\n%s", r.log)
		}
	})
	return r
}

// wants waits until these endpoints, as shown, are published.
func (r *running) wants(lines ...string) {
	r.t.Helper()
	var got []string
	for end := time.After(patience); ; {
		select {
		case specs := <-r.sets:
			if got = shown(specs); slices.Equal(got, lines) {
				return
			}
		case <-end:
			r.t.Fatalf("published %q, want %q", got, lines)
		}
	}
}

func (r *running) says(text string) {
	r.t.Helper()
	for end := time.Now().Add(patience); !strings.Contains(r.log.String(), text); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("the log does not say %q", text)
		}
	}
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func poolJSON(selector, ports string) string {
	return `{"apiVersion":"inference.networking.k8s.io/v1","kind":"InferencePool","metadata":{"name":"pool","namespace":"mine","uid":"p"},
		"spec":{"selector":{"matchLabels":{` + selector + `}},"targetPorts":[` + ports + `]}}`
}

func TestFollowPool(t *testing.T) {
	a := startAPIServer(t)
	r := run(t, a, Options{Pool: "pool"})
	r.says("the cluster does not serve inferencepools of inference.networking.k8s.io/v1")
	a.holds("7", "InferencePool", "inferencepools", poolJSON(`"app":"model"`, `{"number":8000}`))
	r.says("it is NotFound\"") // the pods
	a.holds("8", "Pod", "pods", podJSON("m-1", "u1", "10.0.0.1", "", "", ready))
	r.wants("m-1 10.0.0.1:8000 uid=u1 rank=0 ready")
	r.says("Kubernetes API server answers again")
	if n := r.stats.KubeFailing.Load(); n != 0 {
		t.Errorf("%d queries fail that are answered", n)
	}
	a.tells(t, "pods", "ADDED", podJSON("m-2", "u2", "10.0.0.2", `"resourceVersion":"9"`, "", ready))
	r.wants("m-1 10.0.0.1:8000 uid=u1 rank=0 ready", "m-2 10.0.0.2:8000 uid=u2 rank=0 ready")
	a.tells(t, "pods", "DELETED", podJSON("m-1", "u1", "10.0.0.1", `"resourceVersion":"10"`, "", ready))
	r.wants("m-2 10.0.0.2:8000 uid=u2 rank=0 ready")
	a.tells(t, "pods", "BOOKMARK", `{"apiVersion":"v1","kind":"Pod","metadata":{"resourceVersion":"12"}}`)
	a.breaks("pods", false)
	a.tells(t, "pods", "ADDED", podJSON("m-3", "u3", "10.0.0.3", `"resourceVersion":"13"`, "", ready))
	r.wants("m-2 10.0.0.2:8000 uid=u2 rank=0 ready", "m-3 10.0.0.3:8000 uid=u3 rank=0 ready")
	if q := a.questions(); !slices.Contains(q, "pods: watch from 12 app=model") || !slices.Contains(q, "inferencepools: list metadata.name=pool") {
		t.Errorf("asked %q: want the pool by its name, and pods to go on from the bookmark", q)
	}
	if strings.Contains(r.log.String(), "it is Invalid") {
		t.Error("an API server that streams no lists counts as one that fails")
	}
	// Expired, the list is read again.
	a.holds("20", "Pod", "pods", podJSON("m-3", "u3", "10.0.0.3", "", "", ready))
	a.breaks("pods", true)
	r.wants("m-3 10.0.0.3:8000 uid=u3 rank=0 ready")
	// What changes is the pool.
	a.tells(t, "inferencepools", "MODIFIED", poolJSON(`"app":"model"`, `{"number":8000},{"number":8001}`))
	r.wants("m-3-rank-0 10.0.0.3:8000 uid=u3 rank=0 ready ranks=1", "m-3-rank-1 10.0.0.3:8001 uid=u3 rank=1 ready ranks=1")
	a.tells(t, "inferencepools", "MODIFIED", poolJSON(``, `{"number":8000}`))
	r.says("its selector has no matchLabels")
	a.tells(t, "inferencepools", "MODIFIED", poolJSON(`"app":"model"`, ``))
	r.says("it has no targetPorts")
	a.holds("30", "Pod", "pods", podJSON("o-1", "v1", "10.0.1.1", "", "", ready))
	a.tells(t, "inferencepools", "MODIFIED", poolJSON(`"app":"other"`, `{"number":8000}`))
	r.wants("o-1 10.0.1.1:8000 uid=v1 rank=0 ready")
	if q := a.questions(); !slices.Contains(q, "pods: list app=other") {
		t.Errorf("asked %q: want the pods of the new selector", q)
	}
	a.watched(t, "pods app=other", 1)
	a.watched(t, "pods app=model", 0)
}

// A pool that is gone keeps its endpoints for the grace, and then has none.
func TestFollowPoolGone(t *testing.T) {
	a := startAPIServer(t)
	a.holds("7", "InferencePool", "inferencepools", poolJSON(`"app":"model"`, `{"number":8000}`))
	a.holds("8", "Pod", "pods", podJSON("m-1", "u1", "10.0.0.1", "", "", ready))
	const grace = 300 * time.Millisecond
	r := run(t, a, Options{Pool: "mine/pool", PoolGrace: grace})
	r.wants("m-1 10.0.0.1:8000 uid=u1 rank=0 ready")
	for range 2 {
		begun := time.Now()
		a.tells(t, "inferencepools", "DELETED", poolJSON(`"app":"model"`, `{"number":8000}`))
		r.wants()
		if took := time.Since(begun); took < grace {
			t.Errorf("the endpoints went after %v, want %v at the least", took, grace)
		}
		a.tells(t, "inferencepools", "ADDED", poolJSON(`"app":"model"`, `{"number":8000}`))
		r.wants("m-1 10.0.0.1:8000 uid=u1 rank=0 ready")
	}
}

func TestFollowSelectorAndService(t *testing.T) {
	a := startAPIServer(t)
	a.holds("8", "Pod", "pods")
	a.holds("8", "EndpointSlice", "endpointslices", `{"metadata":{"name":"s"},"ports":[{"port":8000}],"endpoints":[{"addresses":["10.0.0.1"]}]}`)
	pods := run(t, a, Options{Selector: "app in (a,b)", TargetPorts: []string{"8000"}, Namespace: "demo"})
	pods.wants() // to find none is to know
	service := run(t, a, Options{Service: "models"})
	service.wants("10.0.0.1 10.0.0.1:8000 uid= rank=0 ready")
	for _, want := range []string{"pods: list app in (a,b)", "endpointslices: list kubernetes.io/service-name=models"} {
		if q := a.questions(); !slices.Contains(q, want) {
			t.Errorf("asked %q, want %q", q, want)
		}
	}
}

// Between two attempts, by then most of a second, nobody waits beyond the end.
func TestEndWhileTheAPIServerIsAway(t *testing.T) {
	a := startAPIServer(t)
	a.Close() // connections are refused
	r := run(t, a, Options{Pool: "pool", retry: 100 * time.Millisecond})
	for end := time.Now().Add(patience); r.stats.KubeErrors.Load() < 4; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the API server is not asked again")
		}
	}
	if n := strings.Count(r.log.String(), "does not answer"); n != 1 {
		t.Errorf("the same fault was said %d times", n)
	}
	begun := time.Now()
	r.stop()
	if took := time.Since(begun); took > time.Second/4 {
		t.Errorf("the end took %v", took)
	}
}
