package cluster

import (
	"fmt"
	"strings"
	"testing"
)

// poolDefinition defines the InferencePool with the fields and bounds of its published definition that a picker meets.
const poolDefinition = `apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata:
  name: inferencepools.inference.networking.k8s.io
  annotations: {api-approved.kubernetes.io: "unapproved, for tests"}
spec:
  group: inference.networking.k8s.io
  scope: Namespaced
  names: {kind: InferencePool, listKind: InferencePoolList, plural: inferencepools, singular: inferencepool}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        required: [spec]
        properties:
          status: {type: object, x-kubernetes-preserve-unknown-fields: true}
          spec:
            type: object
            required: [selector, targetPorts, endpointPickerRef]
            properties:
              appProtocol: {type: string}
              endpointPickerRef: {type: object, x-kubernetes-preserve-unknown-fields: true}
              selector:
                type: object
                required: [matchLabels]
                properties:
                  matchLabels: {type: object, maxProperties: 64, additionalProperties: {type: string}}
              targetPorts:
                type: array
                minItems: 1
                maxItems: 8
                x-kubernetes-list-type: atomic
                items: {type: object, required: [number], properties: {number: {type: integer, format: int32, minimum: 1, maximum: 65535}}}
`

// DefinePools has the API server serve InferencePools.
func (c *Cluster) DefinePools(t testing.TB) {
	t.Helper()
	c.Apply(t, poolDefinition)
	c.Serve(t, "InferencePool")
}

// Pool makes an InferencePool select the pods of an app, at target ports.
func (c *Cluster) Pool(t testing.TB, namespace, name, app string, ports ...int) {
	t.Helper()
	var numbers []string
	for _, port := range ports {
		numbers = append(numbers, fmt.Sprintf("{number: %d}", port))
	}
	c.Apply(t, fmt.Sprintf(`apiVersion: inference.networking.k8s.io/v1
kind: InferencePool
metadata: {name: %s, namespace: %s}
spec: {selector: {matchLabels: {app: %s}}, targetPorts: [%s], endpointPickerRef: {name: epp, port: {number: 9002}}}`,
		name, namespace, app, strings.Join(numbers, ", ")))
}
