// Package conformance runs those scenarios of the endpoint picker protocol's conformance suite that need no Kubernetes:
// 127.0.0.x addresses are the pods, a real Envoy is the gateway, and Sluice, with its conformance aids on, the endpoint
// picker. Each test has the name of the scenario that it follows.
//
// The scenarios about status conditions of Kubernetes objects have no counterpart here. Of two others one half has:
// what a client sees when the picker cannot be reached (InferencePoolInvalidEPPService), and that the picker does not
// mind the port that a client names (HTTPRoutePortValidation).
package conformance
