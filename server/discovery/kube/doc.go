// Package kube finds a pool's endpoints in Kubernetes. It is the one package that knows Kubernetes' types; what it hands out
// is package scheduling's.
//
// A Source follows one of three things, each in one namespace and read only:
//
//   - an InferencePool and the pods that it selects;
//   - the pods that a label selector matches, without any custom resource;
//   - the EndpointSlices of a Service, which may be headless.
//
// An endpoint is a pod's IP address and one of the target ports; several ports are data-parallel ranks, in the order in which
// they are listed. Its UID is the pod's uid with the number of restarts of the containers behind the port: a container that is
// restarted in place has lost its cache as one in a new pod has, and so it is another instance.
//
// Everything comes by watches, which go on where they broke off. A whole list is read at the start, and when the API server no
// longer knows the changes since. While the API server cannot be reached, what was seen last stays.
package kube
