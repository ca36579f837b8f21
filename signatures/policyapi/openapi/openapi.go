// Package openapi holds the OpenAPI definitions of ClusterImagePolicy: what `kubectl explain`
// shows, and what server-side apply merges by. They are generated from the Go types: run go
// generate ./signatures/policyapi/openapi.
package openapi

import (
	"github.com/tidewaiter/tidewaiter/internal/modelname"
	"github.com/tidewaiter/tidewaiter/signatures/policyapi/openapi/internal/generated"
)

// GetOpenAPIDefinitions returns the definitions of ClusterImagePolicy, ImagePolicy, their lists and
// the types of their fields, by OpenAPI model name. It does not return those of Kubernetes' types.
var GetOpenAPIDefinitions = modelname.Definitions(generated.GetOpenAPIDefinitions)
