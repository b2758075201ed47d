package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	"k8s.io/client-go/tools/clientcmd"
)

// cluster is how an API server is reached.
type cluster struct {
	config    *rest.Config
	http      *http.Client
	namespace string // for what names none
}

// connect reads how the API server is reached. It asks the API server nothing.
func connect(kubeconfig string) (*cluster, error) {
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = kubeconfig
	rules.WarnIfAllMissing = false
	loaded := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, nil)
	config, err := loaded.ClientConfig()
	switch {
	case clientcmd.IsEmptyConfig(err):
		return nil, errors.New("no API server is known: this is no pod with a service account, and there is no kubeconfig file " +
			"(name one in KUBECONFIG, kubernetes.kubeconfig or --kubeconfig)")
	case err != nil:
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	namespace, _, err := loaded.Namespace()
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	config = rest.CopyConfig(config)
	config.UserAgent = "sluice"
	config.WarningHandler = rest.NoWarnings{}
	// The fields that are read are not where a protobuf message says, and a watch is JSON anyway where the type is a custom one.
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	config.NegotiatedSerializer = codecs
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("kubeconfig: %w", err)
	}
	return &cluster{config: config, http: client, namespace: namespace}, nil
}

// client speaks to one API group.
func (c *cluster) client(version schema.GroupVersion) (rest.Interface, error) {
	config := rest.CopyConfig(c.config)
	config.GroupVersion = &version
	config.APIPath = "/apis"
	if version.Group == "" {
		config.APIPath = "/api"
	}
	return rest.RESTClientForConfigAndClient(config, c.http)
}

// query is what is listed and watched.
type query struct {
	version   schema.GroupVersion
	resource  string
	namespace string
	labels    string
	fields    string
}

// String names the query in logs.
func (q query) String() string {
	s := q.namespace + "/" + q.resource
	for _, part := range []string{q.labels, q.fields} {
		if part != "" {
			s += "?" + part
		}
	}
	return s
}

// listWatch asks what q says; told hears how each request began.
func listWatch(client rest.Interface, q query, newList func() runtime.Object, told func(verb string, err error)) *cache.ListWatch {
	request := func(o *metav1.ListOptions) *rest.Request {
		o.LabelSelector, o.FieldSelector = q.labels, q.fields
		return client.Get().Namespace(q.namespace).Resource(q.resource).VersionedParams(o, parameters)
	}
	return &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			into := newList()
			err := request(&o).Do(ctx).Into(into)
			told("list", err)
			return into, err
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			o.Watch = true
			w, err := request(&o).Watch(ctx)
			verb := "watch"
			if o.SendInitialEvents != nil && *o.SendInitialEvents {
				verb = "list"
			}
			told(verb, err)
			return w, err
		},
	}
}

// quiet is a log handler for the client library: what it says, of whatever level, is for who looks for a fault. What an
// operator should know is said here.
type quiet struct{ slog.Handler }

// Enabled implements slog.Handler.
func (q quiet) Enabled(ctx context.Context, _ slog.Level) bool {
	return q.Handler.Enabled(ctx, slog.LevelDebug)
}

// Handle implements slog.Handler.
func (q quiet) Handle(ctx context.Context, r slog.Record) error {
	r.Level = slog.LevelDebug
	return q.Handler.Handle(ctx, r)
}

// WithAttrs implements slog.Handler.
func (q quiet) WithAttrs(attrs []slog.Attr) slog.Handler { return quiet{q.Handler.WithAttrs(attrs)} }

// WithGroup implements slog.Handler.
func (q quiet) WithGroup(name string) slog.Handler { return quiet{q.Handler.WithGroup(name)} }
