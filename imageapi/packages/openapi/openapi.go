// Package openapi holds the OpenAPI definitions of ImagePackages: what `kubectl explain` shows.
// They are generated from the Go types: run go generate ./imageapi/packages/openapi.
package openapi

import (
	"github.com/tidewaiter/tidewaiter/imageapi/openapi/modelname"
	"github.com/tidewaiter/tidewaiter/imageapi/packages/openapi/internal/generated"
)

// GetOpenAPIDefinitions returns the definitions of ImagePackages and the types of its fields, by
// OpenAPI model name. Those of Kubernetes' types are not among them.
var GetOpenAPIDefinitions = modelname.Definitions(generated.GetOpenAPIDefinitions)
