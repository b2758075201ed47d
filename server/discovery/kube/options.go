package kube

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/sluice-epp/sluice/server/discovery"
)

// Options say what a Source follows. Of Pool, Selector and Service one is set.
type Options struct {
	// Pool is an InferencePool, "namespace/name" or "name".
	Pool string
	// Selector is a label selector that matches pods, as kubectl's --selector.
	Selector string
	// Service is a Service, "namespace/name" or "name".
	Service string
	// Namespace is where names without one and Selector are looked for. Empty means that of the kubeconfig's context, or in
	// a pod the pod's own.
	Namespace string
	// TargetPorts are the ports of Selector's pods, "8000" or "8000-8003" each, or those of Service that count: all of them
	// where there are none. A Pool has its own.
	TargetPorts []string
	// Kubeconfig is the path of a kubeconfig file. Empty means what kubectl takes, or in a pod its service account.
	Kubeconfig string

	// Logger gets what goes wrong and what changes; by default nothing is logged.
	Logger *slog.Logger
	// Stats is where the numbers are kept.
	Stats *discovery.Stats
	// Settle is the least time between two published sets, for what changes meanwhile to come together (20 ms).
	Settle time.Duration
	// PoolGrace is how long an InferencePool must be gone before its endpoints are (30 s): one that is deleted and made anew
	// keeps them.
	PoolGrace time.Duration

	retry time.Duration // after which a question is asked again at first; for tests
}

// Fault is what is wrong with one of the Options.
type Fault struct {
	// Field is the field's name as configuration files have it.
	Field string
	// Err says what is wrong with its value.
	Err error
}

// Error implements error.
func (f Fault) Error() string { return f.Field + ": " + f.Err.Error() }

// Unwrap returns what is wrong with the value.
func (f Fault) Unwrap() error { return f.Err }

// Set reports whether there is anything to follow.
func (o *Options) Set() bool { return o.Pool != "" || o.Selector != "" || o.Service != "" }

// Check returns all that is wrong with what is to be followed.
func (o *Options) Check() []Fault {
	var faults []Fault
	add := func(field, format string, args ...any) {
		faults = append(faults, Fault{field, fmt.Errorf(format, args...)})
	}
	set := []string{}
	for _, f := range []struct{ name, value string }{{"pool", o.Pool}, {"selector", o.Selector}, {"service", o.Service}} {
		if f.value != "" {
			set = append(set, f.name)
		}
	}
	if len(set) > 1 {
		add(set[1], "one of pool, selector and service can be followed, and %s is set too", set[0])
	}
	for _, f := range []struct{ name, value, kind string }{{"pool", o.Pool, "InferencePool"}, {"service", o.Service, "Service"}} {
		if err := checkName(f.value); err != nil {
			add(f.name, "%q is no %s's NAMESPACE/NAME: %w", clip(f.value), f.kind, err)
		}
	}
	if o.Namespace != "" {
		if err := checkNamespace(o.Namespace); err != nil {
			add("namespace", "%q: %w", clip(o.Namespace), err)
		}
		for _, f := range []struct{ name, value string }{{"pool", o.Pool}, {"service", o.Service}} {
			if ns, _, both := strings.Cut(f.value, "/"); both && ns != o.Namespace {
				add("namespace", "is %q, and %s names %q", clip(o.Namespace), f.name, clip(f.value))
			}
		}
	}
	if o.Selector != "" {
		if s, err := labels.Parse(o.Selector); err != nil {
			add("selector", "%q: %w", clip(o.Selector), err)
		} else if s.Empty() {
			add("selector", "%q matches every pod", clip(o.Selector))
		}
	}
	switch {
	case o.Pool != "" && len(o.TargetPorts) > 0:
		add("targetPorts", "an InferencePool has its own")
	case o.Selector != "" && len(o.TargetPorts) == 0:
		add("targetPorts", "is needed beside selector: the port on which the pods serve, such as 8000")
	default:
		if _, err := discovery.ParsePorts(o.TargetPorts); err != nil {
			add("targetPorts", "%w", err)
		}
	}
	return faults
}

// checkName checks a "namespace/name" or "name"; none is one.
func checkName(s string) error {
	if s == "" {
		return nil
	}
	ns, name, both := strings.Cut(s, "/")
	if !both {
		ns, name = "default", s
	}
	if err := checkNamespace(ns); err != nil {
		return fmt.Errorf("namespace: %w", err)
	}
	if len(validation.IsDNS1123Subdomain(name)) > 0 {
		return errors.New("a name has lower-case letters, digits, '-' and '.', with a letter or digit at both ends")
	}
	return nil
}

func checkNamespace(s string) error {
	if len(validation.IsDNS1123Label(s)) > 0 {
		return errors.New("a namespace has at most 63 lower-case letters, digits and '-', with a letter or digit at both ends")
	}
	return nil
}

// place splits a checked name.
func place(s, namespace string) (ns, name string) {
	if ns, name, both := strings.Cut(s, "/"); both {
		return ns, name
	}
	return namespace, s
}

// Equal reports whether both follow the same.
func (o *Options) Equal(other *Options) bool {
	return o.Pool == other.Pool && o.Selector == other.Selector && o.Service == other.Service && o.Namespace == other.Namespace &&
		o.Kubeconfig == other.Kubeconfig && slices.Equal(o.TargetPorts, other.TargetPorts)
}

func (o Options) withDefaults() *Options {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Stats == nil {
		o.Stats = new(discovery.Stats)
	}
	if o.Settle <= 0 {
		o.Settle = 20 * time.Millisecond
	}
	if o.PoolGrace <= 0 {
		o.PoolGrace = 30 * time.Second
	}
	if o.retry <= 0 {
		o.retry = 250 * time.Millisecond
	}
	return &o
}

// clip keeps what an error or a log line quotes short.
func clip(s string) string {
	const most = 80
	if len(s) <= most {
		return s
	}
	return s[:most] + "…"
}
