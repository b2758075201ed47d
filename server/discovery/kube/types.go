package kube

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
)

// The resources that are read. Their types hold the fields that are read and no others, so that the rest, most of an object,
// is passed over while it is decoded, and so that neither Kubernetes' own types nor those of the InferencePool are linked.
var (
	coreVersion      = schema.GroupVersion{Version: "v1"}
	discoveryVersion = schema.GroupVersion{Group: "discovery.k8s.io", Version: "v1"}
	inferenceVersion = schema.GroupVersion{Group: "inference.networking.k8s.io", Version: "v1"}
)

// skipped stands in for a field that is not read.
type skipped struct{}

// UnmarshalJSON reads nothing.
func (*skipped) UnmarshalJSON([]byte) error { return nil }

// objectMeta is an object's metadata without what clients have written when, which is the larger part of it.
type objectMeta struct {
	metav1.ObjectMeta
	ManagedFields   skipped `json:"managedFields,omitzero"`
	OwnerReferences skipped `json:"ownerReferences,omitzero"`
}

// Pod is a pod as far as it is read.
type Pod struct {
	metav1.TypeMeta
	objectMeta `json:"metadata"`
	Spec       struct {
		Containers []Container `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase             string            `json:"phase"`
		PodIP             string            `json:"podIP"`
		Conditions        []Condition       `json:"conditions"`
		ContainerStatuses []ContainerStatus `json:"containerStatuses"`
	} `json:"status"`
}

// Container is one of a pod's containers.
type Container struct {
	Name  string `json:"name"`
	Ports []struct {
		ContainerPort uint16 `json:"containerPort"`
	} `json:"ports"`
}

// Condition is one of a pod's conditions.
type Condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// ContainerStatus is the state of one of a pod's containers.
type ContainerStatus struct {
	Name         string `json:"name"`
	RestartCount uint32 `json:"restartCount"`
}

// InferencePool is an InferencePool as far as it is read. Its status is the gateway's to write.
type InferencePool struct {
	metav1.TypeMeta
	objectMeta `json:"metadata"`
	Spec       struct {
		Selector struct {
			MatchLabels map[string]string `json:"matchLabels"`
		} `json:"selector"`
		TargetPorts []struct {
			Number uint16 `json:"number"`
		} `json:"targetPorts"`
	} `json:"spec"`
}

// EndpointSlice is an EndpointSlice as far as it is read.
type EndpointSlice struct {
	metav1.TypeMeta
	objectMeta  `json:"metadata"`
	AddressType string          `json:"addressType"`
	Endpoints   []SliceEndpoint `json:"endpoints"`
	Ports       []SlicePort     `json:"ports"`
}

// SliceEndpoint is one endpoint of an EndpointSlice.
type SliceEndpoint struct {
	Addresses  []string `json:"addresses"`
	Conditions struct {
		Ready       *bool `json:"ready"`
		Terminating *bool `json:"terminating"`
	} `json:"conditions"`
	TargetRef *struct {
		Kind string `json:"kind"`
		Name string `json:"name"`
		UID  string `json:"uid"`
	} `json:"targetRef"`
	NodeName string `json:"nodeName"`
	Zone     string `json:"zone"`
}

// SlicePort is one port of an EndpointSlice.
type SlicePort struct {
	Port     uint16 `json:"port"`
	Protocol string `json:"protocol"`
}

// list is a list of objects.
type list[O any] struct {
	metav1.TypeMeta
	metav1.ListMeta `json:"metadata"`
	Items           []O `json:"items"`
}

// The copies below are of the outermost level alone: no object is changed once it is decoded.

// DeepCopyObject implements runtime.Object.
func (p *Pod) DeepCopyObject() runtime.Object { c := *p; return &c }

// DeepCopyObject implements runtime.Object.
func (p *InferencePool) DeepCopyObject() runtime.Object { c := *p; return &c }

// DeepCopyObject implements runtime.Object.
func (s *EndpointSlice) DeepCopyObject() runtime.Object { c := *s; return &c }

// DeepCopyObject implements runtime.Object.
func (l *list[O]) DeepCopyObject() runtime.Object { c := *l; return &c }

// scheme knows the types, codecs decode them.
var scheme, codecs = func() (*runtime.Scheme, runtime.NegotiatedSerializer) {
	s := runtime.NewScheme()
	add := func(v schema.GroupVersion, kind string, one, many runtime.Object) {
		s.AddKnownTypeWithName(v.WithKind(kind), one)
		s.AddKnownTypeWithName(v.WithKind(kind+"List"), many)
		metav1.AddToGroupVersion(s, v)
	}
	add(coreVersion, "Pod", &Pod{}, &list[Pod]{})
	add(discoveryVersion, "EndpointSlice", &EndpointSlice{}, &list[EndpointSlice]{})
	add(inferenceVersion, "InferencePool", &InferencePool{}, &list[InferencePool]{})
	return s, serializer.NewCodecFactory(s).WithoutConversion()
}()

var parameters = runtime.NewParameterCodec(scheme)
