// Package openapi holds the OpenAPI definitions of the kinds of package clusters: what `kubectl
// explain` shows. They are generated from the Go types: run go generate ./coreapi/clusters/openapi.
package openapi

import (
	"github.com/tidewaiter/tidewaiter/coreapi/clusters/openapi/internal/generated"
	"github.com/tidewaiter/tidewaiter/imageapi/openapi/modelname"
)

// GetOpenAPIDefinitions returns the definitions of Cluster, ClusterPod, their lists and the types
// of their fields, by OpenAPI model name. Those of Kubernetes' types are not among them.
var GetOpenAPIDefinitions = modelname.Definitions(generated.GetOpenAPIDefinitions)
