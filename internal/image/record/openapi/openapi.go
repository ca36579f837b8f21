// Package openapi holds the OpenAPI definitions of ImageRecord: what `kubectl explain` shows.
// They are generated from the Go types: run go generate ./internal/image/record/openapi.
package openapi

import (
	"github.com/tidewaiter/tidewaiter/internal/image/record/openapi/internal/generated"
	"github.com/tidewaiter/tidewaiter/internal/modelname"
)

// GetOpenAPIDefinitions returns the definitions of ImageRecord and the types of its fields, by
// OpenAPI model name. Those of Kubernetes' types are not among them.
var GetOpenAPIDefinitions = modelname.Definitions(generated.GetOpenAPIDefinitions)
