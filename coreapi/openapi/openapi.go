// Package openapi holds the OpenAPI definitions of those of Kubernetes' kinds that are served, and
// of the types of their fields. They are generated from Kubernetes' Go types: run go generate
// ./coreapi/openapi. Kubernetes' own package of definitions has five times as many, for its
// kubelet's configuration, too, and a program that names it has them all.
package openapi

import (
	"github.com/tidewaiter/tidewaiter/coreapi/openapi/internal/generated"
	"github.com/tidewaiter/tidewaiter/internal/modelname"
)

// GetOpenAPIDefinitions returns the definitions by OpenAPI model name.
var GetOpenAPIDefinitions = modelname.Definitions(generated.GetOpenAPIDefinitions)
