// Package openapi holds the OpenAPI definitions of ReferenceReview: what `kubectl explain` shows.
// They are generated from the Go types: run go generate ./imageapi/answers/openapi.
package openapi

import (
	"github.com/tidewaiter/tidewaiter/imageapi/answers/openapi/internal/generated"
	"github.com/tidewaiter/tidewaiter/internal/modelname"
)

// GetOpenAPIDefinitions returns the definitions of ReferenceReview and the types of its fields, by
// OpenAPI model name. Those of Kubernetes' types are not among them.
var GetOpenAPIDefinitions = modelname.Definitions(generated.GetOpenAPIDefinitions)
