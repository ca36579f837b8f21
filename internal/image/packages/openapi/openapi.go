// Package openapi holds the OpenAPI definitions of ImagePackages: what `kubectl explain` shows.
// They are generated from the Go types: run go generate ./internal/image/packages/openapi.
package openapi

import (
	"github.com/tidewaiter/tidewaiter/internal/image/packages/openapi/internal/generated"
	"github.com/tidewaiter/tidewaiter/internal/modelname"
)

// GetOpenAPIDefinitions returns the definitions of ImagePackages and the types of its fields, by
// OpenAPI model name. It does not return those of Kubernetes' types.
var GetOpenAPIDefinitions = modelname.Definitions(generated.GetOpenAPIDefinitions)
